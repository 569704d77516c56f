"""The folder of an evaluation: request, records, lock, resuming, and merging of shards.

``run.json`` holds the request and the fingerprint of the model. ``records.jsonl`` holds a `Record` per line, in the
order in which the records were finished, and ``scores.jsonl`` the scores. Reading skips lines that are no records,
warns about the lines, and changes nothing. Resuming moves such lines to ``records.rejected.jsonl`` and repeats their
work. A record names its evaluation, so that a folder without ``run.json`` can be resumed too.
"""

import json
import os
import platform
import re
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from errno import ENOLCK, ENOSYS, ENOTSUP
from functools import partial
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import psutil
from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from heta_lens._util.files import brief, parse_json, read_text, write_atomically
from heta_lens._util.options import check_fields, check_types
from heta_lens._util.python import versions
from heta_lens.evaluation.json_lines import JsonLinesFile
from heta_lens.evaluation.saved_scores import SCORES, PackedRow, ScoreRow, load_scores, score_lines
from heta_lens.evaluation.statistics import AGGREGATES

Item = TypeVar("Item")
Value: TypeAlias = float | int | Sequence[float | int] | None
Metrics: TypeAlias = Mapping[str, Mapping[str, Any]]
Key: TypeAlias = tuple[str, str]  # of an instance and a method

RUN, RECORDS = "run.json", "records.jsonl"
FINGERPRINT = "fingerprint"
SCHEMA = 1  # rises when earlier versions of the library can no longer read a folder
ROUNDING = 1e-4  # relative distance beyond the bounds of a metric that single precision explains

# --------------------------------------------------------------------------------------------------------------- shards
FORM = re.compile(r"(\d+|auto)/(\d+)")
FOLDERS = "shard-*-of-*"
STEP = "SLURM_ARRAY_TASK_STEP"
SCHEDULERS = (  # environment variables: the number of the process, the count, and the first number
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"),
    ("RANK", "WORLD_SIZE", ""),
    ("SLURM_PROCID", "SLURM_NTASKS", ""),
)


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
        """Read ``"0/3"``, or ``"auto/3"`` or ``"auto"``, for which the scheduler of the process sets variables."""
        if written == "auto":
            return cls._scheduled(environment)
        match = FORM.fullmatch(written)
        if match is None:
            raise ValueError(f"shard={written!r} is not of the form 0/3, nor auto/3, nor auto")
        index, count = match.groups()
        if index == "auto":
            names = [name for name, _, _ in SCHEDULERS]
            if not (known := [name for name in names if name in environment]):
                raise ValueError(f"shard='auto/…', and the environment has none of {', '.join(names)}")
            return cls(_number(environment, known[0]), int(count))
        return cls(int(index), int(count))

    @classmethod
    def _scheduled(cls, environment: Mapping[str, str]) -> "Shard":
        for name, count, first in SCHEDULERS:
            if name in environment and count in environment:
                number, total = _number(environment, name), _number(environment, count)
                begin = _number(environment, first) if first in environment else 0
                step = _number(environment, STEP) if first and STEP in environment else 1
                index, between = divmod(number - begin, step)
                if between or not 0 <= index < total or (total == 1 and begin):
                    raise ValueError(
                        f"shard='auto', and number {number} in an array of {total} jobs is only a part of the shards: "
                        "give the count, as auto/16, and numbers from 0"
                    )
                return cls(index, total)
        names = "; ".join(f"{name} and {count}" for name, count, _ in SCHEDULERS)
        raise ValueError(f"shard='auto', and the environment has none of these: {names}")

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @property
    def folder(self) -> str:
        """The name of the shard's folder inside the folder of the whole evaluation."""
        return f"shard-{self.index}-of-{self.count}"

    def size(self, total: int) -> int:
        """Return the number of prompts of the shard, out of ``total``."""
        return len(range(self.index, total, self.count))

    def of(self, items: list[Item]) -> list[Item]:
        return items[self.index :: self.count]


def _number(environment: Mapping[str, str], name: str) -> int:
    if not environment[name].isdecimal():
        raise ValueError(f"shard='auto', and the environment has {name}={environment[name]!r}, which is no number")
    return int(environment[name])


