"""The results of an evaluation on disk: a folder with one line of JSON for every instance and method.

``run.json`` has the request; ``records.jsonl`` has a `Record` per line, in the order they were finished. Reading skips
lines that are not records, warns how many there are, and changes nothing. When the evaluation resumes, they are moved
to ``records.rejected.jsonl`` and their work is done again; a last line that was cut short is dropped. Metrics that had
another name when a folder was written are read under today's, and their reasons in today's words.
"""

import json
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from heta_lens._util.file_reading import brief, parse_json, read_bytes, read_text
from heta_lens._util.file_writing import append_whole, write_atomically
from heta_lens._util.type_checks import check_fields, check_types
from heta_lens.evaluation.aggregates import AGGREGATES
from heta_lens.metrics.former_names import redescribed, renamed, renamed_all, reworded

Value: TypeAlias = float | int | Sequence[float | int] | None
Metrics: TypeAlias = Mapping[str, Mapping[str, Any]]

RUN, RECORDS, REJECTED = "run.json", "records.jsonl", "records.rejected.jsonl"
ROUNDING = 1e-4  # how far beyond a metric's bounds a value of single precision may come
RUN_TYPES = {
    "methods": Mapping[str, Mapping[str, Any]],
    "metrics": Mapping[str, Mapping[str, Any]],
    "instances": int,
    "texts": str,
    "versions": Mapping[str, Any] | None,
    "suite_options": Mapping[str, Any] | None,
    "fingerprint": Mapping[str, str] | None,
}
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
    are no values at all, and ``failed_at`` the file and line where that was raised. ``errors`` has the metrics that
    raised an error, and where; no place for a value that was not finite. ``evaluation`` identifies the evaluation: its
    prompts, metrics and model, and the options of the method.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "degenerate", tuple(self.degenerate))  # which JSON has as a list
        for name, value in self.values.items():
            if not all(map(isfinite, terms(value))):
                raise ValueError(
                    f"{name} of {self.method!r} on {self.instance!r} is {value!r}: "
                    "a value must be finite, or None and its reason in reasons"
                )

    @property
    def key(self) -> tuple[str, str]:
        return self.instance, self.method


def terms(value: Value) -> tuple[float, ...]:
    """The numbers that a value consists of; none where there is no value."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, Sequence) else (value,)


class Rejected(NamedTuple):
    """A line of ``records.jsonl`` that is not a record, and why."""

    number: int
    line: bytes
    reason: str


def read_run(folder: Path) -> dict[str, Any]:
    """The request that ``run.json`` keeps."""
    path = folder / RUN
    if not os.path.lexists(path):
        raise ValueError(f"{folder} holds no evaluation: heta-lens evaluate … --out {folder} makes one")
    try:
        return _run(read_text(path))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): begin again in another folder") from None


def _run(text: str) -> dict[str, Any]:
    run = parse_json(text)
    if not isinstance(run, dict):
        raise TypeError(f"it is {brief(run)}, and must be an object")
    check_types(RUN_TYPES, run)
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
    records, rejected = _scanned(folder)
    if rejected:
        _warn(folder, len(records), rejected, "skipped: evaluate again into this folder to redo them")
    latest = {record.key: record for record in records}
    return [latest[key] for key in sorted(latest)]


def _warn(folder: Path, kept: int, rejected: Sequence[Rejected], outcome: str) -> None:
    first = rejected[0]
    warnings.warn(
        f"{len(rejected)} of {len(rejected) + kept} lines of {folder / RECORDS} are not records (line {first.number}: "
        f"{first.reason}) and are {outcome}",
        stacklevel=3,
    )


def _scanned(folder: Path) -> tuple[list[Record], list[Rejected]]:
    """The records, and the lines that are not records. A last line without an end is neither."""
    path, metrics = folder / RECORDS, _metrics(folder)
    good: list[Record] = []
    bad: list[Rejected] = []
    written = read_bytes(path) if os.path.lexists(path) else b""
    for number, line in enumerate(_whole(written).split(b"\n"), 1):
        if line.strip():
            try:
                good.append(_record(line, metrics))
            except (ValueError, TypeError) as error:
                bad.append(Rejected(number, line, str(error)))
    return good, bad


def append(folder: Path, record: Record) -> None:
    """Append a line durably: it is on the disk when this returns, whole or not at all."""
    line = json.dumps(asdict(record), ensure_ascii=False, allow_nan=False) + "\n"
    append_whole(folder / RECORDS, line.encode(errors="replace"))  # a message may quote half of a surrogate pair


def repair(folder: Path) -> int:
    """Move lines that are not records to ``records.rejected.jsonl``, and drop a last one that was cut short.

    Returns the number of bytes removed.
    """
    path = folder / RECORDS
    if not os.path.lexists(path):
        return 0
    good, bad = _scanned(folder)
    written = read_bytes(path)
    kept = _without(_whole(written), {line.number for line in bad})
    if bad:
        append_whole(folder / REJECTED, b"".join(rejected.line + b"\n" for rejected in bad))
        write_atomically(path, kept)
        _warn(folder, len(good), bad, f"moved to {REJECTED}: their work is done again")
    elif len(kept) < len(written):
        write_atomically(path, kept)
    return len(written) - len(kept)


def _without(written: bytes, numbers: Collection[int]) -> bytes:
    lines = written.split(b"\n")
    return b"\n".join(line for number, line in enumerate(lines, 1) if number not in numbers)


def _whole(written: bytes) -> bytes:
    """Without a last line that has no end: it was cut short, or is being written."""
    return written[: written.rfind(b"\n") + 1]


def _record(line: bytes, metrics: Metrics) -> Record:
    """The record of a line, its values within the bounds that ``run.json`` has for their metrics."""
    try:
        values = parse_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    if not isinstance(values, Mapping):
        raise TypeError(f"it is {brief(values)}, and must be an object")
    fields = _current(values)
    check_fields(Record, fields)
    record = Record(**fields)
    for name in ("tokens", "seconds", "forwards", "backwards"):
        if getattr(record, name) < 0:
            raise ValueError(f"its {name} is {getattr(record, name)}, and must be at least 0")
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
