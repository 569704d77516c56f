"""An evaluation's folder while it is written: by one process, of one model, and of one set of prompts and metrics.

``run.json`` has what was asked for and the model's fingerprint. It is written once, and again only when methods are
added. Every record says of which evaluation it is, so that a folder whose ``run.json`` was lost can be resumed too.
"""

import json
import os
import platform
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from errno import ENOLCK, ENOSYS, ENOTSUP
from hashlib import sha256
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from heta_lens.evaluation.records import RUN, Record, append, read_records, read_run, repair
from heta_lens.files import write_atomically
from heta_lens.prediction import versions

LOCK, HOLDER = ".lock", ".lock-holder"
FINGERPRINT = "fingerprint"
NO_LOCKS = {ENOLCK, ENOTSUP, ENOSYS}  # of file systems that have none
OF_MODEL = {"model", FINGERPRINT, "versions"}
APART = {"methods", "model"}  # what may differ between records of one evaluation: methods are added, a folder renamed


@dataclass(frozen=True)
class RunFolder:
    """A folder that is open for an evaluation.

    ``stamps`` are what records of each method, by its label, have as their ``evaluation``; ``records`` are those that
    are there.
    """

    path: Path
    stamps: Mapping[str, str]
    records: dict[tuple[str, str], Record]
    retry_failed: bool = False

    def left(self, instance: str, metrics: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The metrics that are still to be computed of an instance, by the labels of methods that have some left."""
        left = {
            label: self._left(self.records.get((instance, label)), stamp, metrics)
            for label, stamp in self.stamps.items()
        }
        return {label: names for label, names in left.items() if names}

    def _left(self, record: Record | None, stamp: str, metrics: Sequence[str]) -> tuple[str, ...]:
        if record is None or record.evaluation not in ("", stamp):
            return tuple(metrics)
        if record.failed:
            return tuple(metrics) if self.retry_failed else ()
        again = record.errors if self.retry_failed else ()
        return tuple(name for name in metrics if name not in record.values or name in again)

    def append(self, record: Record, metrics: Sequence[str]) -> None:
        """Keep what was found of these metrics, beside the values of others that the record had already."""
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
        doubts=(*(name for name in before.doubts if name not in metrics), *after.doubts),
    )


def _without(named: Mapping[str, str], metrics: Collection[str]) -> dict[str, str]:
    return {name: what for name, what in named.items() if name not in metrics}


@contextmanager
def opened(
    folder: Path,
    asked: Mapping[str, Any],
    methods: Mapping[str, Mapping[str, Any]],
    model: Mapping[str, str],
    *,
    retry_failed: bool = False,
) -> Iterator[RunFolder]:
    """A folder to write records into, which belongs to this process until the block ends.

    Args:
        folder: where; it is made if it is not there.
        asked: what ``run.json`` is to say. A folder of another evaluation is refused.
        methods: method and options of each label.
        model: the model's `fingerprint`.
        retry_failed: whether methods and metrics that failed are left to be done, too.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: give a folder to keep the evaluation in")
    told = json.loads(json.dumps({**asked, FINGERPRINT: dict(model), "versions": versions()}))
    stamps = {label: f"{_digest(_identity(told))}-{_digest(method)}" for label, method in methods.items()}
    with writing_into(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        records = _records(folder)
        before = _before(folder, records)
        if before is not None and _only_failed(before, told, records):
            before, records = None, []
        run = _agreed(folder, before, told, stamps, records)
        if json.dumps(run) != json.dumps(before):  # in which the order of methods counts
            write_atomically(folder / RUN, json.dumps(run, ensure_ascii=False, indent=1) + "\n")
        repair(folder)
        yield RunFolder(folder, stamps, {record.key: record for record in records}, retry_failed)


def _records(folder: Path) -> list[Record]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of damaged lines, which repair tells of when they are moved
        return read_records(folder)


def _identity(told: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if name not in APART}


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


# ------------------------------------------------------------------------------------------------------------- locking
@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other evaluations out of a folder. The system ends this with the process, however that ends."""
    lock = FileLock(folder / LOCK)
    try:
        with writing_into(folder):
            lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(
            f"another evaluation{_holder(folder)} is writing into {folder}: wait until it has ended, or give another "
            "folder"
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        warnings.warn(f"{folder} cannot be locked: see that no other evaluation writes into it", stacklevel=2)
    try:
        with suppress(OSError):  # this is only what a refusal quotes
            (folder / HOLDER).write_text(f" (process {os.getpid()} on {platform.node()})", encoding="utf-8")
        yield
    finally:
        lock.release()


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """Say of which folder it is that the system refuses something."""
    try:
        yield
    except Timeout:
        raise
    except OSError as error:
        raise OSError(error.errno or 0, f"cannot write into {folder}: {error.strerror or error}") from error


def _holder(folder: Path) -> str:
    with suppress(OSError, ValueError):
        return (folder / HOLDER).read_text(encoding="utf-8")
    return ""


# ----------------------------------------------------------------------------------------------- is it this evaluation?
def _only_failed(before: Mapping[str, Any], told: Mapping[str, Any], records: Sequence[Record]) -> bool:
    """Whether another model may be used, since nothing was measured with the first: all is done again."""
    changed = _changed(before, told)
    return bool(changed) and changed <= OF_MODEL and not any(_measured(record) for record in records)


def _agreed(
    folder: Path,
    before: Mapping[str, Any] | None,
    told: Mapping[str, Any],
    stamps: Mapping[str, str],
    records: Sequence[Record],
) -> Mapping[str, Any]:
    """What ``run.json`` is to say; a folder of another evaluation is refused."""
    if before is None:
        _check_vouched(folder, told, stamps, records)
        return told
    if changed := _changed(before, told):
        raise ValueError(_refusal(folder, before, told, changed))
    _check_stamps(folder, stamps, records)
    unknown = FINGERPRINT not in before and bool(records)
    if unknown:
        warnings.warn(
            f"{folder} was begun by a version that kept no fingerprint of the model: whether its {len(records)} "
            "records are of this model cannot be checked",
            stacklevel=2,
        )
    run = {name: value for name, value in told.items() if not (unknown and name == FINGERPRINT)}
    return {**run, **({"model": before["model"]} if "model" in before else {})}


def _before(folder: Path, records: Sequence[Record]) -> dict[str, Any] | None:
    """What ``run.json`` says; None where there is none, or where it can be made again from what is asked for."""
    path = folder / RUN
    if not os.path.lexists(path) or not path.read_bytes().strip(b"\0 \r\n\t"):
        return None
    try:
        return read_run(folder)
    except ValueError:
        if not records:
            raise  # this may be somebody's file
        return None


def _changed(before: Mapping[str, Any], told: Mapping[str, Any]) -> set[str]:
    changed = {name for name in {**before, **told} if before.get(name) != told.get(name)}
    if FINGERPRINT not in before:
        changed -= {FINGERPRINT}
    elif FINGERPRINT not in changed:
        changed -= {"model"}  # which is only how it was called
    if before.get("methods", {}).items() <= told.get("methods", {}).items():
        changed -= {"methods"}
    return changed


def _refusal(folder: Path, before: Mapping[str, Any], told: Mapping[str, Any], changed: Collection[str]) -> str:
    names = [name for name in {**before, **told} if name in changed and name != FINGERPRINT]
    if FINGERPRINT in changed:
        parts = [name for name in told[FINGERPRINT] if before[FINGERPRINT].get(name) != told[FINGERPRINT][name]]
        names = [*(name for name in names if name != "model"), f"model (other {', '.join(parts)})"]
    held = "; ".join(f"{what}: {', '.join(before[what])}" for what in ("methods", "metrics") if what in before)
    return (
        f"{folder} holds an evaluation with other {', '.join(names)}: give another folder, or all that this one has "
        f"({held}), to which methods may be added"
    )


def _measured(record: Record) -> bool:
    return any(value is not None for value in record.values.values())


def _check_stamps(folder: Path, stamps: Mapping[str, str], records: Sequence[Record]) -> None:
    """Refuse records that say that they are of another evaluation, whatever ``run.json`` says."""
    others = [one for one in records if one.evaluation and _measured(one) and not _vouched(one, stamps)]
    if others:
        raise ValueError(
            f"{len(others)} of {len(records)} records in {folder} (the first: {others[0].method!r} on "
            f"{others[0].instance!r}) are of another evaluation, with another model, other prompts, metrics or "
            "options: give another folder"
        )


def _check_vouched(folder: Path, told: Mapping[str, Any], stamps: Mapping[str, str], records: Sequence[Record]) -> None:
    """Refuse records that do not say that they are of this evaluation, where there is nothing else that could."""
    strangers = sorted({record.method for record in records} - stamps.keys()) if "methods" in told else []
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
    """Whether a record is of this evaluation, and of a method as it is asked for, if it is."""
    if record.method in stamps:
        return record.evaluation == stamps[record.method]
    return record.evaluation.partition("-")[0] in {stamp.partition("-")[0] for stamp in stamps.values()}