# -------------------------------------------------------------------------------------------------------------- records
@dataclass(frozen=True)
class Record:
    """The results of a method on an instance.

    Attributes:
        values: a number per metric (the two terms of a ratio of sums), or None without a value.
        reasons: the reasons of missing values, by metric.
        degenerate: the metrics for which the scores do not distinguish tokens.
        failed: the error of the method, which leaves no values.
        correct: whether the explained token is the model's own prediction.
        backwards: all backwards, including two for every Hessian–vector product (``hvps``).
        failed_at: the file and line of the error.
        errors: the file and line of the errors of metrics; empty for a value that was not finite.
        evaluation: the identity of the evaluation (prompts, metrics, model) and of the method with its options.
        log_prob: the log-probability of the explained token.
        skipped: the reason why the method refused the instance, as a target-agnostic method refuses a contrast.
    """

    instance: str
    method: str
    template: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    degenerate: Sequence[str] = ()
    failed: str = ""
    tokens: int = 0
    correct: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    forwards: int = 0
    backwards: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    failed_at: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)
    evaluation: str = ""
    hvps: int = 0
    log_prob: float | None = None
    skipped: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "degenerate", tuple(self.degenerate))  # a list in JSON
        for name, value in self.values.items():
            if not all(map(isfinite, terms(value))):
                raise ValueError(
                    f"{name} of {self.method!r} on {self.instance!r} is {value!r}: "
                    "a value must be finite, or None with a reason in reasons"
                )

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
    def measured(self) -> bool:
        """True if the record holds a value, or belongs to scores of an evaluation without metrics."""
        found = any(value is not None for value in self.values.values())
        return found or not (self.values or self.failed or self.skipped)


