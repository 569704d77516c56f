"""Files: written whole or left as they were, read strictly, and repaired."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heta_lens._util.files import decoded, invalid_json, regular_file, write_atomically


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            "a".encode("utf-16"),
            "line 1, is not UTF-8, perhaps UTF-16: convert it, as by iconv -f UTF-16 -t UTF-8",
        ),
        (b"a\n\xdf", "file, line 2, is not UTF-8, perhaps Latin-1"),
    ],
)
def test_another_encoding_is_named_with_its_line(raw: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoded(raw, "file")


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError, match=f"there is no file {tmp_path / 'nothing'}"):
        regular_file(tmp_path / "nothing")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(FileNotFoundError, match=f"{path} is a folder or a pipe: name a file"):
            regular_file(path)
    with pytest.raises(FileNotFoundError, match="no records yet"):
        regular_file(tmp_path / "nothing", missing="no records yet")


def test_text_that_is_no_json_is_refused_with_its_place() -> None:
    with pytest.raises(json.JSONDecodeError) as refused:
        json.loads("[1,\n2,]")
    assert str(invalid_json("f", refused.value, 3)).startswith("f, line 4, is not valid JSON: ")


HARD = [b"", b"a\r\nb\x00", "é 😀\n".encode(), b"x" * 300_000]


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


@pytest.mark.parametrize("function", ["fsync", "replace", "chmod"])
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


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a", "after")
    assert not os.listdir(tmp_path)


def test_a_link_stays_and_the_file_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("there", "new"):
        link = tmp_path / f"link to {name}"
        link.symlink_to(Path("folder") / name)
        (tmp_path / "folder" / "there").write_text("before")
        write_atomically(link, name)
        assert link.is_symlink() and (tmp_path / "folder" / name).read_text() == name
    assert sorted(os.listdir(tmp_path / "folder")) == ["new", "there"]
