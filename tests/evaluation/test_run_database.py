"""The database of an evaluation survives failures: results are whole, workers share the tasks, and runs resume."""

import errno
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import heta_lens
from helpers.evaluating import demo
from helpers.killing import forked
from heta_lens._util.files import RUN
from heta_lens.cli import app
from heta_lens.data.suites import suite
from heta_lens.evaluation import Entry, Workers, evaluate, run_database, write_report
from heta_lens.evaluation.records import Record
from heta_lens.evaluation.run_database import Claim, RunDatabase, _shared_journal, joined, opened, reading, worker_name
from heta_lens.evaluation.runner import seconds_left
from heta_lens.evaluation.saved_scores import load_scores
from heta_lens.metrics import METRICS

HERE = "evaluation/test_run_database.py"
REQUEST = {"methods": {"one": {}, "two": {}}, "metrics": {"f1": {}}, "texts": "a"}
PROMPTS = [*enumerate(suite("recall", limit=3, facts=2))]
PATIENCE = 300  # seconds after which a test has hung


def run(folder: Path, *methods: str, limit: int = 2, model: Any = None, **options: Any) -> dict[Any, Record]:
    entries = [Entry.read(method) for method in methods or ("recency",)]
    instances = suite("recall", limit=limit, facts=2)
    evaluate(model or demo(), instances, entries, ["morf", "f1"], folder, progress=False, **options)
    with reading(folder) as database:
        return {record.key: record for record in database.records()}


def untimed(records: dict[Any, Record]) -> list[Record]:
    return [replace(record, seconds=0.0) for record in records.values()]


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
def database(tmp_path: Path) -> Iterator[RunDatabase]:
    """Three prompts and two methods, of which nothing is done."""
    with opened(tmp_path / "new", REQUEST, PROMPTS, ["f1"]) as opened_database:
        yield opened_database


def commit(database: RunDatabase, claim: Claim, method: str, **changes: Any) -> bool:
    return database.commit(claim, Record(claim.prompt, method, **{"values": {"f1": 0.5}, **changes}))


def states(database: RunDatabase) -> list[tuple[Any, ...]]:
    rows = database.rows("SELECT method, state, deaths, attempt FROM tasks ORDER BY prompt, place")
    return [tuple(row) for row in rows]


def test_nothing_is_left_of_a_finished_run(folder: Path, database: RunDatabase) -> None:
    assert seconds_left(database) is None  # nothing is known yet
    with reading(folder) as finished:
        assert seconds_left(finished) == 0


# ------------------------------------------------------------------------------------------------------------ contents
def test_one_line_of_pandas_reads_a_run_and_a_copy_of_it(folder: Path, tmp_path: Path) -> None:
    assert os.listdir(folder) == [RUN]
    copy = shutil.copy(folder / RUN, tmp_path / "copy.sqlite")
    with closing(sqlite3.connect(copy)) as connection:
        values = pd.read_sql("SELECT * FROM metrics", connection)
        scores = pd.read_sql("SELECT * FROM scores", connection)
    assert len(values) == 4 and values["value"].notna().all()
    saved = load_scores(folder)
    assert scores["score"].tolist() == [score for each in saved for score in each.scores.tolist()]
    assert scores["token"].tolist() == [token for each in saved for token in each.tokens]


