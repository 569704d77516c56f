"""The folder of an evaluation survives failures: whole records are kept, one process writes, and evaluations resume."""

import errno
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import heta_lens
from heta_lens.cli import app
from heta_lens.data.suites import suite
from heta_lens.evaluation import Entry, evaluate, run_folder, write_report
from heta_lens.evaluation.run_folder import (
    FINGERPRINT,
    HOLDER,
    LOCK,
    RECORDS,
    RUN,
    SOFT_LOCK,
    FileLock,
    Holder,
    Record,
    locked,
    read_records,
    read_run,
)
from heta_lens.evaluation.saved_scores import SCORES, load_scores
from heta_lens.metrics import METRICS

HERE = "evaluation/test_run_folder.py"


@cache
def demo() -> Any:
    return heta_lens.load_demo_model()


def other_model() -> Any:
    model = heta_lens.load_demo_model()
    with torch.no_grad():
        next(model.parameters())[5, 5] += 1e-3
    return model


def run(folder: Path, *methods: str, limit: int = 2, model: Any = None, **options: Any) -> dict[Any, Record]:
    entries = [Entry.read(method) for method in methods or ("recency",)]
    instances = suite("recall", limit=limit, facts=2)
    evaluate(model or demo(), instances, entries, ["morf", "f1"], folder, progress=False, **options)
    return {record.key: record for record in read_records(folder)}


def lines(folder: Path) -> list[str]:
    return (folder / RECORDS).read_text().splitlines()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in (LOCK, HOLDER)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(folder)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A finished evaluation of two prompts by one method."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def half(folder: Path) -> Path:
    """An evaluation that was stopped after the first prompt."""
    first, _ = lines(folder)
    (folder / RECORDS).write_text(first + "\n")
    return folder


def failing(code: int = errno.ENOSPC) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


# ------------------------------------------------------------------------------------------------------ failing disks
@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(
    ("function", "code"),
    [
        *((function, errno.ENOSPC) for function in ("write", "fsync", "replace")),
        ("fsync", errno.EIO),
        ("replace", errno.ESTALE),  # of network file systems
    ],
)
def test_a_failing_disk_loses_nothing(half: Path, function: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: (half / name).read_bytes() for name in (RUN, RECORDS)}
    with monkeypatch.context() as broken:
        broken.setattr(os, function, failing(code))
        with pytest.raises(OSError, match=rf"cannot write .*{half.name}.*{os.strerror(code)}"):
            run(half, "random", "recency")
    kept = (RECORDS,) if function == "write" else (RUN, RECORDS)  # only records are written by os.write
    assert all((half / name).read_bytes() == before[name] for name in kept)
    assert not [name for name in os.listdir(half) if name.endswith(".tmp")]
    assert len(run(half, "random", "recency")) == 4
    assert lines(half)[0] == before[RECORDS].decode().strip()


@pytest.mark.slow
@pytest.mark.parametrize("room", [10_000, 12_500, 17_500])
def test_a_disk_that_is_full_in_the_middle_of_a_line_keeps_the_lines_before(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def until_full(descriptor: int, data: Any) -> int:
        nonlocal room
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room -= (done := write(descriptor, bytes(data)[:room]))
        return done

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", until_full)
        with pytest.raises(OSError, match=r"cannot write .*(scores|records).jsonl: No space left"):
            run(tmp_path, limit=5)
    kept = lines(tmp_path)
    assert 0 < len(kept) < 5 and all(map(json.loads, kept)) and (tmp_path / RECORDS).read_bytes().endswith(b"\n")
    scores = load_scores(tmp_path).names
    assert len(kept) <= len(scores) <= len(kept) + 1 and (tmp_path / SCORES).read_bytes().endswith(b"\n")
    assert len(run(tmp_path, limit=5)) == 5 and lines(tmp_path)[: len(kept)] == kept
    assert len(load_scores(tmp_path)) == 5


def test_folders_that_cannot_be_written_are_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "file"
    file.touch()
    with pytest.raises(ValueError, match="file is a file: give a folder"):
        run(file)
    with pytest.raises(OSError, match=r"cannot write into .*below: Not a directory"):
        run(file / "below")
    monkeypatch.setattr(os, "open", failing(errno.EROFS))  # a read-only file system, even for root
    with pytest.raises(OSError, match=rf"cannot write into {folder}: Read-only file system"):
        run(folder)


# ------------------------------------------------------------------------------------------------------------- run.json
LOST: dict[str, Callable[[Path], Any]] = {
    "removed": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "zeros after a crash": lambda path: path.write_bytes(b"\0" * 4096),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:100]),
}


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("how", LOST)
def test_records_identify_their_evaluation_without_run_json(how: str, half: Path) -> None:
    manifest, before = (half / RUN).read_bytes(), lines(half)
    LOST[how](half / RUN)
    assert len(run(half)) == 2 and lines(half)[:1] == before
    written = (half / RUN).stat()
    assert (half / RUN).read_bytes() == manifest
    run(half)
    assert ((half / RUN).stat().st_ino, (half / RUN).stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)


