"""Shards: parts of an evaluation, which jobs of their own evaluate, and which `merge` joins."""

import os
import re
import sqlite3
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heta_lens._util.files import RUN
from heta_lens.evaluation.run_database import SHARD_FOLDERS, different_parts, opened, reading

FORM = re.compile(r"(\d+|auto)/(\d+)")
NUMBERS = ("SLURM_ARRAY_TASK_ID", "RANK", "SLURM_PROCID")  # variables with the number of a process
MAY_DIFFER = {"shard", "model", "methods"}  # entries of the request that may differ between shards


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
        """Read ``"0/3"``, or ``"auto/3"``, for which the scheduler of the process sets a variable."""
        match = FORM.fullmatch(written)
        if match is None:
            raise ValueError(f"shard={written!r} is not of the form 0/3, nor auto/3")
        index, count = match.groups()
        if index == "auto":
            index = next((environment[name] for name in NUMBERS if name in environment), None)
            if index is None:
                raise ValueError(f"shard={written!r}, and the environment has none of {', '.join(NUMBERS)}")
        return cls(int(index), int(count))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @property
    def folder(self) -> str:
        """The name of the shard's folder inside the folder of the whole evaluation."""
        return f"shard-{self.index}-of-{self.count}"

    def size(self, total: int) -> int:
        """Return the number of prompts of the shard, out of ``total``."""
        return len(range(self.index, total, self.count))


def merge(folder: Path, parts: Sequence[Path] = (), *, partial: bool = False) -> int:
    """Merge shards to one evaluation in the folder, leave the shards as they are, and return the number of results.

    Merging can be repeated when more shards have finished or have more methods; a shard's result replaces a failed one.

    Args:
        folder: the folder of the evaluation.
        parts: the folders of the shards; by default the shards inside the folder.
        partial: merge although shards are missing or not finished.
    """
    folders = [*parts] or sorted(folder.glob(SHARD_FOLDERS))
    if not folders:
        raise ValueError(f"{folder} holds no shards: heta-lens evaluate … --shard 0/2 --out {folder} makes the first")
    runs, results = {}, {}
    for place in folders:
        with reading(place) as database:
            runs[place], results[place] = database.run, len(database.records())
    methods, shards = _checked_shards(runs)
    whole = runs[folders[0]]
    count = next(iter(shards)).count
    missing = [f"shard {index}/{count} is missing" for index in range(count) if Shard(index, count) not in shards]
    for shard, place in shards.items():
        if (left := shard.size(whole["instances"]) * len(methods) - results[place]) > 0:
            missing.append(f"shard {shard} lacks {left} results")
    if missing:
        if not partial:
            raise ValueError(f"{'; '.join(missing)}: run the missing work, or add --partial (partial=True)")
        warnings.warn(f"merged what there is: {'; '.join(missing)}", stacklevel=2)
    if (folder / RUN).exists():
        with reading(folder) as database:
            methods = {**database.run["methods"], **methods}
    request = {name: value for name, value in whole.items() if name not in ("schema", "shard", "fingerprint")}
    with opened(folder, {**request, "methods": methods}, (), ()) as database:
        for place, run in runs.items():
            if "fingerprint" in run:  # else its model was never loaded
                database.check_model(run["fingerprint"])
            database.connection.execute("ATTACH ? AS shard", [str(place if place.is_file() else place / RUN)])
            with database.writing() as db:
                _take_results(db)
            database.connection.execute("DETACH shard")
        return len(database.records())


def _checked_shards(runs: Mapping[Path, Mapping[str, Any]]) -> tuple[dict[str, Any], dict[Shard, Path]]:
    """Return the methods of all shards, and the folders by shard; refuse shards of different evaluations."""
    methods: dict[str, Any] = {}
    shards: dict[Shard, Path] = {}
    (first, start), *_ = runs.items()
    for folder, run in runs.items():
        model = {"fingerprint": run.get("fingerprint", start.get("fingerprint"))}  # one may not have loaded it yet
        different = [name for name in different_parts({**model, **start}, {**model, **run}) if name not in MAY_DIFFER]
        if any(methods.get(label, recipe) != recipe for label, recipe in run["methods"].items()):
            different.append("methods")
        if different:
            raise ValueError(f"{folder} is of another evaluation than {first}: other {', '.join(different)}")
        shard, of = (Shard.read(each.get("shard", "0/1")) for each in (run, start))  # 0/1 is a whole evaluation
        if shard.count != of.count:
            raise ValueError(f"{folder} is shard {shard}, and {first} shard {of}")
        if shard in shards:
            raise ValueError(f"{shards[shard]} and {folder} are both shard {shard}")
        shards[shard] = folder
        methods |= run["methods"]
    return methods, shards


def _take_results(db: sqlite3.Connection) -> None:
    """Copy the results of the attached shard, except failures of tasks and metrics that did not fail here."""
    known = ", ".join(f"{name} = coalesce(excluded.{name}, {name})" for name in ("tokens", "correct", "log_prob"))
    db.execute(f"INSERT INTO prompts SELECT * FROM shard.prompts WHERE true ON CONFLICT DO UPDATE SET {known}")
    kept = "SELECT 1 FROM tasks AS own WHERE own.prompt = new.prompt AND own.method = new.method AND own.state = 'done'"
    ended = "new.state = 'done' OR (new.state IN ('failed', 'skipped') AND NOT EXISTS (" + kept + "))"
    db.execute("CREATE TEMP TABLE taken AS SELECT prompt, method FROM shard.tasks AS new WHERE " + ended)
    for table in ("tasks", "metrics", "scores", "attributions"):
        taken = f"SELECT * FROM shard.{table} WHERE (prompt, method) IN (SELECT prompt, method FROM taken)"
        valued = "(prompt, method, metric) IN (SELECT prompt, method, metric FROM metrics WHERE NOT failed)"
        known = f" AND NOT (failed AND {valued})" if table == "metrics" else ""
        db.execute(f"INSERT OR REPLACE INTO {table} {taken}{known}")
    db.execute("DROP TABLE taken")
