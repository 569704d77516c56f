"""The database of an evaluation: the request, the prompts, and the tasks, scores and values of every method.

A folder holds one, ``run.sqlite``, which any reader of SQLite opens while the evaluation goes on::

    pandas.read_sql("select * from metrics", sqlite3.connect("run/run.sqlite"))

A worker claims all pending tasks of a prompt and renews its claims. A claim that has not been renewed for a minute
passes on, and a late result of its first owner is dropped. Resuming a run is a query for pending tasks.
"""

import json
import os
import platform
import re
import sqlite3
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, RLock, Thread
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import psutil

from heta_lens._util.files import RUN
from heta_lens._util.python import versions
from heta_lens.attribution import Attribution
from heta_lens.data.instance import Instance, record_of

Value: TypeAlias = float | int | Sequence[float | int] | None
Key: TypeAlias = tuple[str, str]  # of a prompt and a method

SCHEMA = 1  # rises when earlier versions of the library can no longer read the file
LEASE, RENEWAL = 60.0, 10.0  # seconds that a claim lasts, and between its renewals
BUSY = 60.0  # seconds of waiting for other writers
ATTEMPTS = 3  # workers that may die of a method on a prompt
POWER, PRIOR = 1.5, 0.5  # of the length that seconds grow with, before many were measured; the weight of this guess
FORM = re.compile(r"(\d+|auto)/(\d+)")
FOLDERS = "shard-*-of-*"
NUMBERS = ("SLURM_ARRAY_TASK_ID", "RANK", "SLURM_PROCID")  # variables with the number of a process
NETWORKS = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "fuse.sshfs")  # without WAL

TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE prompts (
    prompt TEXT PRIMARY KEY, number INTEGER NOT NULL, template TEXT NOT NULL, size INTEGER NOT NULL,
    tokens INTEGER, correct INTEGER, log_prob REAL
);
CREATE TABLE tasks (
    prompt TEXT NOT NULL, method TEXT NOT NULL, place INTEGER NOT NULL, state TEXT NOT NULL DEFAULT 'pending',
    worker TEXT, until REAL, attempt INTEGER NOT NULL DEFAULT 0, deaths INTEGER NOT NULL DEFAULT 0,
    reason TEXT NOT NULL DEFAULT '', raised_at TEXT NOT NULL DEFAULT '',
    seconds REAL, forwards INTEGER, backwards INTEGER, hvps INTEGER, waited REAL, PRIMARY KEY (prompt, method)
);
CREATE INDEX tasks_by_state ON tasks (state);
CREATE TABLE metrics (
    prompt TEXT NOT NULL, method TEXT NOT NULL, metric TEXT NOT NULL, value REAL, against REAL, terms TEXT,
    degenerate INTEGER NOT NULL, failed INTEGER NOT NULL, reason TEXT NOT NULL, raised_at TEXT NOT NULL,
    PRIMARY KEY (prompt, method, metric)
);
CREATE TABLE scores (
    prompt TEXT NOT NULL, method TEXT NOT NULL, position INTEGER NOT NULL, token TEXT NOT NULL,
    special INTEGER NOT NULL, score REAL NOT NULL, se REAL, gate REAL, curvature REAL, information REAL,
    PRIMARY KEY (prompt, method, position)
);
CREATE TABLE attributions (
    prompt TEXT NOT NULL, method TEXT NOT NULL, file BLOB NOT NULL, PRIMARY KEY (prompt, method)
);
"""
RESULTS = ("metrics", "scores", "attributions")
COLUMNS = ["position", "token", "special", "score", "score_se", "gate", "curvature", "information"]  # of scores


# -------------------------------------------------------------------------------------------------------------- records
@dataclass(frozen=True)
class Record:
    """The results of a method on a prompt.

    Attributes:
        values: a number per metric (the two terms of a ratio of sums), or None without a value.
        reasons: the reasons of missing values, by metric.
        errors: the file and line of the errors of metrics; empty for a value that was not finite.
        degenerate: the metrics for which the scores do not distinguish tokens.
        failed: the error of the method, which leaves no values; ``failed_at`` its file and line.
        skipped: the reason why the method refused the prompt, as a target-agnostic method refuses a contrast.
        correct: whether the explained token is the model's own prediction.
        log_prob: the log-probability of the explained token.
        backwards: all backwards, including two for every Hessian–vector product (``hvps``).
    """

    instance: str
    method: str
    template: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    degenerate: Sequence[str] = ()
    failed: str = ""
    failed_at: str = ""
    skipped: str = ""
    tokens: int = 0
    correct: bool | None = None
    log_prob: float | None = None
    seconds: float = 0.0
    forwards: int = 0
    backwards: int = 0
    hvps: int = 0

    @property
    def gradients(self) -> int:
        """The backwards outside of Hessian–vector products."""
        return self.backwards - 2 * self.hvps

    @property
    def worth(self) -> int:
        """The cost in plain forwards: a backward counts as two, and so does a Hessian–vector product."""
        return self.forwards + 2 * (self.gradients + self.hvps)

    @property
    def key(self) -> Key:
        return self.instance, self.method

    @property
    def cluster(self) -> tuple[str, str]:
        """The template; an instance without a template is a cluster of its own."""
        return self.template, "" if self.template else self.instance

    @property
    def measured(self) -> bool:
        """True if the record holds a value, or belongs to scores of an evaluation without metrics."""
        found = any(value is not None for value in self.values.values())
        return found or not (self.values or self.failed or self.skipped)


def terms(value: Value) -> tuple[float, ...]:
    """Return the numbers of a value; no numbers for a missing value."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, Sequence) else (value,)


