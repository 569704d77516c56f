"""Shards of an evaluation: each process does every n-th prompt, into a folder of its own."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

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
