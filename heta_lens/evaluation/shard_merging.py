"""Makes one evaluation of its shards."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from heta_lens.evaluation.folder_lock import locked
from heta_lens.evaluation.kept_scores import SCORES, Packed, load_scores, score_lines
from heta_lens.evaluation.resumable_run_folder import write_run
from heta_lens.evaluation.run_records import RUN, Record, read_records, read_run, replace_records
from heta_lens.evaluation.shards import FOLDERS, Shard

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