def terms(value: Value) -> tuple[float, ...]:
    """Return the numbers of a value; no numbers for a missing value."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, Sequence) else (value,)


def read_records(folder: Path) -> list[Record]:
    """Read the valid records, sorted by instance and method; the last of several records of a pair counts.

    Lines that are no records are skipped, with a warning that counts the lines and describes the first.
    """
    latest = {record.key: record for record in _records(folder).read()}
    return [latest[key] for key in sorted(latest)]


def append(folder: Path, record: Record) -> None:
    """Append a record durably: the record is on the disk when the function returns, whole or not at all."""
    _records(folder).append(asdict(record))


def repair(folder: Path) -> int:
    """Move lines that are no records to ``records.rejected.jsonl``, drop a torn last line, and return the bytes."""
    return _records(folder).repair()


def _records(folder: Path) -> JsonLinesFile[Record]:
    try:
        metrics = read_run(folder).get("metrics", {})
    except (ValueError, OSError):
        metrics = {}
    return JsonLinesFile(folder / RECORDS, partial(_record, metrics))


def _record(metrics: Metrics, values: Mapping[str, Any]) -> Record:
    """Read a record, whose values must be within the bounds of the metrics in ``run.json``."""
    check_fields(Record, values)
    record = Record(**values)
    for name in ("tokens", "seconds", "forwards", "backwards", "hvps"):
        if getattr(record, name) < 0:
            raise ValueError(f"its {name} is {getattr(record, name)}, and must be at least 0")
    if record.log_prob is not None and record.log_prob > 0:
        raise ValueError(f"its log_prob is {record.log_prob}, and must be at most 0")
    for name, value in record.values.items():
        if name in metrics and value is not None:
            _check_value(name, value, metrics[name])
    return record


def _check_value(name: str, value: Value, metric: Mapping[str, Any]) -> None:
    """Refuse a value with another number of terms than the metric has, or beyond the bounds of the metric."""
    aggregate = metric.get("aggregate") or "mean"
    if aggregate not in AGGREGATES:
        return
    numbers, count = terms(value), AGGREGATES[aggregate].terms
    if len(numbers) != count:
        raise ValueError(f"its {name} is {brief(value)}, and must be {count} number{'s' if count > 1 else ''}")
    if aggregate == "log_ratio" and min(numbers) < 0:
        raise ValueError(f"its {name} is {brief(value)}, and its two numbers must be at least 0")
    for end, sign in (("low", 1), ("high", -1)) if aggregate == "mean" else ():
        bound = metric.get(end)
        if bound is not None and sign * (numbers[0] - bound) < -ROUNDING * max(1, abs(bound)):
            raise ValueError(f"its {name} is {brief(value)}, beyond the {end} bound {bound:g}")


# ------------------------------------------------------------------------------------------------------------- requests
RUN_TYPES = {
    "methods": Mapping[str, Mapping[str, Any]],
    "metrics": Mapping[str, Mapping[str, Any]],
    "instances": int,
    "texts": str,
    "versions": Mapping[str, Any] | None,
    "suite_options": Mapping[str, Any] | None,
    "fingerprint": Mapping[str, str] | None,
    "shard": str | None,
    "schema": int | None,
}
METHOD_TYPES = {"method": str, "options": Mapping[str, Any] | None}
METRIC_TYPES = {
    **dict.fromkeys(("title", "cost", "variant", "source", "better", "aggregate"), str | None),
    **dict.fromkeys(("low", "high"), float | None),
    "needs": Sequence[str],
}


class LaterSchema(ValueError):
    """A folder that a later version of the library wrote."""


def read_run(folder: Path) -> dict[str, Any]:
    """Read the request of an evaluation from ``run.json``."""
    path = folder / RUN
    if not os.path.lexists(path):
        if any(folder.glob(FOLDERS)):
            raise ValueError(f"{folder} holds shards of an evaluation: heta-lens merge {folder} joins the shards")
        raise ValueError(f"{folder} holds no evaluation: heta-lens evaluate … --out {folder} makes one")
    try:
        return _checked_run(parse_json(read_text(path)))
    except LaterSchema as error:
        raise LaterSchema(f"{path} {error}") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): begin again in another folder") from None


def write_run(folder: Path, run: Mapping[str, Any]) -> None:
    write_atomically(folder / RUN, json.dumps(run, ensure_ascii=False, indent=1) + "\n")


def _checked_run(run: Any) -> dict[str, Any]:
    if not isinstance(run, dict):
        raise TypeError(f"it is {brief(run)}, and must be an object")
    check_types(RUN_TYPES, run)
    if (schema := run.get("schema") or 0) > SCHEMA:
        raise LaterSchema(f"is of a later version of heta_lens (schema {schema}; this version reads {SCHEMA}): upgrade")
    for label, method in run.get("methods", {}).items():
        _check_part(f"the method {brief(label)}", METHOD_TYPES, {"method": None, **method})
    for name, metric in run.get("metrics", {}).items():
        _check_part(f"the metric {brief(name)}", METRIC_TYPES, metric)
    return run


def _check_part(part: str, types: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    try:
        check_types(types, values)
    except TypeError as error:
        raise TypeError(f"{part}: {error}") from None


# ----------------------------------------------------------------------------------------------------------------- lock
# The operating system releases the lock when the process ends. On a file system without locks, a file stands for the
# lock. A process on the same machine takes the file over if the process of the file has ended; nobody can know that of
# a process on another machine.
LOCK, SOFT_LOCK, HOLDER = ".lock", ".lock-file", ".lock-holder"
NO_LOCKS = {ENOLCK, ENOTSUP, ENOSYS}  # errors of file systems without locks
PATIENCE = 2.0  # seconds until a process that has taken a lock has written its name


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock."""

    process: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}, since {self.since}"

    @property
    def may_live(self) -> bool:
        return self.host != platform.node() or psutil.pid_exists(self.process)

    @classmethod
    def me(cls) -> "Holder":
        return cls(os.getpid(), platform.node(), datetime.now().astimezone().isoformat(" ", "seconds"))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing into a folder."""
    with _writing_into(folder):
        lock = _acquired(folder)
    try:
        with suppress(OSError):  # only refusals of other processes read the name
            write_atomically(folder / HOLDER, json.dumps(asdict(Holder.me())))
        yield
    finally:
        with suppress(OSError):
            (folder / HOLDER).unlink()
        lock.release()


@contextmanager
def _writing_into(folder: Path) -> Iterator[None]:
    """Name the folder in an error of the operating system."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or 0, f"cannot write into {folder}: {error.strerror or error}") from error


def _acquired(folder: Path) -> BaseFileLock:
    try:
        return _taken(FileLock(folder / LOCK), folder)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    warnings.warn(
        f"the file system of {folder} has no locks: the file {SOFT_LOCK} stands for a lock. If the process ends on "
        "another machine without removing the file, remove the file yourself",
        stacklevel=2,
    )
    return _taken(SoftFileLock(folder / SOFT_LOCK), folder)


def _taken(lock: BaseFileLock, folder: Path) -> BaseFileLock:
    try:
        lock.acquire(blocking=False)
    except Timeout:
        holder = _holder(folder)
        name = f" ({holder})" if holder else ""
        raise ValueError(
            f"another evaluation{name} is writing into {folder}: wait for its end, or give another folder"
        ) from None
    return lock