def test_a_finished_run_repeats_nothing_and_takes_more_methods(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run(folder)
    after = run(folder, "random", "recency")
    assert {key: after[key] for key in before} == before and len(after) == 4
    monkeypatch.setattr(heta_lens.METHODS["recency"], "explain", None)
    assert run(folder, "random", "recency") == after


# --------------------------------------------------------------------------------------------------------------- claims
def test_a_worker_claims_all_tasks_of_a_prompt_and_no_other_worker_gets_them(database: RunDatabase) -> None:
    first, second = (database.claim(f"here/{number}/0", ["f1"]) for number in (1, 2))
    assert first is not None and second is not None
    assert (first.prompt, second.prompt) == (PROMPTS[0][1].id, PROMPTS[1][1].id)
    assert first.missing == {"one": ("f1",), "two": ("f1",)}
    assert commit(database, first, "one") and not commit(database, first, "one")
    assert commit(database, first, "two", failed="ValueError: no") and database.counts() == {
        "claimed": 2, "done": 1, "failed": 1, "pending": 2,
    }  # fmt: skip


def test_a_worker_leaves_methods_that_it_does_not_have_to_others(tmp_path: Path) -> None:
    """A second command may add methods to a folder while the first is at work."""
    with opened(tmp_path, REQUEST, PROMPTS, ["f1"]) as database:
        claim = database.claim(worker_name(), ["f1"], ["two"])
        assert claim is not None and [*claim.missing] == ["two"]
        rest = [database.claim(worker_name(), ["f1"], ["two"]) for _ in PROMPTS]
        assert rest[-1] is None and database.counts() == {"claimed": 3, "pending": 3}


def test_an_expired_claim_passes_on_and_a_late_result_is_dropped(
    database: RunDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as short:
        short.setattr(run_database, "LEASE", -1.0)
        late = database.claim("elsewhere/1/0", ["f1"])
    again = database.claim("elsewhere/2/0", ["f1"])
    assert late is not None and again is not None and again.prompt == late.prompt
    assert not commit(database, late, "one") and commit(database, again, "one", values={"f1": 1.0})
    assert states(database)[:2] == [("one", "done", 0, 2), ("two", "claimed", 0, 2)]  # not known to be dead
    (value,) = database.rows("SELECT value FROM metrics")
    assert value[0] == 1.0


def test_a_renewed_claim_stays(database: RunDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_database, "RENEWAL", 0.05)
    with monkeypatch.context() as short:
        short.setattr(run_database, "LEASE", -1.0)
        mine = database.claim("elsewhere/1/0", ["f1"])
    with database.renewing("elsewhere/1/0"):
        hang = time.monotonic() + PATIENCE
        while database.rows("SELECT min(until) FROM tasks WHERE state = 'claimed'")[0][0] < time.time():
            assert time.monotonic() < hang, "the claim is not renewed"
            time.sleep(0.01)
        other = database.claim("elsewhere/2/0", ["f1"])
        assert mine is not None and other is not None and other.prompt != mine.prompt
    assert "pending" in dict.fromkeys(row[1] for row in states(database)[:2])  # released at the end


def test_three_deaths_of_a_method_make_it_fail_and_others_go_on(database: RunDatabase) -> None:
    dead = "/".join([worker_name().split("/")[0], str(2**22 + 5), "0"])  # no such process
    for _ in range(3):
        claim = database.claim(dead, ["f1"])
        assert claim is not None and [*claim.attempts] == ["one", "two"]
    last = database.claim(worker_name(), ["f1"])
    assert last is not None and [*last.attempts] == ["two"]
    (failed,) = database.records()
    assert failed.failed.startswith("3 workers, one after the other, died of this method: its process ended")


# ------------------------------------------------------------------------------------------------------------- refusals
def other_model() -> Any:
    model = heta_lens.load_demo_model()
    with torch.no_grad():
        next(model.parameters())[5, 5] += 1e-3
    return model


OTHERS: dict[str, Callable[[Path], Any]] = {
    r"another model \(other weights\)": lambda folder: run(folder, "random", "recency", model=other_model()),
    "other instances, texts": lambda folder: run(folder, limit=3),
    "other methods: .*methods: recency; metrics: morf, f1": lambda folder: run(folder, "random"),
    "other metrics": lambda folder: evaluate(demo(), suite("recall", limit=2, facts=2), "recency", ["morf"], folder),
    "other suite": lambda folder: run(folder, facts={"suite": "mine"}),
}


@pytest.mark.parametrize("message", OTHERS)
def test_another_evaluation_is_refused_with_the_difference(message: str, folder: Path) -> None:
    before = untimed(run(folder))
    with pytest.raises(ValueError, match=message):
        OTHERS[message](folder)
    with reading(folder) as database:
        assert untimed({record.key: record for record in database.records()}) == before


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "is damaged": lambda file: file.write_bytes(b"my notes, which are no database " * 9),
    "is damaged|holds no evaluation": lambda file: file.write_bytes(file.read_bytes()[:4096]),
    "of a later version of heta_lens": lambda file: altered(file, "UPDATE meta SET value = '99' WHERE name = 'schema'"),
    "holds no evaluation of heta_lens": lambda file: (file.unlink(), altered(file, "CREATE TABLE notes (note)")),
    "sqlite holds no evaluation of heta_lens: gi": lambda file: altered(
        file, "DELETE FROM meta WHERE name = 'request'"
    ),
    "sqlite holds no evaluation of heta_lens: g": lambda file: altered(file, "UPDATE meta SET value = 'v1'"),
}


def altered(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize("message", DAMAGES)
def test_damaged_and_foreign_files_are_refused_and_left_alone(message: str, folder: Path) -> None:
    DAMAGES[message](folder / RUN)
    before = (folder / RUN).read_bytes()
    for use in (run, write_report, load_scores):
        with pytest.raises(ValueError, match=message):
            use(folder)
    assert (folder / RUN).read_bytes()[100:] == before[100:] and os.listdir(folder) == [RUN]  # after SQLite's header


@pytest.mark.thorough
def test_a_full_disk_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connected = run_database._connected

    def small(path: Any, **options: Any) -> sqlite3.Connection:
        connection = connected(path, **options)
        connection.execute("PRAGMA max_page_count = 40")
        return connection

    with monkeypatch.context() as full:
        full.setattr(run_database, "_connected", small)
        with pytest.raises(OSError, match=r"the disk of .*run\.sqlite is full: make room and run again"):
            run(tmp_path, "recency", "leave_one_out", limit=9)
    with reading(tmp_path) as database:
        kept = {record.key: record for record in database.records()}
    assert 0 < len(kept) < 18
    again = run(tmp_path, "recency", "leave_one_out", limit=9)
    assert len(again) == 18 and {key: again[key] for key in kept} == kept


@pytest.mark.skipif(not hasattr(os, "fork") or os.geteuid() != 0, reason="takes the place of another user")
def test_a_folder_that_cannot_be_written_is_read_and_refused_by_name(folder: Path) -> None:
    with TemporaryDirectory(dir="/tmp") as place:
        readable = Path(shutil.copytree(folder, Path(place) / "run"))
        for path, mode in ((readable / RUN, 0o444), (readable, 0o555), (Path(place), 0o755)):
            path.chmod(mode)
        pid = os.fork()
        if not pid:
            os.setuid(65534)
            try:
                with reading(readable) as database:
                    assert len(database.records()) == 2
                with pytest.raises(OSError, match=r"cannot write into .*run"), opened(readable, REQUEST, [], []):
                    pass
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    file = folder / "file"
    file.touch()
    with pytest.raises(OSError, match=r"cannot write into .*file: File exists"):
        run(file)
    with pytest.raises(OSError, match=r"cannot write into .*below: Not a directory"):
        run(file / "below")


def test_a_file_system_without_a_shared_log_takes_one_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_database, "BUSY", 0.1)
    monkeypatch.setattr(run_database, "allows_many_writers", lambda _: False)
    monkeypatch.setattr("heta_lens.evaluation.runner.allows_many_writers", lambda _: False)
    with pytest.raises(ValueError, match="over a network, where only one process can write: give --workers 1"):
        run(tmp_path, model="demo", workers=Workers(2))
    with opened(tmp_path / "o", REQUEST, PROMPTS, ["f1"]) as database:
        claim = database.claim(worker_name(), ["f1"])
        assert claim is not None and commit(database, claim, "one")
        with pytest.raises(ValueError, match=r"another evaluation is writing into .* allows one writer"):
            opened(tmp_path / "o", REQUEST, PROMPTS, ["f1"]).__enter__()
        with reading(tmp_path / "o") as other:
            assert [record.method for record in other.records()] == ["one"]
    assert os.listdir(tmp_path / "o") == [RUN]


# ------------------------------------------------------------------------------------------------------ several drivers
def test_a_journal_that_another_process_sets_is_set_after_it(tmp_path: Path) -> None:
    class Busy(sqlite3.Connection):
        refusals = 3

        def execute(self, *args: Any) -> sqlite3.Cursor:
            if "WAL" in args[0] and self.refusals:
                self.refusals -= 1
                raise sqlite3.OperationalError("database is locked")
            return super().execute(*args)

    with closing(sqlite3.connect(tmp_path / RUN, factory=Busy)) as connection:
        assert _shared_journal(connection) == "wal"


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
def test_a_database_is_made_once_by_whoever_comes_first(tmp_path: Path) -> None:
    def make(number: int) -> None:
        with opened(tmp_path / str(number), REQUEST, PROMPTS, ["f1"]) as database:
            assert database.counts() == {"pending": 6}

    for number in range(20):
        pids = [forked(lambda: make(number)) for _ in range(3)]  # noqa: B023
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
def test_two_runs_in_one_folder_share_the_work(tmp_path: Path) -> None:
    demo()
    methods = "leave_one_out", "random", "recency"
    pair = [forked(lambda: run(tmp_path / "both", *methods, limit=8)) for _ in range(2)]
    assert [os.waitpid(pid, 0)[1] for pid in pair] == [0, 0]
    with reading(tmp_path / "both") as database:
        assert {row[0] for row in database.rows("SELECT attempt FROM tasks")} == {1}
        both = {record.key: record for record in database.records()}
    assert untimed(both) == untimed(run(tmp_path / "one", *methods, limit=8))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
def test_the_prompt_of_a_worker_that_hangs_passes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_database, "LEASE", 2.0)
    monkeypatch.setattr(run_database, "RENEWAL", 0.2)
    with opened(tmp_path, REQUEST, PROMPTS, ["f1"]):
        pass

    def hanging() -> None:
        with joined(tmp_path / RUN) as database, database.renewing(name := worker_name()):
            claim = database.claim(name, ["f1"])
            assert claim is not None
            os.kill(os.getpid(), signal.SIGSTOP)
            assert not commit(database, claim, "one")  # too late

    pid = forked(hanging)
    os.waitpid(pid, os.WUNTRACED)
    with joined(tmp_path / RUN) as database:
        seen, hang = set(), time.monotonic() + PATIENCE
        while len(seen) < 3:
            assert time.monotonic() < hang, "the prompt does not pass on"
            if claim := database.claim(worker_name(), ["f1"]):
                seen.add(claim.prompt)
                assert commit(database, claim, "one") and commit(database, claim, "two")
            time.sleep(0.1)
        os.kill(pid, signal.SIGCONT)
        assert os.waitpid(pid, 0)[1] == 0
        assert database.counts() == {"done": 6} and {row[2] for row in states(database)} == {0}


