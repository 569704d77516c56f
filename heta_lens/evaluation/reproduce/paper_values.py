"""The paper's tables: rows, columns and figures, and the reasons why some figures are impossible.

All of it is data in ``paper.json``, copied from the paper and not computed here.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple


class Place(NamedTuple):
    """A cell of a printed table."""

    model: str
    row: str
    column: str


@dataclass(frozen=True)
class Block:
    """The rows of entry model; ``hub`` is its name there, empty where a block is of several models.

    ``last_layers``: of how many layers curvature is taken, where it is not of all.
    """

    model: str
    hub: str
    rows: Mapping[str, tuple[str, ...]]
    last_layers: int = 0


@dataclass(frozen=True)
class Printed:
    """A table. ``named``: its rows or columns say which model they are of; ``across``: its columns do."""

    name: str
    labels: tuple[str, ...]
    title: str
    about: str
    columns: tuple[str, ...]
    blocks: tuple[Block, ...]
    impossible: Mapping[Place, tuple[str, ...]]
    named: bool = False
    across: bool = False
    length: int = 0
    """Tokens of its prompts, where the paper says."""
    prompts: int = 1000
    """The number of prompts of its runtimes."""

    @classmethod
    def read(cls, name: str, table: Mapping[str, Any]) -> "Printed":
        blocks = tuple(
            Block(**{**entry, "rows": {row: tuple(figures) for row, figures in entry["rows"].items()}})
            for entry in table["blocks"]
        )
        reasons: dict[Place, tuple[str, ...]] = {}
        for entry in table["impossible"]:
            for place in map(Place._make, entry["cells"]):
                reasons[place] = (*reasons.get(place, ()), entry["reason"])
        read = {"labels", "columns", "blocks", "impossible"}
        rest = {key: value for key, value in table.items() if key not in read}
        labels, columns = tuple(table["labels"]), tuple(table["columns"])
        return cls(name, labels, columns=columns, blocks=blocks, impossible=reasons, **rest)

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(self.blocks[0].rows)

    def figures(self) -> Iterator[tuple[Place, str]]:
        for block in self.blocks:
            for row, figures in block.rows.items():
                for column, figure in zip(self.columns, figures, strict=True):
                    yield Place(block.model, row, column), figure


@cache
def printed() -> Mapping[str, Printed]:
    tables = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
    return {name: Printed.read(name, table) for name, table in tables["tables"].items()}
