"""Shards of an evaluation: each process does every n-th prompt, into a folder of its own."""

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

from heta_lens._util.files import JsonLinesFile, brief, parse_json, read_text, write_atomically
from heta_lens._util.options import check_fields, check_types
from heta_lens._util.python import versions
from heta_lens.evaluation.saved_scores import SCORES, Packed, ScoreRow, load_scores, score_lines
from heta_lens.evaluation.statistics import AGGREGATES
from heta_lens.metrics.registry import redescribed, renamed, renamed_all, reworded

Item = TypeVar("Item")

FORM = re.compile(r"(\d+|auto)/(\d+)")
FOLDERS = "shard-*-of-*"
STEP = "SLURM_ARRAY_TASK_STEP"
SCHEDULERS = (  # by their variables: which of how many, and the number of the first
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"),
    ("RANK", "WORLD_SIZE", ""),
    ("SLURM_PROCID", "SLURM_NTASKS", ""),
)


@dataclass(frozen=True, order=True)
class Shard:
    """Every ``count``-th prompt, from that of number ``index`` on; shards are counted from 0."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"shard {self} does not exist: shards are counted from 0, as in 0/3, 1/3, 2/3")

    @classmethod
    def read(cls, written: str, environment: Mapping[str, str] = os.environ) -> "Shard":
        """``"0/3"``; ``"auto/3"``, whose number the scheduler that started this process says in its environment; or
        ``"auto"``, of which it also says of how many.
        """
        if written == "auto":
            return cls._scheduled(environment)
        match = FORM.fullmatch(written)
        if match is None:
            raise ValueError(f"shard={written!r} is not of the form 0/3, nor auto/3, nor auto")
        which, count = match.groups()
        return cls(_scheduled_number(environment) if which == "auto" else int(which), int(count))

    @classmethod
    def _scheduled(cls, environment: Mapping[str, str]) -> "Shard":
        for which, count, first in SCHEDULERS:
            if which in environment and count in environment:
                number, many = _number(environment, which), _number(environment, count)
                begin = _number(environment, first) if first in environment else 0
                step = _number(environment, STEP) if first and STEP in environment else 1
                index, between = divmod(number - begin, step)
                if between or not 0 <= index < many or (many == 1 and begin):
                    raise ValueError(
                        f"shard='auto', and an array of {many} jobs of which this is number {number} is only a part of "
                        "one: say of how many, as auto/16, whose numbers begin at 0"
                    )
                return cls(index, many)
        names = "; ".join(f"{which} and {count}" for which, count, _ in SCHEDULERS)
        raise ValueError(f"shard='auto', and the environment has none of these: {names}")

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @property
    def folder(self) -> str:
        """Its name inside the folder of the whole evaluation."""
        return f"shard-{self.index}-of-{self.count}"

    def size(self, total: int) -> int:
        """How many of so many prompts it has."""
        return len(range(self.index, total, self.count))

    def of(self, items: list[Item]) -> list[Item]:
        return items[self.index :: self.count]


def _scheduled_number(environment: Mapping[str, str]) -> int:
    for which, _, _ in SCHEDULERS:
        if which in environment:
            return _number(environment, which)
    raise ValueError(f"shard='auto/…', and the environment has none of {', '.join(which for which, *_ in SCHEDULERS)}")


def _number(environment: Mapping[str, str], name: str) -> int:
    if not environment[name].isdecimal():
        raise ValueError(f"shard='auto', and the environment has {name}={environment[name]!r}, which is no number")
    return int(environment[name])


# --------------------------------------------------------------------------------------------------------- run records
# The results of an evaluation on disk: a folder with one line of JSON for every instance and method.
#
# ``run.json`` has the request; ``records.jsonl`` has a `Record` per line, in the order they were finished. Reading
# skips
# lines that are not records, warns how many there are, and changes nothing. When the evaluation resumes, they are moved
# to ``records.rejected.jsonl`` and their work is done again; a last line that was cut short is dropped. Metrics that
# had
# another name when a folder was written are read under today's, and their reasons in today's words.


Value: TypeAlias = float | int | Sequence[float | int] | None
Metrics: TypeAlias = Mapping[str, Mapping[str, Any]]

RUN, RECORDS = "run.json", "records.jsonl"
ROUNDING = 1e-4  # how far beyond a metric's bounds a value of single precision may come
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
SCHEMA = 1
"""The version of a folder's files; it rises when an earlier version of the library could not read them."""
FORMER_FIELDS = {"doubts": "degenerate"}  # of a record
METHOD_TYPES = {"method": str, "options": Mapping[str, Any] | None}
METRIC_TYPES = {
    **dict.fromkeys(("title", "cost", "variant", "source", "better", "aggregate"), str | None),
    **dict.fromkeys(("low", "high"), float | None),
    "needs": Sequence[str],
}