# ------------------------------------------------------------------------------------------------------------- failures
def failing(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def break_metric(monkeypatch: pytest.MonkeyPatch, evaluator: Callable[..., Any]) -> None:
    broken = METRICS["morf"].__class__(**{**vars(METRICS["morf"]), "evaluate": evaluator})
    for module in ("runner", "workers"):
        monkeypatch.setattr(f"heta_lens.evaluation.{module}.METRICS", {**METRICS, "morf": broken})


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("how", ["raises", "nan"])
def test_a_failed_metric_is_repeated_and_other_metrics_are_kept(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        break_metric(broken, failing if how == "raises" else lambda _: {"morf": float("nan")})
        found = run(tmp_path)
    for record in found.values():
        assert record.values["morf"] is None and record.values["f1"] is not None and [*record.errors] == ["morf"]
        assert record.reasons["morf"].startswith("OSError: " if how == "raises" else "nan is no finite number")
        assert record.errors["morf"].startswith(f"{HERE}:") == (how == "raises")
    again = run(tmp_path, retry_failed=True)
    for key, record in again.items():
        assert record.values["morf"] is not None and record.values["f1"] == found[key].values["f1"]
        assert not record.reasons and not record.errors
    with monkeypatch.context() as broken:
        broken.setattr(heta_lens.METHODS["recency"], "explain", failing)
        assert run(tmp_path, retry_failed=True) == again


def test_a_repetition_that_fails_leaves_the_cost_of_what_was_measured(tmp_path: Path) -> None:
    claims = []
    for retry_failed in (False, True):
        with opened(tmp_path, REQUEST, PROMPTS, ["f1", "morf"], retry_failed=retry_failed) as database:
            claim = database.claim(worker_name(), ["f1", "morf"])
            assert claim is not None
            claims.append(claim.prompt)
            if retry_failed:
                assert commit(database, claim, "one", values={}, failed="ValueError: no")
            else:
                values = {"f1": 0.5, "morf": None}
                assert commit(database, claim, "one", values=values, errors={"morf": "a:1"}, seconds=5.0, forwards=100)
            (found,) = database.records()
    assert claims[0] == claims[1] and (found.seconds, found.forwards) == (5.0, 100)
    assert found.values == {"f1": 0.5, "morf": None} and found.reasons["morf"] == "ValueError: no"


def test_a_failed_method_is_recorded_with_its_place_and_repeated_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explain(*_: Any) -> Any:
        return torch.zeros(2) @ torch.zeros(3)

    with monkeypatch.context() as broken:
        broken.setattr(heta_lens.METHODS["recency"], "explain", explain)
        for (_, method), record in run(tmp_path, "recency", "random").items():
            assert bool(record.failed) == (method == "recency")
            if record.failed:
                assert record.failed_at == f"{HERE}:{explain.__code__.co_firstlineno + 1}"
                assert record.failed.startswith("RuntimeError: ") and record.failed.endswith(f"({record.failed_at})")
    assert sum(bool(record.failed) for record in run(tmp_path, "recency", "random").values()) == 2
    assert not any(record.failed for record in run(tmp_path, "recency", "random", retry_failed=True).values())


def test_an_interrupt_stops_at_once_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def explain(*_: Any) -> Any:
        raise KeyboardInterrupt

    words = ["evaluate", "recall", "--limit", "2", "-m", "random,recency", "--metrics", "f1", "--out", str(tmp_path)]
    with monkeypatch.context() as broken:
        broken.setattr(heta_lens.METHODS["recency"], "explain", explain)
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 130 and "the same command resumes" in done.stderr
    with reading(tmp_path) as database:
        assert database.counts() == {"done": 1, "pending": 3}  # no claim is left
    assert CliRunner().invoke(app, words).exit_code == 0
    with reading(tmp_path) as database:
        assert database.counts() == {"done": 4}