def _holder(folder: Path) -> Holder | None:
    """Read the holder of the lock as soon as it is written; a file left by a dead process does not count."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with suppress(OSError, ValueError, TypeError):
            holder = Holder(**json.loads((folder / HOLDER).read_text(encoding="utf-8")))
            if holder.may_live:
                return holder
        time.sleep(0.01)
    return None


# ------------------------------------------------------------------------------------------------------------- resuming
OF_MODEL = {"model", FINGERPRINT, "versions"}
NOT_IDENTITY = {"methods", "model", "shard", "schema"}  # entries that may differ between records of one evaluation


@dataclass(frozen=True)
class RunFolder:
    """A folder that is open for an evaluation.

    Attributes:
        stamps: the ``evaluation`` of new records, by the labels of methods.
        records: the existing records.
        scored: the instances and methods with scores, if the evaluation has no metrics.
    """

    path: Path
    stamps: Mapping[str, str]
    records: dict[Key, Record]
    retry_failed: bool = False
    scored: Collection[Key] = ()

    def left(self, instance: str, metrics: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the missing metrics of an instance, by the labels of methods that are not finished."""
        left = {label: self._left(instance, label, metrics) for label in self.stamps}
        return {label: names for label, names in left.items() if names is not None}

    def _left(self, instance: str, label: str, metrics: Sequence[str]) -> tuple[str, ...] | None:
        """Return the missing metrics of a method: no metrics if only scores are missing, None if nothing is missing."""
        record = self.records.get((instance, label))
        if record is None or record.evaluation != self.stamps[label]:
            return tuple(metrics)
        if record.failed:
            return tuple(metrics) if self.retry_failed else None
        if record.skipped:
            return None
        if not metrics and record.key not in self.scored:
            return ()
        again = record.errors if self.retry_failed else ()
        return tuple(name for name in metrics if name not in record.values or name in again) or None

    def append(self, record: Record, metrics: Sequence[str], scores: ScoreRow | None = None) -> None:
        """Save the values of these metrics, beside the record's values of other metrics, and the scores."""
        stamp = self.stamps[record.method]
        if scores is not None:
            score_lines(self.path).append(replace(scores, evaluation=stamp).flat())
        before = self.records.get(record.key)
        if before is not None and not before.failed:
            record = joined(before, record, metrics)
        self.records[record.key] = replace(record, evaluation=stamp)
        append(self.path, self.records[record.key])


def joined(before: Record, after: Record, metrics: Collection[str]) -> Record:
    """Join the values of these metrics in ``after`` with the values of other metrics in ``before``."""
    if after.failed:
        return replace(
            before,
            values={**before.values, **dict.fromkeys(metrics)},
            reasons={**before.reasons, **dict.fromkeys(metrics, after.failed)},
            errors={**before.errors, **dict.fromkeys(metrics, after.failed_at)},
        )

    def others(by_name: Mapping[str, str]) -> dict[str, str]:
        return {name: text for name, text in by_name.items() if name not in metrics}

    return replace(
        after,
        values={**before.values, **after.values},
        reasons={**others(before.reasons), **after.reasons},
        errors={**others(before.errors), **after.errors},
        degenerate=(*(name for name in before.degenerate if name not in metrics), *after.degenerate),
    )