OTHERS: dict[str, Callable[[Path], Any]] = {
    "another model": lambda folder: run(folder, model=other_model()),
    "other prompts": lambda folder: run(folder, limit=3),
    "another method under one name": lambda folder: evaluate(
        demo(), suite("recall", limit=2, facts=2), [Entry("recency", "random", {})], ["morf", "f1"], folder
    ),
    "other metrics": lambda folder: evaluate(demo(), suite("recall", limit=2, facts=2), "recency", ["morf"], folder),
    "fewer methods": lambda folder: run(folder, "random"),
    "another name of the suite": lambda folder: run(folder, facts={"suite": "mine"}),
}


@pytest.mark.parametrize("how", OTHERS)
@pytest.mark.parametrize("lost", [True, False])
def test_another_evaluation_is_refused_with_run_json_and_without(how: str, lost: bool, half: Path) -> None:
    if lost:
        (half / RUN).unlink()
    before = contents(half)
    message = r"run.json is missing or damaged, and the records are .*: put run.json back" if lost else "with other "
    with pytest.raises(ValueError, match=message):
        OTHERS[how](half)
    assert contents(half) == before


def test_files_of_the_user_and_of_later_versions_are_left_alone(half: Path, tmp_path: Path) -> None:
    (tmp_path / RUN).write_text("my notes")
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        run(tmp_path)
    assert (tmp_path / RUN).read_text() == "my notes"
    later = json.dumps({**read_run(half), "schema": 99})
    (half / RUN).write_text(later)
    for use in (run, write_report):
        with pytest.raises(ValueError, match=r"of a later version of heta_lens \(schema 99; this version reads 1\)"):
            use(half)
    assert (half / RUN).read_text() == later


def test_another_model_is_refused_and_another_name_of_the_model_is_not(half: Path, tmp_path: Path) -> None:
    assert {*read_run(half)[FINGERPRINT]} == {"weights", "config", "tokenizer"}
    before = lines(half)
    with pytest.raises(ValueError, match=r"with other model \(other weights\): give another folder"):
        run(half, model=other_model())
    assert lines(half) == before
    assert len(run(half, model=heta_lens.load_demo_model())) == 2
    run(tmp_path / "named", limit=1, facts={"model": "demo"})
    manifest = (tmp_path / "named" / RUN).read_bytes()
    assert len(run(tmp_path / "named", limit=1, facts={"model": "/a/folder"})) == 1
    assert (tmp_path / "named" / RUN).read_bytes() == manifest