@dataclass(frozen=True)
class Record:
    """The results of one method on one instance.

    ``values`` holds a number for each metric (for a ratio of sums, its two terms), or None where it has none, and then
    ``reasons`` says why. ``degenerate`` names metrics whose scores do not distinguish tokens. ``failed`` is why there
    are no values at all, and ``failed_at`` the file and line where that was raised; ``skipped``, why the method refused
    the instance, as a target-agnostic one refuses a contrast. ``errors`` has the metrics that raised an error, and
    where; no place for a value that was not finite. ``evaluation`` identifies the evaluation: its prompts, metrics and
    model, and the options of the method.
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
    """Whether the explained token is what the model says by itself."""
    options: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    forwards: int = 0
    backwards: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    failed_at: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)
    evaluation: str = ""
    hvps: int = 0
    """Hessian–vector products, each of which is also two of the ``backwards``."""
    log_prob: float | None = None
    """The log-probability of the explained token."""
    skipped: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "degenerate", tuple(self.degenerate))  # which JSON has as a list
        for name, value in self.values.items():
            if not all(map(isfinite, terms(value))):
                raise ValueError(
                    f"{name} of {self.method!r} on {self.instance!r} is {value!r}: "
                    "a value must be finite, or None and its reason in reasons"
                )

    @property
    def gradients(self) -> int:
        """The backwards that are not those of HVPs."""
        return self.backwards - 2 * self.hvps

    @property
    def worth(self) -> int:
        """In plain forwards: a backward counts as two, and so does an HVP, although it is two backwards."""
        return self.forwards + 2 * (self.gradients + self.hvps)

    @property
    def key(self) -> tuple[str, str]:
        return self.instance, self.method


class LaterSchema(ValueError):
    """A folder that a later version of the library wrote."""


def terms(value: Value) -> tuple[float, ...]:
    """The numbers that a value consists of; none where there is no value."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, Sequence) else (value,)


def read_run(folder: Path) -> dict[str, Any]:
    """The request that ``run.json`` keeps."""
    path = folder / RUN
    if not os.path.lexists(path):
        if any(folder.glob(FOLDERS)):
            raise ValueError(f"{folder} holds shards of an evaluation: heta-lens merge {folder} makes one of them")
        raise ValueError(f"{folder} holds no evaluation: heta-lens evaluate … --out {folder} makes one")
    try:
        return _run(read_text(path))
    except LaterSchema as error:
        raise LaterSchema(f"{path} {error}") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): begin again in another folder") from None


def _run(text: str) -> dict[str, Any]:
    run = parse_json(text)
    if not isinstance(run, dict):
        raise TypeError(f"it is {brief(run)}, and must be an object")
    check_types(RUN_TYPES, run)
    if (schema := run.get("schema") or 0) > SCHEMA:
        raise LaterSchema(f"is of a later version of heta_lens (schema {schema}; this one reads {SCHEMA}): upgrade it")
    for label, method in run.get("methods", {}).items():
        _check_part(f"the method {brief(label)}", METHOD_TYPES, {"method": None, **method})
    for name, metric in run.get("metrics", {}).items():
        _check_part(f"the metric {brief(name)}", METRIC_TYPES, metric)
    return {**run, "metrics": _renamed_metrics(run["metrics"])} if "metrics" in run else run


def _renamed_metrics(metrics: Metrics) -> dict[str, Mapping[str, Any]]:
    """Metrics as they are called and described today."""
    return {name: redescribed(name, metric) for name, metric in renamed(metrics).items()}


