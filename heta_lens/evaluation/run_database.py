"""The database of an evaluation: the request, the prompts, and the tasks, scores and values of every method.

A folder holds one, ``run.sqlite``, which any reader of SQLite opens while the evaluation goes on::

    pandas.read_sql("select * from metrics", sqlite3.connect("run/run.sqlite"))

A worker claims all pending tasks of a prompt and renews its claims. A claim that has not been renewed for a minute
passes on, and a late result of its first owner is dropped. Resuming a run is a query for pending tasks.
"""

import json
import platform
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, RLock, Thread
from typing import Any, NamedTuple

import psutil

from heta_lens._util.files import RUN
from heta_lens._util.python import versions
from heta_lens.attribution import Attribution
from heta_lens.data.instance import Instance, record_of
from heta_lens.evaluation.records import Key, Record, metric_row, record_of_rows

SCHEMA = 1  # rises when earlier versions of the library can no longer read the file
LEASE, RENEWAL = 60.0, 10.0  # seconds that a claim lasts, and between its renewals
BUSY = 60.0  # seconds of waiting for other writers
ATTEMPTS = 3  # workers that may die of a method on a prompt
SHARD_FOLDERS = "shard-*-of-*"
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
COLUMNS = ["position", "token", "special", "score", "score_se", "gate", "curvature", "information"]  # of scores
COSTS = ("seconds", "forwards", "backwards", "hvps")


# --------------------------------------------------------------------------------------------------------------- claims
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
            elif different := different_parts(kept, fingerprint):
                raise ValueError(
                    f"{self.path} holds an evaluation with another model (other {', '.join(different)}): give another "
                    "folder, or that model"
                )

    def claim(
        self, worker: str, metrics: Sequence[str], methods: Sequence[str] = (), *, longest_first: bool = False
    ) -> Claim | None:
        """Claim the pending tasks of a prompt, of some methods or of all; None while none is pending."""
        pending = "state = 'pending'" + (f" AND method IN ({', '.join('?' * len(methods))})" if methods else "")
        with self.writing() as db:
            for other, until in db.execute(
                "SELECT worker, min(until) FROM tasks WHERE state = 'claimed' GROUP BY worker"
            ):
                if _is_dead(other):
                    self._release(db, other, "its process ended")
                elif until < time.time():
                    self._release(db, other)
            order = "size DESC, number" if longest_first else "number"
            first = f"SELECT prompt FROM tasks JOIN prompts USING (prompt) WHERE {pending} ORDER BY {order} LIMIT 1"
            found = db.execute(first, methods).fetchone()
            if found is None:
                return None
            claimed = "UPDATE tasks SET state = 'claimed', worker = ?, until = ?, attempt = attempt + 1"
            db.execute(f"{claimed} WHERE prompt = ? AND {pending}", [worker, time.time() + LEASE, *found, *methods])
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
        costs = [getattr(record, name) for name in COSTS]
        with self.writing() as db:
            before = db.execute("SELECT count(*) FROM metrics WHERE prompt = ? AND method = ?", key).fetchone()[0]
            if state == "failed" and before:  # a repetition failed: what was measured before stays
                missing = claim.missing[record.method]
                reasons, errors = (dict.fromkeys(missing, text) for text in (record.failed, record.failed_at))
                record = Record(*key, values=dict.fromkeys(missing), reasons=reasons, errors=errors)
                state, costs = "done", [None] * len(COSTS)
            ours = "prompt = ? AND method = ? AND state = 'claimed' AND worker = ? AND attempt = ?"
            ended = "UPDATE tasks SET state = ?, reason = ?, raised_at = ?, waited = ?, worker = NULL, until = NULL"
            cost = ", ".join(f"{name} = coalesce(?, {name})" for name in COSTS)
            why = [state, record.failed or record.skipped, record.failed_at, waited]
            mine = [*key, claim.worker, claim.attempts[record.method]]
            if not db.execute(f"{ended}, {cost} WHERE {ours}", [*why, *costs, *mine]).rowcount:
                return False
            known = ", ".join(f"{name} = coalesce(?, {name})" for name in ("tokens", "correct", "log_prob"))
            explained = [record.tokens or None, record.correct, record.log_prob]
            db.execute(f"UPDATE prompts SET {known} WHERE prompt = ?", [*explained, record.instance])
            if attribution is not None:
                self._write_scores(db, key, attribution)
            rows = [metric_row(record, name) for name in record.values]
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
        return [record_of_rows(task, metrics[task["prompt"], task["method"]]) for task in tasks]

    def explained(self) -> list[Key]:
        """Return the prompt and the method of every saved attribution, in the order of the run."""
        names = "SELECT prompt, method FROM attributions JOIN prompts USING (prompt) JOIN tasks USING (prompt, method)"
        return [(row["prompt"], row["method"]) for row in self.rows(f"{names} ORDER BY number, place")]

    def attribution(self, prompt: str, method: str) -> Attribution:
        of_task = "SELECT file FROM attributions WHERE prompt = ? AND method = ?"
        ((raw,),) = self.rows(of_task, [prompt, method])
        return Attribution.of_bytes(raw, f"{self.path}, {method} on {prompt}")


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
    """Open the database of a folder, or a database's file, for reading; nothing is written."""
    path = folder / RUN if folder.is_dir() else folder
    if not path.is_file():
        if folder.is_dir() and any(folder.glob(SHARD_FOLDERS)):
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
        check_schema(database)
        yield database


def check_schema(database: RunDatabase) -> None:
    try:
        schema = database.run["schema"]
    except (KeyError, TypeError, json.JSONDecodeError):  # of a table ``meta`` of another program
        raise ValueError(f"{database.path} holds no evaluation of heta_lens: give another folder") from None
    if schema > SCHEMA:
        raise ValueError(
            f"{database.path} is of a later version of heta_lens (schema {schema}; this one reads {SCHEMA}): upgrade"
        )


def different_parts(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in {**old, **new} if old.get(name) != new.get(name))


# ------------------------------------------------------------------------------------------------------------- resuming
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
    request = dict[str, Any](json.loads(json.dumps(request)))
    made_by = request.pop("versions", versions())  # another machine's, if a shard is taken up
    with joined(folder / RUN) as database:
        with database.writing() as db:
            if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for statement in TABLES.split(";"):
                    db.execute(statement)
                made = {"schema": SCHEMA, "request": request, "versions": made_by}
                db.executemany("INSERT INTO meta VALUES (?, ?)", [(name, json.dumps(made[name])) for name in made])
            check_schema(database)
            _check_request(database, {"schema": SCHEMA, "versions": made_by, **request})
            db.execute("UPDATE meta SET value = ? WHERE name = 'request'", [json.dumps(request)])
            _add_tasks(db, [*request["methods"]], instances, metrics, retry_failed)
        yield database


def _check_request(database: RunDatabase, after: Mapping[str, Any]) -> None:
    """Refuse another evaluation; methods may be added, and a model may have another name."""
    before = database.run
    changed = [name for name in different_parts(before, after) if name not in ("model", "fingerprint")]
    if before["methods"].items() <= after["methods"].items():
        changed = [name for name in changed if name != "methods"]
    if not changed:
        return
    held = "; ".join(f"{kind}: {', '.join(before[kind])}" for kind in ("methods", "metrics") if kind in before)
    raise ValueError(
        f"{database.path} holds an evaluation with other {', '.join(changed)}: give another folder, or the whole "
        f"request of the folder ({held}), to which methods may be added"
    )


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
