"""Makes one evaluation of its shards."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from heta_lens.evaluation.folder_lock import locked
from heta_lens.evaluation.kept_scores import SCORES, load_scores, score_lines
from heta_lens.evaluation.resumable_run_folder import write_run
from heta_lens.evaluation.run_records import RUN, Record, read_records, read_run, replace_records
from heta_lens.evaluation.shards import FOLDERS, Shard

OF_SHARD = {"shard", "model"}  # entries of run.json that may differ between shards


class Part(NamedTuple):
    """A shard on disk."""

    folder: Path
    shard: Shard
    run: Mapping[str, Any]
    records: Sequence[Record]

    @property
    def left(self) -> int:
        """How many results it lacks."""
        wanted = len(range(self.shard.index, self.run["instances"], self.shard.count)) * len(self.run["methods"])
        return wanted - len({record.key for record in self.records})


def merge(folder: Path, parts: Sequence[Path] = (), *, partial: bool = False) -> int:
    """Make one evaluation of shards, in the folder; the shards stay as they are. Returns how many results it has.

    What the folder has already is kept, and so this may be repeated as shards finish. Shards of different evaluations
    are refused, with the difference.

    Args:
        folder: the folder of the evaluation.
        parts: the folders of its shards; by default those inside the folder.
        partial: merge what there is, although shards are missing or not finished.
    """
    found = [*parts] or sorted(path for path in folder.glob(FOLDERS) if path.is_dir())
    if not found:
        raise ValueError(f"{folder} holds no shards: heta-lens evaluate … --shard 0/2 --out {folder} makes the first")
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as locks:
        for each in (folder, *found):
            locks.enter_context(locked(each))
        shards = [_part(each) for each in found]
        _check_alike(shards)
        if (lacking := [*_lacking(shards)]) and not partial:
            raise ValueError(f"{'; '.join(lacking)}: run what is missing, or add --partial (partial=True)")
        return _merged(folder, shards)


def _part(folder: Path) -> Part:
    run = read_run(folder)
    if not run.get("shard"):
        raise ValueError(f"{folder} holds a whole evaluation, and no shard of one")
    return Part(folder, Shard.read(run["shard"]), run, read_records(folder))


def _check_alike(shards: Sequence[Part]) -> None:
    first = shards[0]
    for other in shards[1:]:
        different = [name for name in {**first.run, **other.run} if first.run.get(name) != other.run.get(name)]
        if different := [name for name in different if name not in OF_SHARD]:
            raise ValueError(
                f"{other.folder} is of another evaluation than {first.folder}: other {', '.join(different)}"
            )
        if other.shard.count != first.shard.count:
            raise ValueError(f"{other.folder} is shard {other.shard}, and {first.folder} shard {first.shard}")
    for shard in {part.shard for part in shards}:
        if len(same := [str(part.folder) for part in shards if part.shard == shard]) > 1:
            raise ValueError(f"{' and '.join(same)} are both shard {shard}")


def _lacking(shards: Sequence[Part]) -> Iterator[str]:
    there = {part.shard.index for part in shards}
    count = shards[0].shard.count
    for index in range(count):
        if index not in there:
            yield f"shard {Shard(index, count)} is missing"
    for part in shards:
        if part.left > 0:
            yield f"shard {part.shard} lacks {part.left} results"


def _merged(folder: Path, shards: Sequence[Part]) -> int:
    whole = {name: value for name, value in shards[0].run.items() if name != "shard"}
    before: dict[tuple[str, str], Record] = {}
    if (folder / RUN).exists():
        old = read_run(folder)
        if different := [name for name in {**old, **whole} if name != "model" and old.get(name) != whole.get(name)]:
            raise ValueError(f"{folder} holds another evaluation than its shards: other {', '.join(different)}")
        before = {record.key: record for record in read_records(folder)}
    records = {**before, **{record.key: record for part in shards for record in part.records}}
    scored = [load_scores(each) for each in (folder, *(part.folder for part in shards)) if (each / SCORES).exists()]
    rows = {row.key: row for scores in scored for row in scores.rows}
    write_run(folder, whole)
    replace_records(folder, [records[key] for key in sorted(records)])
    score_lines(folder).replace(row.flat() for row in sorted(rows.values(), key=lambda row: row.number))
    return len(records)