def _check_part(what: str, kinds: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    try:
        check_types(kinds, values)
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from None


def read_records(folder: Path) -> list[Record]:
    """The valid records, sorted by instance and method.

    Of two for one instance and method, the later counts. Lines that are not records are skipped, with a warning that
    says how many there are and what is wrong with the first.
    """
    latest = {record.key: record for record in _records(folder).read()}
    return [latest[key] for key in sorted(latest)]


def append(folder: Path, record: Record) -> None:
    """Append a record durably: it is on the disk when this returns, whole or not at all."""
    _records(folder).append(asdict(record))


def repair(folder: Path) -> int:
    """Move lines that are not records to ``records.rejected.jsonl``, and drop a last one that was cut short.

    Returns the number of bytes removed.
    """
    return _records(folder).repair()


def replace_records(folder: Path, records: Sequence[Record]) -> None:
    """Write these, and no others, at once."""
    _records(folder).replace(map(asdict, records))


def _records(folder: Path) -> JsonLinesFile[Record]:
    return JsonLinesFile(folder / RECORDS, partial(_record, _metrics(folder)))


def _record(metrics: Metrics, values: Mapping[str, Any]) -> Record:
    """The record of a line, its values within the bounds that ``run.json`` has for their metrics."""
    fields = _current(values)
    check_fields(Record, fields)
    record = Record(**fields)
    for name in ("tokens", "seconds", "forwards", "backwards", "hvps"):
        if getattr(record, name) < 0:
            raise ValueError(f"its {name} is {getattr(record, name)}, and must be at least 0")
    if record.log_prob is not None and record.log_prob > 0:
        raise ValueError(f"its log_prob is {record.log_prob}, and must be at most 0")
    for name, value in record.values.items():
        if name in metrics:
            _check_value(name, value, metrics[name])
    return record


def _current(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record, with fields and metrics under today's names."""
    fields = {FORMER_FIELDS.get(name, name): value for name, value in record.items()}
    for name in ("values", "reasons", "errors"):
        if isinstance(fields.get(name), Mapping):
            fields[name] = renamed(fields[name])
    if isinstance(fields.get("reasons"), Mapping):
        fields["reasons"] = reworded(fields["reasons"])
    if isinstance(fields.get("degenerate"), list):
        fields["degenerate"] = renamed_all(fields["degenerate"])
    return fields


def _metrics(folder: Path) -> Metrics:
    """The metrics of ``run.json``; none, where that cannot be read."""
    try:
        return read_run(folder).get("metrics", {})
    except (ValueError, OSError):
        return {}


def _check_value(name: str, value: Value, metric: Mapping[str, Any]) -> None:
    """Refuse a value with another number of terms than its metric has, or beyond the metric's bounds."""
    aggregate = metric.get("aggregate") or "mean"
    if value is None or aggregate not in AGGREGATES:
        return
    numbers, count = terms(value), AGGREGATES[aggregate].terms
    if len(numbers) != count:
        raise ValueError(f"its {name} is {brief(value)}, and must be {count} number{'s' if count > 1 else ''}")
    if aggregate == "log_ratio" and min(numbers) < 0:  # a ratio of sums, whose logarithm is taken
        raise ValueError(f"its {name} is {brief(value)}, and its two numbers must be at least 0")
    if aggregate == "mean":
        _check_bounds(name, value, metric)


def _check_bounds(name: str, value: Value, metric: Mapping[str, Any]) -> None:
    for end, sign in (("low", 1), ("high", -1)):
        bound = metric.get(end)
        if bound is not None and any(
            sign * (number - bound) < -ROUNDING * max(1, abs(bound)) for number in terms(value)
        ):
            raise ValueError(f"its {name} is {brief(value)}, beyond the {end} bound {bound:g}")


# --------------------------------------------------------------------------------------------------------- folder lock
# One writer at a time for a folder of results; a second is refused, with the name of the first.
#
# The operating system releases the lock with the process. On a file system without locks, a file stands for it, which
# is
# taken over if its process, on the same machine, has ended; nobody can know that of a process on another machine.


LOCK, SOFT_LOCK, HOLDER = ".lock", ".lock-file", ".lock-holder"
NO_LOCKS = {ENOLCK, ENOTSUP, ENOSYS}  # of file systems that have none
PATIENCE = 2.0  # seconds in which a process that has just taken a lock says who it is


@dataclass(frozen=True)
class Holder:
    """Who is writing."""

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
    """Keep other writers out of a folder."""
    with writing_into(folder):
        lock = _acquired(folder)
    try:
        with suppress(OSError):  # this is only what a refusal quotes
            write_atomically(folder / HOLDER, json.dumps(asdict(Holder.me())))
        yield
    finally:
        with suppress(OSError):
            (folder / HOLDER).unlink()
        lock.release()


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
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
        f"the file system of {folder} has no locks: {SOFT_LOCK} stands for one. If its process ends on another machine "
        "without removing it, remove it yourself",
        stacklevel=2,
    )
    return _taken(SoftFileLock(folder / SOFT_LOCK), folder)


def _taken(lock: BaseFileLock, folder: Path) -> BaseFileLock:
    try:
        lock.acquire(blocking=False)
    except Timeout:
        holder = _holder(folder)
        who = f" ({holder})" if holder else ""
        raise ValueError(
            f"another evaluation{who} is writing into {folder}: wait until it has ended, or give another folder"
        ) from None
    return lock


def _holder(folder: Path) -> Holder | None:
    """Who has the lock, as soon as it says so; what an earlier process left there does not count."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with suppress(OSError, ValueError, TypeError):
            holder = Holder(**json.loads((folder / HOLDER).read_text(encoding="utf-8")))
            if holder.may_live:
                return holder
        time.sleep(0.01)
    return None


# ------------------------------------------------------------------------------------------------ resumable run folder
# The folder of a running evaluation: written by one process, for one model and one set of prompts and metrics.
#
# ``run.json`` has the request and the model's fingerprint. It is written once, and again only when methods are added.
# ``scores.jsonl`` has the scores of every method on every prompt, and ``records.jsonl`` what came of them.
# Every record names its evaluation, so that a folder whose ``run.json`` was lost can be resumed too.


FINGERPRINT = "fingerprint"
OF_MODEL = {"model", FINGERPRINT, "versions"}
APART = {"methods", "model", "shard", "schema"}  # what may differ between records of one evaluation


@dataclass(frozen=True)
class RunFolder:
    """A folder that is open for an evaluation.

    ``stamps``, by the labels of methods, are the ``evaluation`` of their records; ``records`` are the existing ones.
    """

    path: Path
    stamps: Mapping[str, str]
    records: dict[tuple[str, str], Record]
    retry_failed: bool = False
    scored: Collection[tuple[str, str]] = ()
    """Of which instances and methods the folder has scores, where these are all that is wanted."""

    def left(self, instance: str, metrics: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The metrics still to be computed for an instance, by the labels of methods that are not finished."""
        left = {
            label: self._left(self.records.get((instance, label)), stamp, metrics)
            for label, stamp in self.stamps.items()
        }
        return {label: names for label, names in left.items() if names is not None}

    def _left(self, record: Record | None, stamp: str, metrics: Sequence[str]) -> tuple[str, ...] | None:
        """None, if nothing is; no metrics, where only the scores are wanted."""
        if record is None or record.evaluation not in ("", stamp):
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
        """Keep the values of these metrics, beside those of others that the record already has, and the scores."""
        if scores is not None:
            score_lines(self.path).append(replace(scores, evaluation=self.stamps[record.method]).flat())
        before = self.records.get(record.key)
        if before is not None and not before.failed:
            record = joined(before, record, metrics)
        self.records[record.key] = replace(record, evaluation=self.stamps[record.method])
        append(self.path, self.records[record.key])


def joined(before: Record, after: Record, metrics: Collection[str]) -> Record:
    """A record with ``after``'s values of these metrics and those it had ``before`` of others."""
    if after.failed:
        return replace(
            before,
            values={**before.values, **dict.fromkeys(metrics)},
            reasons={**before.reasons, **dict.fromkeys(metrics, after.failed)},
            errors={**before.errors, **dict.fromkeys(metrics, after.failed_at)},
        )
    return replace(
        after,
        values={**before.values, **after.values},
        reasons={**_without(before.reasons, metrics), **after.reasons},
        errors={**_without(before.errors, metrics), **after.errors},
        degenerate=(*(name for name in before.degenerate if name not in metrics), *after.degenerate),
    )


def _without(named: Mapping[str, str], metrics: Collection[str]) -> dict[str, str]:
    return {name: what for name, what in named.items() if name not in metrics}


@contextmanager
def opened(
    folder: Path,
    request: Mapping[str, Any],
    methods: Mapping[str, Mapping[str, Any]],
    model: Mapping[str, str],
    *,
    retry_failed: bool = False,
) -> Iterator[RunFolder]:
    """A folder to write records into, which belongs to this process until the block ends.

    Args:
        folder: the folder; it is made if it does not exist.
        request: the content of ``run.json``. A folder of another evaluation is refused.
        methods: method and options of each label.
        model: the model's `fingerprint`.
        retry_failed: repeat methods and metrics that failed.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: give a folder to keep the evaluation in")
    of_run = {"schema": SCHEMA, **request, FINGERPRINT: dict(model), "versions": versions()}
    request = json.loads(json.dumps(of_run))
    stamps = {label: f"{_digest(_identity(request))}-{_digest(method)}" for label, method in methods.items()}
    with writing_into(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        records = _record_file(folder)
        before = _before(folder, records)
        if before is not None and _only_failed(before, request, records):
            before, records = None, []
        run = _agreed(folder, before, request, stamps, records)
        if json.dumps(run) != json.dumps(before):  # in which the order of methods counts
            write_run(folder, run)
        repair(folder)
        score_lines(folder).repair()
        scored = {row[:2] for row in score_lines(folder).read()} if not request.get("metrics") else set()
        yield RunFolder(folder, stamps, {record.key: record for record in records}, retry_failed, scored)


def write_run(folder: Path, run: Mapping[str, Any]) -> None:
    write_atomically(folder / RUN, json.dumps(run, ensure_ascii=False, indent=1) + "\n")


def _record_file(folder: Path) -> list[Record]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of damaged lines, which repair reports when it moves them
        return read_records(folder)


def _identity(request: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name not in APART}


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


# ---------------------------------------------------------------------------------------------- the same evaluation
def _only_failed(before: Mapping[str, Any], request: Mapping[str, Any], records: Sequence[Record]) -> bool:
    """Whether another model may be used, because nothing was measured with the first: everything is repeated."""
    changed = _changed(before, request)
    return bool(changed) and changed <= OF_MODEL and not any(_measured(record) for record in records)


def _agreed(
    folder: Path,
    before: Mapping[str, Any] | None,
    request: Mapping[str, Any],
    stamps: Mapping[str, str],
    records: Sequence[Record],
) -> Mapping[str, Any]:
    """The new content of ``run.json``; a folder of another evaluation is refused."""
    if before is None:
        _check_vouched(folder, request, stamps, records)
        return request
    if changed := _changed(before, request):
        raise ValueError(_refusal(folder, before, request, changed))
    _check_stamps(folder, stamps, records)
    unknown = FINGERPRINT not in before and bool(records)
    if unknown:
        warnings.warn(
            f"{folder} was begun by a version that kept no fingerprint of the model: whether its {len(records)} "
            "records are of this model cannot be checked",
            stacklevel=2,
        )
    run = {name: value for name, value in request.items() if not (unknown and name == FINGERPRINT)}
    return {**run, **({"model": before["model"]} if "model" in before else {})}


def _before(folder: Path, records: Sequence[Record]) -> dict[str, Any] | None:
    """The content of ``run.json``; None without one, or where the request can replace it."""
    path = folder / RUN
    if not os.path.lexists(path) or not path.read_bytes().strip(b"\0 \r\n\t"):
        return None
    try:
        return read_run(folder)
    except ValueError as error:
        if not records or isinstance(error, LaterSchema):
            raise  # this may be a file of the user
        return None


def _changed(before: Mapping[str, Any], request: Mapping[str, Any]) -> set[str]:
    changed = {name for name in {**before, **request} if before.get(name) != request.get(name)}
    if FINGERPRINT not in before:
        changed -= {FINGERPRINT}
    elif FINGERPRINT not in changed:
        changed -= {"model"}  # only its name differs
    changed -= {"schema"}  # which reading has checked
    if before.get("methods", {}).items() <= request.get("methods", {}).items():
        changed -= {"methods"}
    return changed


def _refusal(folder: Path, before: Mapping[str, Any], request: Mapping[str, Any], changed: Collection[str]) -> str:
    parts = {name: _parts(before.get(name), request.get(name)) for name in {**before, **request} if name in changed}
    parts |= {name: [] for name in ("methods", "metrics") if name in parts}  # of which all that is held is listed
    if FINGERPRINT in parts:
        parts = {name: other for name, other in parts.items() if name != "model"}
        parts["model"] = parts.pop(FINGERPRINT)
    names = [name + (f" (other {', '.join(other)})" if other else "") for name, other in parts.items()]
    held = "; ".join(f"{what}: {', '.join(before[what])}" for what in ("methods", "metrics") if what in before)
    return (
        f"{folder} holds an evaluation with other {', '.join(names)}: give another folder, or all that this one has "
        f"({held}), to which methods may be added"
    )


def _parts(before: Any, now: Any) -> list[str]:
    """Of two entries that have parts, those that differ."""
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return []
    return [name for name in {**now, **before} if before.get(name) != now.get(name)]


def _measured(record: Record) -> bool:
    """Whether there is something to lose: a value, or, without metrics, scores."""
    return any(value is not None for value in record.values.values()) or not (
        record.values or record.failed or record.skipped
    )


def _check_stamps(folder: Path, stamps: Mapping[str, str], records: Sequence[Record]) -> None:
    """Refuse records of another evaluation, whatever ``run.json`` says."""
    others = [record for record in records if record.evaluation and _measured(record) and not _vouched(record, stamps)]
    if others:
        raise ValueError(
            f"{len(others)} of {len(records)} records in {folder} (the first: {others[0].method!r} on "
            f"{others[0].instance!r}) are of another evaluation, with another model, other prompts, metrics or "
            "options: give another folder"
        )


def _check_vouched(
    folder: Path, request: Mapping[str, Any], stamps: Mapping[str, str], records: Sequence[Record]
) -> None:
    """Refuse records that do not name this evaluation, where no ``run.json`` does."""
    strangers = sorted({record.method for record in records} - stamps.keys()) if "methods" in request else []
    others = [record for record in records if _measured(record) and not _vouched(record, stamps)]
    if others or strangers:
        why = f"of methods that were not asked for ({', '.join(strangers)})" if strangers else "not of this evaluation"
        if any(not record.evaluation for record in others):
            why = "of a version that did not note of which evaluation a record is"
        raise ValueError(
            f"{folder} has {len(records)} records, but its {RUN} is missing or damaged, and they are {why}: put {RUN} "
            "back, or give another folder"
        )


def _vouched(record: Record, stamps: Mapping[str, str]) -> bool:
    """Whether a record is of this evaluation, and of a requested method with the same options."""
    if record.method in stamps:
        return record.evaluation == stamps[record.method]
    return record.evaluation.partition("-")[0] in {stamp.partition("-")[0] for stamp in stamps.values()}


# ------------------------------------------------------------------------------------------------------- shard merging
# Makes one evaluation of its shards.


OF_SHARD = {"shard", "model", "methods"}  # entries of run.json that may differ between shards
NEEDED = {"texts", "instances", "methods", "metrics"}

Key: TypeAlias = tuple[str, str]


class Part(NamedTuple):
    """A shard on disk."""

    folder: Path
    shard: Shard
    run: Mapping[str, Any]
    records: Sequence[Record]


def merge(folder: Path, parts: Sequence[Path] = (), *, partial: bool = False) -> int:
    """Make one evaluation of shards, in the folder; the shards stay as they are. Returns how many results it has.

    What the folder has already is kept, and so this may be repeated as shards finish, or are given more methods. Of two
    results for one prompt and method, that which did not fail counts, then that with more values, then the shard's.
    Shards of different evaluations are refused, with the difference.

    Args:
        folder: the folder of the evaluation.
        parts: the folders of its shards; by default those inside the folder.
        partial: merge what there is, although shards are missing or not finished.
    """
    folders = [*parts] or sorted(path for path in folder.glob(FOLDERS) if path.is_dir())
    if not folders:
        raise ValueError(f"{folder} holds no shards: heta-lens evaluate … --shard 0/2 --out {folder} makes the first")
    _check_alike([_part(each, read=False) for each in folders])  # before anything is locked or made
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as locks:
        for each in (folder, *folders):
            locks.enter_context(locked(each))
        shards = [_part(each) for each in folders]
        whole = _whole(folder, shards)
        if lacking := "; ".join(_lacking(shards, len(whole["methods"]))):
            if not partial:
                raise ValueError(f"{lacking}: run what is missing, or add --partial (partial=True)")
            warnings.warn(f"merged what there is: {lacking}", stacklevel=2)
        return _write(folder, whole, shards)


def _part(folder: Path, read: bool = True) -> Part:
    run = read_run(folder)
    if not run.get("shard"):
        raise ValueError(f"{folder} holds a whole evaluation, and no shard of one")
    if missing := NEEDED - run.keys():
        raise ValueError(f"{folder / RUN} is damaged (it has no {', '.join(sorted(missing))})")
    return Part(folder, Shard.read(run["shard"]), run, read_records(folder) if read else ())


def _check_alike(shards: Sequence[Part]) -> None:
    first = shards[0]
    for other in shards[1:]:
        if different := _different(first.run, other.run):
            what = ", ".join(different)
            raise ValueError(f"{other.folder} is of another evaluation than {first.folder}: other {what}")
        if other.shard.count != first.shard.count:
            raise ValueError(f"{other.folder} is shard {other.shard}, and {first.folder} shard {first.shard}")
    for shard in {part.shard for part in shards}:
        if len(same := [str(part.folder) for part in shards if part.shard == shard]) > 1:
            raise ValueError(f"{' and '.join(same)} are both shard {shard}")


def _different(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The entries of run.json that keep two from being one evaluation; methods may be added, but not changed."""
    different = [name for name in {**one, **other} if name not in OF_SHARD and one.get(name) != other.get(name)]
    shared = one["methods"].keys() & other["methods"].keys()
    changed = [label for label in shared if one["methods"][label] != other["methods"][label]]
    return [*different, *(["methods"] if changed else [])]


def _lacking(shards: Sequence[Part], methods: int) -> Iterator[str]:
    """What keeps the shards from being all of it, of so many methods."""
    there = {part.shard.index for part in shards}
    count = shards[0].shard.count
    for index in range(count):
        if index not in there:
            yield f"shard {Shard(index, count)} is missing"
    for part in shards:
        wanted = part.shard.size(part.run["instances"]) * methods
        if (left := wanted - len({record.key for record in part.records})) > 0:
            yield f"shard {part.shard} lacks {left} results"


def _whole(folder: Path, shards: Sequence[Part]) -> dict[str, Any]:
    """The request of the whole evaluation, with the methods of all shards, and of what the folder has already."""
    runs = [part.run for part in shards]
    if (folder / RUN).exists():
        old = read_run(folder)
        if different := _different({"methods": {}, **old}, runs[0]):
            raise ValueError(f"{folder} holds another evaluation than its shards: other {', '.join(different)}")
        runs = [old, *runs]
    methods = {label: recipe for run in runs for label, recipe in run["methods"].items()}
    return {name: value for name, value in runs[-1].items() if name != "shard"} | {"methods": methods}


def _write(folder: Path, whole: Mapping[str, Any], shards: Sequence[Part]) -> int:
    records: dict[Key, Record] = {}
    scores: dict[Key, Packed] = {}
    for place in (folder, *(part.folder for part in shards)):
        there = {packed[:2]: packed for packed in load_scores(place).packed} if (place / SCORES).exists() else {}
        for record in read_records(place) if (place / RUN).exists() else ():
            if record.key not in records or _merit(record) >= _merit(records[record.key]):
                records[record.key] = record
                scores |= {record.key: there[record.key]} if record.key in there else {}
        scores = {**there, **scores}
    write_run(folder, whole)
    replace_records(folder, [records[key] for key in sorted(records)])
    ordered = sorted(scores.values(), key=lambda packed: packed.number)
    score_lines(folder).replace(packed.row().flat() for packed in ordered)
    return len(records)


def _merit(record: Record) -> tuple[bool, int]:
    return not record.failed, sum(value is not None for value in record.values.values())
