"""The results of an evaluation on disk: a folder with one line of JSON for every instance and method.

``run.json`` has the request; ``records.jsonl`` has a `Record` per line, in the order they were finished. Reading skips
lines that are not records, warns how many there are, and changes nothing. When the evaluation resumes, they are moved
to ``records.rejected.jsonl`` and their work is done again; a last line that was cut short is dropped. Metrics that had
another name when a folder was written are read under today's, and their reasons in today's words.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

from heta_lens._util.file_reading import brief, parse_json, read_text
from heta_lens._util.json_lines_file import JsonLinesFile
from heta_lens._util.type_checks import check_fields, check_types
from heta_lens.evaluation.aggregates import AGGREGATES
from heta_lens.evaluation.shards import FOLDERS
from heta_lens.metrics.former_names import redescribed, renamed, renamed_all, reworded

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