class Claim(NamedTuple):
    """The tasks of a prompt that a worker has claimed: the attempt and the missing metrics of every method."""

    worker: str
    prompt: str
    attempts: Mapping[str, int]
    missing: Mapping[str, tuple[str, ...]]


def worker_name() -> str:
    """Name this process by machine, number and start; other processes here see from the name when the process ends."""
    process = psutil.Process()
    return f"{platform.node()}/{process.pid}/{process.create_time():.2f}"


def _is_dead(worker: str) -> bool:
    """Tell if a worker is known to have ended; unknown for workers on other machines."""
    host, process, since, *_ = worker.split("/")
    if host != platform.node():
        return False
    with suppress(psutil.NoSuchProcess):
        running = psutil.Process(int(process))
        return running.status() == psutil.STATUS_ZOMBIE or f"{running.create_time():.2f}" != since
    return True


# ------------------------------------------------------------------------------------------------------------- database
@contextmanager
def in_words(path: Path) -> Iterator[None]:
    """Say in one sentence why SQLite cannot read or write a file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        reason = str(error)
        if "locked" in reason:
            raise ValueError(
                f"another evaluation is writing into {path}, whose file system allows one writer: wait for its end, "
                "or give another folder"
            ) from None
        if "full" in reason:
            raise OSError(f"the disk of {path} is full: make room and run again; finished results are kept") from None
        if "readonly" in reason or "unable to open" in reason or "disk I/O" in reason:
            raise OSError(f"cannot write into {path} ({reason}): give a folder that can be written") from None
        raise ValueError(f"{path} holds no evaluation of heta_lens ({reason})") from None
    except sqlite3.DatabaseError as error:
        raise ValueError(f"{path} is damaged ({error}): move it away to begin again") from None


@dataclass(eq=False)
class RunDatabase:
    """The open database of an evaluation, with one connection for all threads of this process."""

    path: Path
    connection: sqlite3.Connection
    lock: RLock = field(default_factory=RLock)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Write all of a block's changes, or none."""
        with self.lock, in_words(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
            except BaseException:
                if self.connection.in_transaction:  # SQLite itself rolls back on a full disk
                    self.connection.execute("ROLLBACK")
                raise
            self.connection.execute("COMMIT")

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        with self.lock, in_words(self.path):
            return self.connection.execute(query, values).fetchall()

    @property
    def run(self) -> dict[str, Any]:
        """The request, with the fingerprint of the model and the versions of libraries."""
        meta = {name: json.loads(value) for name, value in self.rows("SELECT name, value FROM meta")}
        return {**meta.pop("request"), **meta}

    # ------------------------------------------------------------------------------------------------------------ tasks
    def check_model(self, fingerprint: Mapping[str, str]) -> None:
        """Keep the model's fingerprint, or refuse a model with another one."""
        with self.writing() as db:
            kept = self.run.get("fingerprint")
            if kept is None:
                db.execute("INSERT INTO meta VALUES ('fingerprint', ?)", [json.dumps(dict(fingerprint))])
            elif different := _different_parts(kept, fingerprint):
                raise ValueError(
                    f"{self.path} holds an evaluation with another model (other {', '.join(different)}): give another "
                    "folder, or that model"
                )

    def claim(self, worker: str, metrics: Sequence[str], *, longest_first: bool = False) -> Claim | None:
        """Claim the pending tasks of a prompt; None while no task is pending."""
        with self.writing() as db:
            for other, until in db.execute(
                "SELECT worker, min(until) FROM tasks WHERE state = 'claimed' GROUP BY worker"
            ):
                if _is_dead(other):
                    self._release(db, other, "its process ended")
                elif until < time.time():
                    self._release(db, other)
            order = "size DESC, number" if longest_first else "number"
            pending = f"SELECT prompt FROM tasks JOIN prompts USING (prompt) WHERE state = 'pending' ORDER BY {order}"
            found = db.execute(f"{pending} LIMIT 1").fetchone()
            if found is None:
                return None
            claimed = "UPDATE tasks SET state = 'claimed', worker = ?, until = ?, attempt = attempt + 1"
            db.execute(f"{claimed} WHERE prompt = ? AND state = 'pending'", [worker, time.time() + LEASE, *found])
            of_prompt = "FROM tasks WHERE prompt = ? AND worker = ? AND state = 'claimed' ORDER BY place"
            attempts = dict(db.execute(f"SELECT method, attempt {of_prompt}", [*found, worker]).fetchall())
            measured = {tuple(row) for row in db.execute("SELECT method, metric FROM metrics WHERE prompt = ?", found)}
        missing = {method: tuple(name for name in metrics if (method, name) not in measured) for method in attempts}
        return Claim(worker, found[0], attempts, missing)

    def renew(self, worker: str) -> None:
        claimed = "worker = ? AND state = 'claimed'"
        with self.writing() as db:
            db.execute(f"UPDATE tasks SET until = ? WHERE {claimed}", [time.time() + LEASE, worker])

    def release(self, worker: str, death: str = "") -> None:
        """Make a worker's claimed tasks pending again; a ``death`` counts against the method that was running."""
        with self.writing() as db:
            self._release(db, worker, death)

    def _release(self, db: sqlite3.Connection, worker: str, death: str = "") -> None:
        claimed = "worker = ? AND state = 'claimed'"
        running = "SELECT prompt, method, deaths + 1, min(place) FROM tasks"
        tasks = db.execute(f"{running} WHERE {claimed} GROUP BY prompt", [worker]).fetchall()
        for prompt, method, deaths, _ in tasks if death else ():
            db.execute("UPDATE tasks SET deaths = ? WHERE prompt = ? AND method = ?", [deaths, prompt, method])
            if deaths >= ATTEMPTS:
                reason = f"{deaths} workers, one after the other, died of this method: {death}"
                failed = "UPDATE tasks SET state = 'failed', worker = NULL, until = NULL, reason = ?"
                db.execute(f"{failed} WHERE prompt = ? AND method = ?", [reason, prompt, method])
        db.execute(f"UPDATE tasks SET state = 'pending', worker = NULL, until = NULL WHERE {claimed}", [worker])

    def commit(
        self, claim: Claim, record: Record, attribution: Attribution | None = None, waited: float | None = None
    ) -> bool:
        """Save the result of a claimed task; return False, and save nothing, if the claim has passed on.

        ``waited`` are the seconds since the claim or the result before, of the method, the metrics and all else.
        """
        key, state = record.key, "failed" if record.failed else "skipped" if record.skipped else "done"
        with self.writing() as db:
            before = db.execute("SELECT count(*) FROM metrics WHERE prompt = ? AND method = ?", key).fetchone()[0]
            if state == "failed" and before:  # a repetition failed: what was measured before stays
                missing = claim.missing[record.method]
                reasons, errors = (dict.fromkeys(missing, text) for text in (record.failed, record.failed_at))
                record = Record(*key, values=dict.fromkeys(missing), reasons=reasons, errors=errors)
                state = "done"
            ours = "prompt = ? AND method = ? AND state = 'claimed' AND worker = ? AND attempt = ?"
            ended = "UPDATE tasks SET state = ?, reason = ?, raised_at = ?, waited = ?, worker = NULL, until = NULL"
            cost = "seconds = ?, forwards = ?, backwards = ?, hvps = ?"
            why = [state, record.failed or record.skipped, record.failed_at, waited]
            costs = [record.seconds, record.forwards, record.backwards, record.hvps]
            mine = [*key, claim.worker, claim.attempts[record.method]]
            if not db.execute(f"{ended}, {cost} WHERE {ours}", [*why, *costs, *mine]).rowcount:
                return False
            known = ", ".join(f"{name} = coalesce(?, {name})" for name in ("tokens", "correct", "log_prob"))
            explained = [record.tokens or None, record.correct, record.log_prob]
            db.execute(f"UPDATE prompts SET {known} WHERE prompt = ?", [*explained, record.instance])
            if attribution is not None:
                self._write_scores(db, key, attribution)
            rows = [_metric_row(record, name) for name in record.values]
            db.executemany(f"INSERT OR REPLACE INTO metrics VALUES ({', '.join('?' * 10)})", rows)
        return True

    def _write_scores(self, db: sqlite3.Connection, key: Key, attribution: Attribution) -> None:
        frame = attribution.to_frame().reindex(columns=COLUMNS)
        rows = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
        db.execute("DELETE FROM scores WHERE prompt = ? AND method = ?", key)
        db.executemany(f"INSERT INTO scores VALUES ({', '.join('?' * 10)})", [[*key, *row] for row in rows])
        db.execute("INSERT OR REPLACE INTO attributions VALUES (?, ?, ?)", [*key, attribution.to_bytes()])

    @contextmanager
    def renewing(self, *workers: str) -> Iterator[None]:
        """Renew the claims of workers during a block, and release what is left at its end."""
        ended = Event()

        def renew() -> None:
            while not ended.wait(RENEWAL):
                for worker in workers:
                    self.renew(worker)

        thread = Thread(target=renew, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            for worker in workers:
                self.release(worker)

    # ---------------------------------------------------------------------------------------------------------- reading
    def seconds_left(self) -> float | None:
        """Predict the seconds of work that are left, one worker's, from the ended tasks; None without any.

        Seconds are fitted as a power of the length of a prompt, the same for all methods, times a factor of the method.
        """
        rows = self.rows("SELECT method, size, state, waited FROM tasks JOIN prompts USING (prompt)")
        tasks: Any = pd.DataFrame([*map(tuple, rows)], columns=["method", "size", "state", "waited"])
        done = tasks[tasks["waited"].notna() & (tasks["state"] == "done")].astype({"waited": float})
        left = tasks[tasks["state"].isin(["pending", "claimed"])]
        if not len(left):
            return 0.0
        if not len(done):
            return None
        logarithms = np.log(done[["size", "waited"]].clip(lower=1e-4))
        around = logarithms - logarithms.groupby(done["method"]).transform("mean")
        spread = float((around["size"] ** 2).sum())
        slope = (float((around["size"] * around["waited"]).sum()) + POWER * PRIOR) / (spread + PRIOR)
        factors = done["waited"].groupby(done["method"]).sum() / (done["size"] ** slope).groupby(done["method"]).sum()
        return float((left["method"].map(factors).fillna(factors.mean()) * left["size"] ** slope).sum())

    def counts(self) -> dict[str, int]:
        """Count the tasks by state."""
        return dict(map(tuple, self.rows("SELECT state, count(*) FROM tasks GROUP BY state")))

    def records(self) -> list[Record]:
        """Return the results of ended tasks, by prompt and method."""
        metrics: dict[Key, list[sqlite3.Row]] = defaultdict(list)
        for row in self.rows("SELECT * FROM metrics"):
            metrics[row["prompt"], row["method"]].append(row)
        ended = "SELECT * FROM tasks JOIN prompts USING (prompt) WHERE state IN ('done', 'failed', 'skipped')"
        tasks = self.rows(f"{ended} ORDER BY prompt, method")
        return [_record(task, metrics[task["prompt"], task["method"]]) for task in tasks]

    def explained(self) -> list[Key]:
        """Return the prompt and the method of every saved attribution, in the order of the run."""
        names = "SELECT prompt, method FROM attributions JOIN prompts USING (prompt) JOIN tasks USING (prompt, method)"
        return [(row["prompt"], row["method"]) for row in self.rows(f"{names} ORDER BY number, place")]

    def attribution(self, prompt: str, method: str) -> Attribution:
        of_task = "SELECT file FROM attributions WHERE prompt = ? AND method = ?"
        ((raw,),) = self.rows(of_task, [prompt, method])
        return Attribution.of_bytes(raw, f"{self.path}, {method} on {prompt}")


def _metric_row(record: Record, name: str) -> list[Any]:
    found = terms(record.values[name])
    value, against, *more = *found, None, None
    every = json.dumps(found) if any(term is not None for term in more) else None  # of a table's grid of settings
    why = [name in record.errors, record.reasons.get(name, ""), record.errors.get(name, "")]
    return [*record.key, name, value, against, every, name in record.degenerate, *why]


def _record(task: sqlite3.Row, metrics: Sequence[sqlite3.Row]) -> Record:
    values: dict[str, Value] = {row["metric"]: row["value"] for row in metrics}
    values |= {row["metric"]: (row["value"], row["against"]) for row in metrics if row["against"] is not None}
    values |= {row["metric"]: tuple(json.loads(row["terms"])) for row in metrics if row["terms"] is not None}
    return Record(
        instance=task["prompt"],
        method=task["method"],
        template=task["template"],
        values=values,
        reasons={row["metric"]: row["reason"] for row in metrics if row["reason"]},
        errors={row["metric"]: row["raised_at"] for row in metrics if row["failed"]},
        degenerate=tuple(row["metric"] for row in metrics if row["degenerate"]),
        failed=task["reason"] if task["state"] == "failed" else "",
        failed_at=task["raised_at"],
        skipped=task["reason"] if task["state"] == "skipped" else "",
        correct=None if task["correct"] is None else bool(task["correct"]),
        log_prob=task["log_prob"],
        seconds=task["seconds"] or 0.0,
        **{name: task[name] or 0 for name in ("tokens", "forwards", "backwards", "hvps")},
    )


# ----------------------------------------------------------------------------------------------------- opening, closing
def _connected(path: Path | str, **options: Any) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY, isolation_level=None, check_same_thread=False, **options)
    connection.row_factory = sqlite3.Row
    return connection


def allows_many_writers(folder: Path) -> bool:
    """Tell if processes can share a write-ahead log in a folder, which file systems over a network cannot."""
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    parents = folder.resolve(), *folder.resolve().parents
    kind = next((mounts[parent] for parent in parents if parent in mounts), "")
    return not kind.startswith(NETWORKS)


def _shared_journal(connection: sqlite3.Connection) -> str:
    """Set the write-ahead log; SQLite refuses this at once, without waiting, while another process sets it too."""
    latest = time.monotonic() + BUSY
    while True:
        try:
            return connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > latest:
                raise
        time.sleep(0.02)


@contextmanager
def joined(path: Path) -> Iterator[RunDatabase]:
    """Open a database for writing; at the end one file is left, which can be copied."""
    with in_words(path), closing(_connected(path)) as connection:
        if not allows_many_writers(path.parent) or _shared_journal(connection) != "wal":
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        try:
            yield RunDatabase(path, connection)
        finally:
            with suppress(sqlite3.OperationalError):  # another process has the file open, and leaves one file later
                connection.execute("PRAGMA journal_mode = DELETE")


def read_records(folder: Path) -> list[Record]:
    """Read the results in a folder, by prompt and method."""
    with reading(folder) as database:
        return database.records()


@contextmanager
def reading(folder: Path) -> Iterator[RunDatabase]:
    """Open the database of a folder, or a database's file, for reading; nothing is written or waited for."""
    path = folder / RUN if folder.is_dir() else folder
    if not path.is_file():
        if folder.is_dir() and any(folder.glob(FOLDERS)):
            raise ValueError(f"{folder} holds shards of an evaluation: heta-lens merge {folder} joins the shards")
        raise ValueError(f"{folder} holds no evaluation: heta-lens evaluate … --out {folder} makes one")
    address = path.resolve().as_uri()
    with ExitStack() as stack, in_words(path):
        connection = stack.enter_context(closing(_connected(f"{address}?mode=ro", uri=True)))
        try:
            connection.execute("SELECT count(*) FROM meta")
        except sqlite3.OperationalError:  # a read-only folder, or a writer on a file system without a shared log
            connection = stack.enter_context(closing(_connected(f"{address}?immutable=1", uri=True)))
        database = RunDatabase(path, connection)
        _check_schema(database)
        yield database


@contextmanager
def opened(
    folder: Path,
    request: Mapping[str, Any],
    instances: Sequence[tuple[int, Instance]],
    metrics: Sequence[str],
    *,
    retry_failed: bool = False,
) -> Iterator[RunDatabase]:
    """Open or make the database of an evaluation, with a task for every prompt and method.

    A database with another request is refused, but methods may be added. Prompts come with their numbers in the
    evaluation. A finished task that lacks a metric is pending again.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot write into {folder}: {error.strerror}") from None
    request = json.loads(json.dumps(request))
    with joined(folder / RUN) as database:
        with database.writing() as db:
            if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for statement in TABLES.split(";"):
                    db.execute(statement)
                made = {"schema": SCHEMA, "request": request, "versions": versions()}
                db.executemany("INSERT INTO meta VALUES (?, ?)", [(name, json.dumps(made[name])) for name in made])
            _check_schema(database)
            _check_request(database, request)
            db.execute("UPDATE meta SET value = ? WHERE name = 'request'", [json.dumps(request)])
            _add_tasks(db, [*request["methods"]], instances, metrics, retry_failed)
        yield database


def _check_schema(database: RunDatabase) -> None:
    try:
        schema = database.run["schema"]
    except (KeyError, TypeError, json.JSONDecodeError):  # of a table ``meta`` of another program
        raise ValueError(f"{database.path} holds no evaluation of heta_lens: give another folder") from None
    if schema > SCHEMA:
        raise ValueError(
            f"{database.path} is of a later version of heta_lens (schema {schema}; this one reads {SCHEMA}): upgrade"
        )


def _check_request(database: RunDatabase, request: Mapping[str, Any]) -> None:
    """Refuse another evaluation; methods may be added, and a model may have another name."""
    before, after = database.run, {"schema": SCHEMA, **request, "versions": versions()}
    changed = [name for name in _different_parts(before, after) if name not in ("model", "fingerprint")]
    if before["methods"].items() <= after["methods"].items():
        changed = [name for name in changed if name != "methods"]
    if not changed:
        return
    held = "; ".join(f"{kind}: {', '.join(before[kind])}" for kind in ("methods", "metrics") if kind in before)
    raise ValueError(
        f"{database.path} holds an evaluation with other {', '.join(changed)}: give another folder, or the whole "
        f"request of the folder ({held}), to which methods may be added"
    )


def _different_parts(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in {**old, **new} if old.get(name) != new.get(name))


def _add_tasks(
    db: sqlite3.Connection,
    methods: Sequence[str],
    instances: Sequence[tuple[int, Instance]],
    metrics: Sequence[str],
    retry_failed: bool,
) -> None:
    prompts = [(each.id, number, each.template, len(json.dumps(record_of(each)))) for number, each in instances]
    db.executemany("INSERT OR IGNORE INTO prompts (prompt, number, template, size) VALUES (?, ?, ?, ?)", prompts)
    tasks = [(each.id, method, place) for _, each in instances for place, method in enumerate(methods)]
    added = "INSERT INTO tasks (prompt, method, place) VALUES (?, ?, ?)"
    db.executemany(f"{added} ON CONFLICT DO UPDATE SET place = excluded.place", tasks)
    if retry_failed:
        db.execute("UPDATE tasks SET state = 'pending', deaths = 0 WHERE state = 'failed'")
        db.execute("DELETE FROM metrics WHERE failed")
    if metrics:
        wanted = ", ".join("?" * len(metrics))
        measured = f"SELECT count(*) FROM metrics WHERE metric IN ({wanted})"
        of_task = f"({measured} AND metrics.prompt = tasks.prompt AND metrics.method = tasks.method)"
        again = f"UPDATE tasks SET state = 'pending' WHERE state = 'done' AND {of_task} < ?"
        db.execute(again, [*metrics, len(metrics)])


# ---------------------------------------------------------------------------------------------------- shards, merging
@dataclass(frozen=True, order=True)
class Shard:
    """A part of an evaluation: every ``count``-th prompt, from the prompt number ``index`` (from 0) on."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"shard {self} does not exist: shards are counted from 0, as in 0/3, 1/3, 2/3")

    @classmethod
    def read(cls, written: str, environment: Mapping[str, str] = os.environ) -> "Shard":
        """Read ``"0/3"``, or ``"auto/3"``, for which the scheduler of the process sets a variable."""
        match = FORM.fullmatch(written)
        if match is None:
            raise ValueError(f"shard={written!r} is not of the form 0/3, nor auto/3")
        index, count = match.groups()
        if index == "auto":
            index = next((environment[name] for name in NUMBERS if name in environment), None)
            if index is None:
                raise ValueError(f"shard={written!r}, and the environment has none of {', '.join(NUMBERS)}")
        return cls(int(index), int(count))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @property
    def folder(self) -> str:
        """The name of the shard's folder inside the folder of the whole evaluation."""
        return f"shard-{self.index}-of-{self.count}"

    def size(self, total: int) -> int:
        """Return the number of prompts of the shard, out of ``total``."""
        return len(range(self.index, total, self.count))


MAY_DIFFER = {"shard", "model", "methods"}  # entries of the request that may differ between shards


def merge(folder: Path, parts: Sequence[Path] = (), *, partial: bool = False) -> int:
    """Merge shards to one evaluation in the folder, leave the shards as they are, and return the number of results.

    Merging can be repeated when more shards have finished or have more methods; a shard's result replaces a failed one.

    Args:
        folder: the folder of the evaluation.
        parts: the folders of the shards; by default the shards inside the folder.
        partial: merge although shards are missing or not finished.
    """
    folders = [*parts] or sorted(folder.glob(FOLDERS))
    if not folders:
        raise ValueError(f"{folder} holds no shards: heta-lens evaluate … --shard 0/2 --out {folder} makes the first")
    runs, results = {}, {}
    for place in folders:
        with reading(place) as database:
            runs[place], results[place] = database.run, len(database.records())
    methods, shards = _checked_shards(runs)
    if (folder / RUN).exists():
        with reading(folder) as database:
            methods = {**database.run["methods"], **methods}
    whole = runs[folders[0]]
    count = next(iter(shards)).count
    missing = [f"shard {index}/{count} is missing" for index in range(count) if Shard(index, count) not in shards]
    for shard, place in shards.items():
        if (left := shard.size(whole["instances"]) * len(methods) - results[place]) > 0:
            missing.append(f"shard {shard} lacks {left} results")
    if missing:
        if not partial:
            raise ValueError(f"{'; '.join(missing)}: run the missing work, or add --partial (partial=True)")
        warnings.warn(f"merged what there is: {'; '.join(missing)}", stacklevel=2)
    request = {
        name: value for name, value in whole.items() if name not in ("schema", "shard", "fingerprint", "versions")
    }
    with opened(folder, {**request, "methods": methods}, (), ()) as database:
        for place, run in runs.items():
            database.check_model(run["fingerprint"])
            database.connection.execute("ATTACH ? AS shard", [str(place / RUN)])
            with database.writing() as db:
                _take_results(db)
            database.connection.execute("DETACH shard")
        return len(database.records())


def _checked_shards(runs: Mapping[Path, Mapping[str, Any]]) -> tuple[dict[str, Any], dict[Shard, Path]]:
    """Return the methods of all shards, and the folders by shard; refuse shards of different evaluations."""
    methods: dict[str, Any] = {}
    shards: dict[Shard, Path] = {}
    (first, start), *_ = runs.items()
    for folder, run in runs.items():
        different = [name for name in _different_parts(start, run) if name not in MAY_DIFFER]
        if any(methods.get(label, recipe) != recipe for label, recipe in run["methods"].items()):
            different.append("methods")
        if different:
            raise ValueError(f"{folder} is of another evaluation than {first}: other {', '.join(different)}")
        shard, of = (Shard.read(each.get("shard", "0/1")) for each in (run, start))  # 0/1 is a whole evaluation
        if shard.count != of.count:
            raise ValueError(f"{folder} is shard {shard}, and {first} shard {of}")
        if shard in shards:
            raise ValueError(f"{shards[shard]} and {folder} are both shard {shard}")
        shards[shard] = folder
        methods |= run["methods"]
    return methods, shards


def _take_results(db: sqlite3.Connection) -> None:
    """Copy the results of the attached shard, except failures of tasks that did not fail here."""
    db.execute("INSERT OR REPLACE INTO prompts SELECT * FROM shard.prompts")
    kept = "SELECT 1 FROM tasks AS own WHERE own.prompt = new.prompt AND own.method = new.method AND own.state = 'done'"
    ended = "new.state = 'done' OR (new.state IN ('failed', 'skipped') AND NOT EXISTS (" + kept + "))"
    db.execute("CREATE TEMP TABLE taken AS SELECT prompt, method FROM shard.tasks AS new WHERE " + ended)
    for table in ("tasks", *RESULTS):
        taken = f"SELECT * FROM shard.{table} WHERE (prompt, method) IN (SELECT prompt, method FROM taken)"
        db.execute(f"INSERT OR REPLACE INTO {table} {taken}")
    db.execute("DROP TABLE taken")
