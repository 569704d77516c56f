"""Shards: parts of an evaluation that jobs of a cluster run apart."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")

FORM = re.compile(r"(\d+|auto)/(\d+)")
FOLDERS = "shard-*-of-*"
STEP = "SLURM_ARRAY_TASK_STEP"
SCHEDULERS = (  # environment variables: the number of the process, the count, and the first number
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"),
    ("RANK", "WORLD_SIZE", ""),
    ("SLURM_PROCID", "SLURM_NTASKS", ""),
)


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
        """Read ``"0/3"``, or ``"auto/3"`` or ``"auto"``, for which the scheduler of the process sets variables."""
        if written == "auto":
            return cls._scheduled(environment)
        match = FORM.fullmatch(written)
        if match is None:
            raise ValueError(f"shard={written!r} is not of the form 0/3, nor auto/3, nor auto")
        index, count = match.groups()
        if index == "auto":
            names = [name for name, _, _ in SCHEDULERS]
            if not (known := [name for name in names if name in environment]):
                raise ValueError(f"shard='auto/…', and the environment has none of {', '.join(names)}")
            return cls(_number(environment, known[0]), int(count))
        return cls(int(index), int(count))

    @classmethod
    def _scheduled(cls, environment: Mapping[str, str]) -> "Shard":
        for name, count, first in SCHEDULERS:
            if name in environment and count in environment:
                number, total = _number(environment, name), _number(environment, count)
                begin = _number(environment, first) if first in environment else 0
                step = _number(environment, STEP) if first and STEP in environment else 1
                index, between = divmod(number - begin, step)
                if between or not 0 <= index < total or (total == 1 and begin):
                    raise ValueError(
                        f"shard='auto', and number {number} in an array of {total} jobs is only a part of the shards: "
                        "give the count, as auto/16, and numbers from 0"
                    )
                return cls(index, total)
        names = "; ".join(f"{name} and {count}" for name, count, _ in SCHEDULERS)
        raise ValueError(f"shard='auto', and the environment has none of these: {names}")

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


def _number(environment: Mapping[str, str], name: str) -> int:
    if not environment[name].isdecimal():
        raise ValueError(f"shard='auto', and the environment has {name}={environment[name]!r}, which is no number")
    return int(environment[name])