@contextmanager
def opened(
    folder: Path,
    request: Mapping[str, Any],
    methods: Metrics,
    model: Mapping[str, str],
    *,
    retry_failed: bool = False,
) -> Iterator[RunFolder]:
    """Open a folder to write records into; other processes cannot write into the folder until the block ends.

    Args:
        folder: the folder; it is made if it does not exist.
        request: the content of ``run.json``. A folder of another evaluation is refused.
        methods: the method and the options of every label.
        model: the model's `fingerprint`.
        retry_failed: repeat methods and metrics that failed.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: give a folder to keep the evaluation in")
    run = json.loads(json.dumps({"schema": SCHEMA, **request, FINGERPRINT: dict(model), "versions": versions()}))
    identity = _digest({name: value for name, value in run.items() if name not in NOT_IDENTITY})
    stamps = {label: f"{identity}-{_digest(method)}" for label, method in methods.items()}
    with _writing_into(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # repair warns of damaged lines
            records = read_records(folder)
        before = _run_before(folder, records)
        changed = _changed(before or run, run)
        if before is None:
            _check_records_without_run(folder, run, stamps, records)
        elif changed and changed <= OF_MODEL and not any(record.measured for record in records):
            records = []  # nothing was measured with the other model
        elif changed:
            raise ValueError(_refusal(folder, before, run, changed))
        else:
            _check_records(folder, stamps, records)
            run |= {name: before[name] for name in ("model",) if name in before}
        if json.dumps(run) != json.dumps(before):  # the order of the methods counts
            write_run(folder, run)
        repair(folder)
        score_lines(folder).repair()
        scored = {row[:2] for row in score_lines(folder).read()} if not request.get("metrics") else set()
        yield RunFolder(folder, stamps, {record.key: record for record in records}, retry_failed, scored)


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _run_before(folder: Path, records: Sequence[Record]) -> dict[str, Any] | None:
    """Read ``run.json``; None without a request, or with a damaged request beside records."""
    path = folder / RUN
    if not os.path.lexists(path) or not path.read_bytes().strip(b"\0 \r\n\t"):
        return None
    try:
        return read_run(folder)
    except ValueError as error:
        if not records or isinstance(error, LaterSchema):
            raise  # the file may be a file of the user
        return None


def _changed(before: Mapping[str, Any], run: Mapping[str, Any]) -> set[str]:
    """Return the entries that make two requests different evaluations."""
    changed = {name for name in {**before, **run} if before.get(name) != run.get(name)} - {"schema"}
    if FINGERPRINT not in changed:
        changed -= {"model"}  # another name of the same model
    if before.get("methods", {}).items() <= run.get("methods", {}).items():
        changed -= {"methods"}
    return changed


def _refusal(folder: Path, before: Mapping[str, Any], run: Mapping[str, Any], changed: Collection[str]) -> str:
    names = []
    for name in {**before, **run}:
        old, new = before.get(name), run.get(name)
        if name not in changed or (name == "model" and FINGERPRINT in changed):
            continue
        different: list[str] = []
        if isinstance(old, Mapping) and isinstance(new, Mapping) and name not in ("methods", "metrics"):
            different = [part for part in {**new, **old} if old.get(part) != new.get(part)]
        shown = "model" if name == FINGERPRINT else name
        names.append(f"{shown} (other {', '.join(different)})" if different else shown)
    held = "; ".join(f"{kind}: {', '.join(before[kind])}" for kind in ("methods", "metrics") if kind in before)
    return (
        f"{folder} holds an evaluation with other {', '.join(names)}: give another folder, or the whole request of the "
        f"folder ({held}), to which methods may be added"
    )


def _check_records(folder: Path, stamps: Mapping[str, str], records: Sequence[Record]) -> None:
    """Refuse records of another evaluation than ``run.json`` names."""
    if others := [record for record in records if record.measured and not _belongs(record, stamps)]:
        raise ValueError(
            f"{len(others)} of {len(records)} records in {folder} (the first: {others[0].method!r} on "
            f"{others[0].instance!r}) are of another evaluation, with another model, other prompts, metrics or "
            "options: give another folder"
        )


def _check_records_without_run(
    folder: Path, run: Mapping[str, Any], stamps: Mapping[str, str], records: Sequence[Record]
) -> None:
    """Refuse records of another evaluation, or of methods outside of the request, in a folder without ``run.json``."""
    strangers = sorted({record.method for record in records} - stamps.keys()) if "methods" in run else []
    if strangers or any(record.measured and not _belongs(record, stamps) for record in records):
        why = f"of methods outside of the request ({', '.join(strangers)})" if strangers else "of another evaluation"
        raise ValueError(
            f"{folder} has {len(records)} records, but its {RUN} is missing or damaged, and the records are {why}: put "
            f"{RUN} back, or give another folder"
        )


def _belongs(record: Record, stamps: Mapping[str, str]) -> bool:
    """Check that a record is of this evaluation, and of a requested method with the same options."""
    if record.method in stamps:
        return record.evaluation == stamps[record.method]
    return record.evaluation.partition("-")[0] in {stamp.partition("-")[0] for stamp in stamps.values()}


# -------------------------------------------------------------------------------------------------------------- merging
MAY_DIFFER = {"shard", "model", "methods"}  # entries of run.json that may differ between shards
NEEDED = {"texts", "instances", "methods", "metrics"}


class Part(NamedTuple):
    """A shard on disk."""

    folder: Path
    shard: Shard
    run: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Part":
        run = read_run(folder)
        if not run.get("shard"):
            raise ValueError(f"{folder} holds a whole evaluation, and no shard")
        if missing := NEEDED - run.keys():
            raise ValueError(f"{folder / RUN} is damaged (it has no {', '.join(sorted(missing))})")
        return cls(folder, Shard.read(run["shard"]), run)


def merge(folder: Path, parts: Sequence[Path] = (), *, partial: bool = False) -> int:
    """Merge shards to one evaluation in the folder, leave the shards as they are, and return the number of results.

    Results in the folder are kept, so that merging can be repeated when more shards have finished or have more methods.
    Among several results of a prompt and a method, a result that did not fail counts, then the result with more values,
    then the result of the shard. Shards of different evaluations are refused.

    Args:
        folder: the folder of the evaluation.
        parts: the folders of the shards; by default the shards inside the folder.
        partial: merge although shards are missing or not finished.
    """
    folders = [*parts] or sorted(path for path in folder.glob(FOLDERS) if path.is_dir())
    if not folders:
        raise ValueError(f"{folder} holds no shards: heta-lens evaluate … --shard 0/2 --out {folder} makes the first")
    _check_alike([*map(Part.read, folders)])  # before a folder is locked or made
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as locks:
        for each in (folder, *folders):
            locks.enter_context(locked(each))
        shards = [*map(Part.read, folders)]
        whole = _whole(folder, shards)
        if missing := "; ".join(_missing(shards, len(whole["methods"]))):
            if not partial:
                raise ValueError(f"{missing}: run the missing work, or add --partial (partial=True)")
            warnings.warn(f"merged what there is: {missing}", stacklevel=2)
        return _write_merged(folder, whole, shards)


def _check_alike(shards: Sequence[Part]) -> None:
    first, *others = shards
    for other in others:
        if different := _different(first.run, other.run):
            names = ", ".join(different)
            raise ValueError(f"{other.folder} is of another evaluation than {first.folder}: other {names}")
        if other.shard.count != first.shard.count:
            raise ValueError(f"{other.folder} is shard {other.shard}, and {first.folder} shard {first.shard}")
    for shard in {part.shard for part in shards}:
        if len(same := [str(part.folder) for part in shards if part.shard == shard]) > 1:
            raise ValueError(f"{' and '.join(same)} are both shard {shard}")


def _different(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the entries that keep two requests from being one evaluation; methods may be added, but not changed."""
    different = [name for name in {**first, **second} if name not in MAY_DIFFER and first.get(name) != second.get(name)]
    shared = first["methods"].keys() & second["methods"].keys()
    changed = any(first["methods"][label] != second["methods"][label] for label in shared)
    return [*different, *(["methods"] if changed else [])]