# ----------------------------------------------------------------------------------------------------------------- lock
HOLD = """
import errno, filelock, sys, time
from pathlib import Path
def without_locks(*_, **__):
    raise OSError(errno.ENOLCK, "")
filelock.FileLock.acquire = without_locks
from heta_lens.evaluation.run_folder import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_refused_with_the_name_of_the_first(folder: Path) -> None:
    before = (folder / RECORDS).read_bytes()
    refusal = rf"another evaluation \(process {os.getpid()} on {platform.node()}, since 20.*\) is writing into"
    with locked(folder), pytest.raises(ValueError, match=refusal):
        run(folder)
    assert (folder / RECORDS).read_bytes() == before and not (folder / HOLDER).exists()
    link = folder.with_name("link")
    link.symlink_to(folder)
    with pytest.raises(ValueError, match="is writing into"), locked(link):
        run(folder)
    assert len(run(folder)) == 2  # an error has released the lock


def test_a_dead_process_is_not_taken_for_the_writer(tmp_path: Path) -> None:
    assert Holder(2**22 + 5, "elsewhere", "then").may_live
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / HOLDER).write_text(json.dumps(vars(Holder(dead.pid, platform.node(), "then"))))
    lock = FileLock(tmp_path / LOCK)
    lock.acquire()
    mine = json.dumps(vars(Holder.me()))
    late = threading.Timer(0.3, lambda: (tmp_path / HOLDER).write_text(mine))
    late.start()
    with pytest.raises(ValueError, match=rf"process {os.getpid()} on"):
        locked(tmp_path).__enter__()
    late.join()
    lock.release()


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.filterwarnings(r"ignore:the file system of .* has no locks:UserWarning")
def test_without_locks_a_file_stands_for_a_lock_and_is_taken_over_from_the_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileLock, "acquire", failing(errno.ENOLCK))
    mine = locked(tmp_path)
    with pytest.warns(UserWarning, match=r"has no locks: the file \.lock-file stands for a lock"):
        mine.__enter__()
    assert (tmp_path / SOFT_LOCK).exists()
    with pytest.raises(ValueError, match="is writing into"):
        locked(tmp_path).__enter__()
    mine.__exit__(None, None, None)
    assert not (tmp_path / SOFT_LOCK).exists()

    command = [sys.executable, "-W", "ignore", "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=f"process {first.pid} on"):
            locked(tmp_path).__enter__()
        first.kill()
    assert (tmp_path / SOFT_LOCK).exists()
    time.sleep(run_folder.PATIENCE)
    with locked(tmp_path):
        assert json.loads((tmp_path / HOLDER).read_text())["process"] == os.getpid()


# ------------------------------------------------------------------------------------------------------------- failures
def break_metric(monkeypatch: pytest.MonkeyPatch, evaluator: Callable[..., Any]) -> None:
    broken = METRICS["morf"].__class__(**{**vars(METRICS["morf"]), "evaluate": evaluator})
    for module in ("runner", "prompt_evaluation"):
        monkeypatch.setattr(f"heta_lens.evaluation.{module}.METRICS", {**METRICS, "morf": broken})


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("how", ["raises", "nan"])
def test_a_failed_metric_is_repeated_and_other_metrics_are_kept(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        break_metric(broken, failing() if how == "raises" else lambda _: {"morf": float("nan")})
        found = run(tmp_path)
    for record in found.values():
        assert record.values["morf"] is None and record.values["f1"] is not None and [*record.errors] == ["morf"]
        assert record.reasons["morf"].startswith("OSError: " if how == "raises" else "nan is no finite number")
        assert record.errors["morf"].startswith(f"{HERE}:") == (how == "raises")
    again = run(tmp_path, retry_failed=True)
    for key, record in again.items():
        assert record.values["morf"] is not None and record.values["f1"] == found[key].values["f1"]
        assert not record.reasons and not record.errors
    with monkeypatch.context() as broken:  # a later failure loses no value
        broken.setattr(heta_lens.METHODS["recency"], "explain", failing())
        assert run(tmp_path, retry_failed=True) == again


def test_an_error_of_a_method_is_recorded_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def explain(*_: Any) -> Any:
        return torch.zeros(2) @ torch.zeros(3)

    monkeypatch.setattr(heta_lens.METHODS["recency"], "explain", explain)
    for (_, method), record in run(tmp_path, "recency", "random").items():
        assert bool(record.failed) == (method == "recency")
        if record.failed:
            assert record.failed_at == f"{HERE}:{explain.__code__.co_firstlineno + 1}"
            assert record.failed.startswith("RuntimeError: ") and record.failed.endswith(f"({record.failed_at})")


def test_an_interrupt_stops_at_once_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def explain(*_: Any) -> Any:
        raise KeyboardInterrupt

    words = ["evaluate", "recall", "--limit", "2", "-m", "random,recency", "--metrics", "f1", "--out", str(tmp_path)]
    with monkeypatch.context() as broken:
        broken.setattr(heta_lens.METHODS["recency"], "explain", explain)
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 130 and "the same command resumes" in done.stderr
    assert len(lines(tmp_path)) == 1
    assert CliRunner().invoke(app, words).exit_code == 0 and len(lines(tmp_path)) == 4
