"""The folder of a running evaluation: written by one process, for one model and one set of prompts and metrics.

``run.json`` has the request and the model's fingerprint. It is written once, and again only when methods are added.
``scores.jsonl`` has the scores of every method on every prompt, and ``records.jsonl`` what came of them.
Every record names its evaluation, so that a folder whose ``run.json`` was lost can be resumed too.
"""

import json
import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from heta_lens._util.file_writing import write_atomically
from heta_lens._util.versions import versions
from heta_lens.evaluation.folder_lock import locked, writing_into
from heta_lens.evaluation.kept_scores import score_lines
from heta_lens.evaluation.run_records import RUN, SCHEMA, LaterSchema, Record, append, read_records, read_run, repair
from heta_lens.evaluation.score_rows import ScoreRow

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
        records = _records(folder)
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


def _records(folder: Path) -> list[Record]:
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