def _missing(shards: Sequence[Part], methods: int) -> Iterator[str]:
    """Describe the missing shards, and the shards with missing results of ``methods`` methods."""
    found, count = {part.shard.index for part in shards}, shards[0].shard.count
    for index in range(count):
        if index not in found:
            yield f"shard {Shard(index, count)} is missing"
    for part in shards:
        left = part.shard.size(part.run["instances"]) * methods - len(read_records(part.folder))
        if left > 0:
            yield f"shard {part.shard} lacks {left} results"


def _whole(folder: Path, shards: Sequence[Part]) -> dict[str, Any]:
    """Return the request of the whole evaluation, with the methods of the shards and of the folder."""
    runs = [part.run for part in shards]
    if (folder / RUN).exists():
        old = read_run(folder)
        if different := _different({"methods": {}, **old}, runs[0]):
            raise ValueError(f"{folder} holds another evaluation than its shards: other {', '.join(different)}")
        runs = [old, *runs]
    methods = {label: recipe for run in runs for label, recipe in run["methods"].items()}
    return {name: value for name, value in runs[-1].items() if name != "shard"} | {"methods": methods}


def _write_merged(folder: Path, whole: Mapping[str, Any], shards: Sequence[Part]) -> int:
    records: dict[Key, Record] = {}
    scores: dict[Key, PackedRow] = {}
    for place in (folder, *(part.folder for part in shards)):
        rows = {row[:2]: row for row in load_scores(place).packed} if (place / SCORES).exists() else {}
        for record in read_records(place) if (place / RUN).exists() else ():
            if record.key not in records or _rank(record) >= _rank(records[record.key]):
                records[record.key] = record
                scores |= {record.key: rows[record.key]} if record.key in rows else {}
        scores = {**rows, **scores}
    write_run(folder, whole)
    _records(folder).replace(asdict(records[key]) for key in sorted(records))
    in_order = sorted(scores.values(), key=lambda row: row.number)
    score_lines(folder).replace(row.row().flat() for row in in_order)
    return len(records)


def _rank(record: Record) -> tuple[bool, int]:
    return not record.failed, sum(value is not None for value in record.values.values())
