"""A file is written whole, or stays as it was, whatever fails meanwhile."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heta_lens._util.files import check_distinct, write_atomically

HARD = [b"", b"a\r\nb\x00", "é 😀\n".encode(), b"x" * 300_000]
as_root = hasattr(os, "geteuid") and os.geteuid() == 0


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("content", HARD, ids=len)
def test_what_is_written_is_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a"
    for _ in range(2):
        assert write_atomically(path, content) == path
        assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["a"]


def test_text_is_utf_8_with_its_line_ends_as_they_are(tmp_path: Path) -> None:
    write_atomically(str(tmp_path / "a"), "é\r\n\n")
    assert (tmp_path / "a").read_bytes() == b"\xc3\xa9\r\n\n"


@pytest.mark.parametrize("function", ["write", "fsync", "replace", "open", "chmod"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_disk_that_fails_leaves_what_was_there_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, code: int
) -> None:
    path = tmp_path / "a.json"
    path.write_text("before")
    with monkeypatch.context() as broken:
        broken.setattr(os, function, failing(code))
        with pytest.raises(OSError, match=rf"cannot write .*a\.json: {os.strerror(code)}$") as found:
            write_atomically(path, "after")
    assert found.value.errno == code
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["a.json"]
    write_atomically(path, "after")
    assert path.read_text() == "after"


def test_a_disk_that_is_full_after_some_bytes_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write, room = tmp_path / "a", os.write, 10
    path.write_text("before")

    def until_full(descriptor: int, data: Any) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room -= (done := write(descriptor, bytes(data)[: min(room, 4)]))
        return done

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", until_full)
        write_atomically(path, b"123456")  # in two parts
        assert path.read_bytes() == b"123456"
        with pytest.raises(OSError, match="No space left"):
            write_atomically(path, b"1234567")
    assert path.read_bytes() == b"123456" and os.listdir(tmp_path) == ["a"]


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
def test_a_limit_on_the_size_of_files_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("before")
    program = (
        "import resource, sys; from heta_lens._util.files import write_atomically\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); write_atomically(sys.argv[1], b'x' * 5000)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "a")], capture_output=True, text=True)
    assert done.returncode == 1 and "File too large" in done.stderr
    assert (tmp_path / "a").read_text() == "before" and os.listdir(tmp_path) == ["a"]


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a", "after")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600), (0, 0o666)])
def test_permissions_are_those_of_the_umask_and_then_the_files_own(tmp_path: Path, umask: int, mode: int) -> None:
    path, before = tmp_path / "a", os.umask(umask)
    try:
        write_atomically(path, "1")
        assert stat.S_IMODE(path.stat().st_mode) == mode
        path.chmod(0o604)
        write_atomically(path, "2")
        assert stat.S_IMODE(path.stat().st_mode) == 0o604
    finally:
        os.umask(before)


def test_a_link_stays_and_the_file_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("there", "new"):
        link = tmp_path / f"link to {name}"
        link.symlink_to(Path("folder") / name)
        (tmp_path / "folder" / "there").write_text("before")
        write_atomically(link, name)
        assert link.is_symlink() and (tmp_path / "folder" / name).read_text() == name
    assert sorted(os.listdir(tmp_path / "folder")) == ["new", "there"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(tmp_path / "pipe", "through")
    assert os.read(reader, 100) == b"through" and (tmp_path / "pipe").is_fifo()
    os.close(reader)
    write_atomically(os.devnull, "nothing")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.parametrize("place", ["folder", "missing/a", "file/a"])
def test_where_no_file_can_be_is_refused_by_its_path(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=f"cannot write .*{place}: "):
        write_atomically(tmp_path / place, "")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


@pytest.mark.skipif(as_root, reason="root may write anywhere")
def test_a_read_only_file_is_not_replaced(tmp_path: Path) -> None:
    path = write_atomically(tmp_path / "a", "before")
    path.chmod(0o444)
    with pytest.raises(PermissionError, match="read-only"):
        write_atomically(path, "after")
    assert path.read_text() == "before"


def test_the_longest_name_a_folder_can_hold_is_written(tmp_path: Path) -> None:
    assert write_atomically(tmp_path / ("n" * 255), "x").read_text() == "x"


SAME = {
    "the same": ("a.out", "a.out"),
    "written in another way": ("a.out", "./a.out"),
    "through its parent": ("a.out", "folder/../a.out"),
    "through a linked folder": ("folder/a", "linked/a"),
    "a link to the file": ("folder/there", "link"),
    "a link to a file that is not there yet": ("folder/new", "dangling"),
    "two names of one file": ("folder/there", "hard"),
    "in another case": ("a.out", "A.OUT"),
    "in another form of Unicode": ("e\N{COMBINING ACUTE ACCENT}", "\N{LATIN SMALL LETTER E WITH ACUTE}"),
}


@pytest.mark.parametrize("how", SAME)
def test_two_outputs_that_are_one_file_are_refused(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("folder/there").touch()
    Path("linked").symlink_to("folder")
    Path("link").symlink_to("folder/there")
    Path("dangling").symlink_to("folder/new")
    os.link("folder/there", "hard")
    one, other = SAME[how]
    for paths in ((one, other), (str(tmp_path / one), other), (Path(other), one)):
        with pytest.raises(ValueError, match=r"--html .* and --save .* are the same file: give two files"):
            check_distinct({"--html": paths[0], "--other": None, "--save": paths[1]})


def test_two_files_may_be_given_and_one_stream_twice(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    check_distinct({"--html": tmp_path / "a", "--save": tmp_path / "b"})
    check_distinct({"--html": tmp_path / "c", "--save": tmp_path / "folder" / "c"})
    check_distinct({"--html": os.devnull, "--save": os.devnull})


@pytest.mark.skipif(not as_root, reason="only root gives files away")
def test_an_existing_file_keeps_its_owner(tmp_path: Path) -> None:
    path = write_atomically(tmp_path / "a", "before")
    os.chown(path, 1234, 4321)
    write_atomically(path, "after")
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)
