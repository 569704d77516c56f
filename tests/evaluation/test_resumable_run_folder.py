"""An evaluation's folder survives what can happen to it: records that were whole are kept, and it can be resumed."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
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
from heta_lens.evaluation import Entry, evaluate, write_report
from heta_lens.evaluation.run_folder import (
    FINGERPRINT,
    HOLDER,
    LOCK,
    RECORDS,
    RUN,
    Record,
    append,
    joined,
    locked,
    read_records,
    read_run,
)
from heta_lens.evaluation.saved_scores import SCORES, load_scores

METRICS = ["morf", "f1"]
COMMAND = "from heta_lens.cli import app; app()"


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
    evaluate(model or demo(), instances, entries, METRICS, folder, progress=False, **options)
    return {record.key: record for record in read_records(folder)}


def lines(folder: Path) -> list[str]:
    return (folder / RECORDS).read_text().splitlines()


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
    """As if it had been stopped after the first prompt."""
    first, _ = lines(folder)
    (folder / RECORDS).write_text(first + "\n")
    return folder


def failing(code: int = errno.ENOSPC) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


# ---------------------------------------------------------------------------------------------------- a disk that fails
@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(
    ("function", "code"),
    [
        *((function, errno.ENOSPC) for function in ("write", "fsync", "replace")),
        ("fsync", errno.EIO),
        *(("replace", code) for code in (errno.ESTALE, errno.EBUSY, errno.EXDEV)),  # as network file systems do
    ],
)
def test_a_disk_that_fails_loses_nothing_when_an_evaluation_is_resumed(
    half: Path, function: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: (half / name).read_bytes() for name in (RUN, RECORDS)}
    with monkeypatch.context() as broken:
        broken.setattr(os, function, failing(code))
        with pytest.raises(OSError, match=rf"cannot write .*{half.name}.*{os.strerror(code)}"):
            run(half, "random", "recency")
    assert {name: (half / name).read_bytes() for name in (RUN, RECORDS)} == before
    assert not [name for name in os.listdir(half) if name.endswith(".tmp")]
    assert len(run(half, "random", "recency")) == 4
    assert lines(half)[0] == before[RECORDS].decode().strip()


@pytest.mark.slow
@pytest.mark.parametrize("room", range(10_000, 20_000, 2_500))
def test_a_disk_that_is_full_in_the_middle_of_a_line_keeps_those_before(
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


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
def test_a_limit_on_files_ends_the_command_with_a_sentence_and_nothing_lost(tmp_path: Path) -> None:
    words = ["evaluate", "recall", "--limit", "8", "-m", "recency", "--metrics", "f1", "--out", str(tmp_path / "run")]
    program = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); {COMMAND}"
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"heta-lens: [Errno 27] cannot write {tmp_path / 'run' / SCORES}: File too large" in done.stderr
    kept = lines(tmp_path / "run")
    assert 0 < len(kept) < 8 and all(map(json.loads, kept))
    assert CliRunner().invoke(app, words).exit_code == 0
    assert lines(tmp_path / "run")[: len(kept)] == kept and len(lines(tmp_path / "run")) == 8


def test_run_json_is_written_once(folder: Path) -> None:
    before = (folder / RUN).stat()
    run(folder)
    after = (folder / RUN).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.slow
def test_a_report_that_cannot_be_written_leaves_the_one_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.read_bytes() for path in write_report(folder)}
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", failing())
        with pytest.raises(OSError, match=r"cannot write .*report.md: No space left"):
            write_report(folder)
    assert {path: path.read_bytes() for path in before} == before
    assert not [*folder.rglob("*.tmp")]


# --------------------------------------------------------------------------------------------- files that went missing
def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


LOST: dict[str, Callable[[Path], Any]] = {
    "removed": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "zeros after a crash": lambda path: path.write_bytes(b"\0" * 4096),
    "cut short": truncated,
    "damaged": lambda path: path.write_text("no JSON"),
}


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("how", LOST)
def test_without_run_json_records_say_of_which_evaluation_they_are(how: str, half: Path) -> None:
    manifest, before = (half / RUN).read_bytes(), lines(half)
    LOST[how](half / RUN)
    assert len(run(half)) == 2 and lines(half)[:1] == before
    assert (half / RUN).read_bytes() == manifest


OTHERS: dict[str, Callable[[Path], Any]] = {
    "another model": lambda folder: run(folder, model=other_model()),
    "other prompts": lambda folder: run(folder, limit=3),
    "another method under one name": lambda folder: evaluate(
        demo(), suite("recall", limit=2, facts=2), [Entry("recency", "random", {})], METRICS, folder, progress=False
    ),
    "other metrics": lambda folder: evaluate(
        demo(), suite("recall", limit=2, facts=2), [Entry.read("recency")], ["morf"], folder, progress=False
    ),
    "fewer methods": lambda folder: run(folder, "random"),
    "another name of the suite": lambda folder: run(folder, facts={"suite": "mine"}),
}


@pytest.mark.parametrize("how", OTHERS)
@pytest.mark.parametrize("lost", [True, False])
def test_another_evaluation_is_refused_with_run_json_and_without(how: str, lost: bool, half: Path) -> None:
    if lost:
        (half / RUN).unlink()
    before = {path.name: path.read_bytes() for path in half.iterdir() if path.name not in (LOCK, HOLDER)}
    message = r"run.json is missing or damaged, and they are .*: put run.json back" if lost else "with other "
    with pytest.raises(ValueError, match=message):
        OTHERS[how](half)
    assert {path.name: path.read_bytes() for path in half.iterdir() if path.name not in (LOCK, HOLDER)} == before


def test_run_json_of_another_evaluation_is_noticed(half: Path, tmp_path: Path) -> None:
    run(tmp_path / "other", limit=1)
    shutil.copy(tmp_path / "other" / RUN, half / RUN)
    with pytest.raises(ValueError, match="with other instances, texts"):
        run(half)
    with pytest.raises(ValueError, match=r"1 of 1 records in .* are of another evaluation"):
        run(half, limit=1)
    shutil.copy(tmp_path / "other" / RECORDS, half / RECORDS)
    assert len(run(half, limit=1)) == 1


def test_somebody_elses_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / RUN).write_text("my notes")
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        run(tmp_path)
    assert (tmp_path / RUN).read_text() == "my notes"


@pytest.mark.slow
def test_a_folder_that_became_a_file_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file is a file: give a folder"):
        run(tmp_path / "file")
    with pytest.raises(OSError, match=r"cannot write into .*below: Not a directory"):
        run(tmp_path / "file" / "below")
    shutil.rmtree(folder / "figures", ignore_errors=True)
    (folder / "figures").touch()
    with pytest.raises(OSError, match="figures"):
        write_report(folder)


def test_a_folder_of_a_later_version_is_refused_and_left_alone(half: Path) -> None:
    later = json.dumps({**read_run(half), "schema": 99})
    (half / RUN).write_text(later)
    for use in (run, write_report):
        with pytest.raises(
            ValueError, match=r"run.json is of a later version of heta_lens \(schema 99; this one reads 1\)"
        ):
            use(half)
    assert (half / RUN).read_text() == later
    of_old = {name: value for name, value in json.loads(later).items() if name != "schema"}
    (half / RUN).write_text(json.dumps(of_old))
    assert len(run(half)) == 2 and read_run(half)["schema"] == 1


def test_a_clock_that_was_changed_does_not_matter(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in half.iterdir():
        os.utime(path, (4e9, 4e9))
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert len(run(half)) == 2


def test_a_read_only_folder_is_refused_in_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", failing(errno.EROFS))  # which root sees as everybody does
    with pytest.raises(OSError, match=rf"cannot write into {folder}: Read-only file system"):
        run(folder)


# ------------------------------------------------------------------------------------------------------- another model
def test_a_resume_with_another_model_is_refused(half: Path) -> None:
    assert {*read_run(half)[FINGERPRINT]} == {"weights", "config", "tokenizer"}
    before = lines(half)
    with pytest.raises(
        ValueError, match=r"holds an evaluation with other model \(other weights\): give another folder"
    ):
        run(half, model=other_model())
    assert lines(half) == before
    assert len(run(half, model=heta_lens.load_demo_model())) == 2  # the same, loaded again


def test_one_model_under_two_names_is_one(tmp_path: Path) -> None:
    run(tmp_path, limit=1, facts={"model": "demo"})
    before = (tmp_path / RUN).read_bytes()
    assert len(run(tmp_path, limit=1, facts={"model": "/a/folder"})) == 1
    assert (tmp_path / RUN).read_bytes() == before
    with pytest.raises(ValueError, match="other suite: give another folder"):
        run(tmp_path, limit=1, facts={"model": "demo", "suite": "mine"})


def test_another_model_may_be_tried_after_one_with_which_all_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(heta_lens.METHODS["recency"], "explain", failing())
        assert all(record.failed for record in run(tmp_path, model=other_model()).values())
    found = run(tmp_path)
    assert not any(record.failed for record in found.values()) and len(lines(tmp_path)) == 4
    with pytest.raises(ValueError, match=r"other model \(other weights\)"):
        run(tmp_path, model=other_model())


def as_before_fingerprints(folder: Path) -> None:
    written = read_run(folder)
    del written[FINGERPRINT]
    (folder / RUN).write_text(json.dumps(written))
    kept = [json.loads(line) for line in lines(folder)]
    new = ("evaluation", "failed_at", "errors")
    old = [{name: value for name, value in one.items() if name not in new} for one in kept]
    (folder / RECORDS).write_text("".join(json.dumps(one) + "\n" for one in old))


@pytest.mark.slow
def test_a_folder_from_before_fingerprints_is_read_and_resumed_with_a_warning(half: Path) -> None:
    as_before_fingerprints(half)
    before = lines(half)
    write_report(half)
    for _ in range(2):  # what could not be known then is not known later
        with pytest.warns(UserWarning, match="whether its . records are of this model cannot be checked"):
            assert len(run(half)) == 2
    assert lines(half)[:1] == before and FINGERPRINT not in read_run(half)
    with pytest.raises(ValueError, match=r"1 of 2 records in .* are of another evaluation, with another model"):
        run(half, model=other_model())
    (half / RUN).unlink()
    with pytest.raises(ValueError, match="of a version that did not note of which evaluation"):
        run(half)


# ------------------------------------------------------------------------------------------------------- one at a time
def test_a_second_evaluation_in_a_folder_is_refused_until_the_first_has_ended(folder: Path) -> None:
    before = (folder / RECORDS).read_bytes()
    with (
        locked(folder),
        pytest.raises(ValueError, match=rf"another evaluation \(process {os.getpid()} on .*\) is writi"),
    ):
        run(folder)
    assert (folder / RECORDS).read_bytes() == before
    link = folder.with_name("link")
    link.symlink_to(folder)
    with locked(link), pytest.raises(ValueError, match="is writing into"):
        run(folder)
    assert len(run(folder)) == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has other signals")
@pytest.mark.parametrize(
    ("how", "code"),
    [
        pytest.param(signal.SIGKILL, -signal.SIGKILL, marks=pytest.mark.thorough),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.nightly),
    ],
)
def test_two_commands_on_one_folder_and_then_one_that_is_stopped(tmp_path: Path, how: int, code: int) -> None:
    words = ["evaluate", "recall", "--limit", "200", "-m", "recency", "--metrics", "f1", "--out", str(tmp_path / "run")]
    first = subprocess.Popen([sys.executable, "-c", COMMAND, *words], stderr=subprocess.PIPE, text=True)
    path = tmp_path / "run" / RECORDS
    while not (path.exists() and path.stat().st_size):
        assert first.poll() is None
        time.sleep(0.02)
    with (
        pytest.raises(ValueError, match=rf"another evaluation \(process {first.pid} on .*, since 20"),
        locked(tmp_path / "run"),
    ):
        pass
    first.send_signal(how)
    _, said = first.communicate()
    assert first.returncode == code, said
    assert (how == signal.SIGKILL) or ("interrupted: what is finished is kept" in said and "Traceback" not in said)
    with locked(tmp_path / "run"):  # which nobody has to clear away
        assert 0 < len(read_records(tmp_path / "run")) < 200


# ---------------------------------------------------------------------------------------------------------- what failed
def test_what_failed_is_done_again_when_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(heta_lens.METHODS["recency"], "explain", failing(errno.ENOMEM))
        run(tmp_path, "recency", "random")
    assert sum(bool(record.failed) for record in run(tmp_path, "recency", "random").values()) == 2
    assert len(lines(tmp_path)) == 4
    found = run(tmp_path, "recency", "random", retry_failed=True)
    assert not any(record.failed for record in found.values()) and len(lines(tmp_path)) == 6
    run(tmp_path, "recency", "random", retry_failed=True)
    assert len(lines(tmp_path)) == 6


def broken_metric(monkeypatch: pytest.MonkeyPatch, evaluator: Callable[..., Any]) -> None:
    from heta_lens.metrics import METRICS as KNOWN

    changed = {**KNOWN, "morf": KNOWN["morf"].__class__(**{**vars(KNOWN["morf"]), "evaluate": evaluator})}
    for module in ("runner", "metric_values"):
        monkeypatch.setattr(f"heta_lens.evaluation.{module}.METRICS", changed)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("how", ["raises", "nan"])
def test_a_metric_that_failed_is_done_again_and_the_others_are_kept(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken_metric(broken, failing() if how == "raises" else lambda _: {"morf": float("nan")})
        found = run(tmp_path)
    for record in found.values():
        assert record.values["morf"] is None and record.values["f1"] is not None and [*record.errors] == ["morf"]
        assert record.reasons["morf"].startswith("OSError: " if how == "raises" else "nan is no finite number")
        assert bool(record.errors["morf"]) == (how == "raises")
    again = run(tmp_path, retry_failed=True)
    for key, record in again.items():
        assert record.values["morf"] is not None and record.values["f1"] == found[key].values["f1"]
        assert not record.reasons and not record.errors
    with monkeypatch.context() as broken:  # what has been found is not lost to a later failure
        broken.setattr(heta_lens.METHODS["recency"], "explain", failing())
        assert run(tmp_path, retry_failed=True) == again


@pytest.mark.slow
@pytest.mark.parametrize("error", [AttributeError, AssertionError, NotImplementedError, KeyError, Exception])
def test_any_error_of_a_method_is_recorded_with_its_place(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explain(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(heta_lens.METHODS["recency"], "explain", explain)
    found = run(tmp_path, "recency", "random")
    for (_, method), record in found.items():
        assert bool(record.failed) == (method == "recency")
        if record.failed:
            line = explain.__code__.co_firstlineno + 1
            assert record.failed_at == f"evaluation/test_resumable_run_folder.py:{line}"
            assert record.failed == f"{error.__name__} ({record.failed_at})"
    write_report(tmp_path)


@pytest.mark.parametrize("error", [AttributeError("x"), AssertionError(), ZeroDivisionError("division by zero")])
def test_any_error_of_a_metric_is_recorded_with_its_place(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluator(_: Any) -> Any:
        raise error

    broken_metric(monkeypatch, evaluator)
    for record in run(tmp_path).values():
        assert not record.failed and record.values["f1"] is not None
        assert record.errors == {
            "morf": f"evaluation/test_resumable_run_folder.py:{evaluator.__code__.co_firstlineno + 1}"
        }
        assert type(error).__name__ in record.reasons["morf"] and record.errors["morf"] in record.reasons["morf"]


def test_an_error_in_a_library_has_the_place_in_the_method_that_called_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explain(*_: Any) -> Any:
        return torch.zeros(2) @ torch.zeros(3)

    monkeypatch.setattr(heta_lens.METHODS["recency"], "explain", explain)
    (record, *_) = run(tmp_path).values()
    assert record.failed.startswith("RuntimeError: ")
    assert record.failed_at == f"evaluation/test_resumable_run_folder.py:{explain.__code__.co_firstlineno + 1}"


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_stops_at_once_and_can_be_resumed(
    stop: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explain(*_: Any) -> Any:
        raise stop

    with monkeypatch.context() as broken:
        broken.setattr(heta_lens.METHODS["recency"], "explain", explain)
        with pytest.raises(stop):
            run(tmp_path, "random", "recency")
    assert len(lines(tmp_path)) == 1
    assert len(run(tmp_path, "random", "recency")) == 4


def test_an_interrupted_command_says_that_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def explain(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(heta_lens.METHODS["recency"], "explain", explain)
    words = ["evaluate", "recall", "--limit", "1", "-m", "random,recency", "--metrics", "f1", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 130 and "the same command resumes" in done.stderr
    assert len(lines(tmp_path)) == 1


def test_a_message_with_half_a_character_is_recorded(tmp_path: Path) -> None:
    append(tmp_path, Record("a", "recency", failed="ValueError: \ud83d is no text"))
    assert read_records(tmp_path) == [Record("a", "recency", failed="ValueError: ? is no text")]


def test_records_are_joined_metric_by_metric() -> None:
    before = Record("a", "m", values={"x": 1.0, "y": None, "z": 2.0}, reasons={"y": "why"}, errors={"y": "f:1"},
                    degenerate=["x", "z"])  # fmt: skip
    after = Record("a", "m", values={"y": 3.0, "z": None}, reasons={"z": "not"}, seconds=1.0)
    both = joined(before, after, ["y", "z"])
    assert both.values == {"x": 1.0, "y": 3.0, "z": None} and both.reasons == {"z": "not"} and not both.errors
    assert both.degenerate == ("x",) and both.seconds == 1.0
    failed = joined(both, Record("a", "m", failed="no memory", failed_at="f:2"), ["z", "w"])
    assert failed.values == {"x": 1.0, "y": 3.0, "z": None, "w": None} and not failed.failed
    assert failed.reasons == dict.fromkeys("zw", "no memory") and failed.errors == dict.fromkeys("zw", "f:2")
