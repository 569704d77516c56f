"""Shards: parts of an evaluation that jobs of a cluster run apart."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")

FORM = re.compile(r"(\d+|auto)/(\d+)")
FOLDERS = "shard-*-of-*"
NUMBERS = ("SLURM_ARRAY_TASK_ID", "RANK", "SLURM_PROCID")  # variables with the number of a process


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

    def of(self, items: list[Item]) -> list[Item]:
        return items[self.index :: self.count]
