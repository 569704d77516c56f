"""Records: the results of a method on a prompt, and their rows in the database of an evaluation."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from sqlite3 import Row
from typing import Any, TypeAlias

Value: TypeAlias = float | int | Sequence[float | int] | None
Key: TypeAlias = tuple[str, str]  # of a prompt and a method


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


def metric_row(record: Record, name: str) -> list[Any]:
    """Return the row of a metric's value in the table ``metrics``."""
    found = terms(record.values[name])
    value, against = (*found, None, None)[:2]
    every = json.dumps(found) if len(found) > 2 else None  # of a table's grid of settings
    why = [name in record.errors, record.reasons.get(name, ""), record.errors.get(name, "")]
    return [*record.key, name, value, against, every, name in record.degenerate, *why]


def record_of_rows(task: Row, metrics: Sequence[Row]) -> Record:
    """Return the record of a task with its prompt, and of the rows of its metrics."""
    return Record(
        instance=task["prompt"],
        method=task["method"],
        template=task["template"],
        values={row["metric"]: _value(row) for row in metrics},
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


def _value(row: Row) -> Value:
    if row["terms"] is not None:
        return tuple(json.loads(row["terms"]))
    return row["value"] if row["against"] is None else (row["value"], row["against"])
