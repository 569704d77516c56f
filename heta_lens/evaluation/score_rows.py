"""An attribution as a row: columns that any tool can read, and all that is needed to have the attribution again.

What there is one of per token (token, score, parts, standard errors, role, place …) is a list in the row, under the
name of its column in `Attribution.to_frame`: pandas' ``explode`` gives a row per token.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from heta_lens._util.file_reading import brief
from heta_lens._util.nested_tensors import DTYPES, from_json, shortest, to_json
from heta_lens._util.type_checks import check_fields
from heta_lens.attribution import Attribution, stored_fields

LISTS = ("position", "token", "id", "special", "start", "stop", "score")  # columns that are read again
PER_TOKEN = ("tokens", "ids", "positions", "special", "offsets", "scores", "parts")  # fields that they make


@dataclass(frozen=True)
class ScoreRow:
    """The scores of one method on one prompt.

    ``prompt`` and ``method`` are the names they have in their run, ``number`` is the prompt's place in it, and
    ``evaluation`` identifies it. ``columns`` have a
    list each, of one value per token; ``parts`` are the names of those that are parts of the score. ``dtypes`` are the
    precisions of score and parts. ``rest`` is what no column has.
    """

    prompt: str
    method: str
    text: str
    target_text: str
    columns: Mapping[str, Sequence[Any]]
    parts: Sequence[str] = ()
    dtypes: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    forwards: int = 0
    backwards: int = 0
    hvps: int = 0
    evaluation: str = ""
    number: int = 0
    rest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        return self.prompt, self.method

    def flat(self) -> dict[str, Any]:
        """The row as a file has it: columns beside the other fields."""
        row = asdict(self)
        columns = row.pop("columns")
        return {**row, **columns}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "ScoreRow":
        """From what `flat` gave."""
        own = {entry.name for entry in fields(cls)} - {"columns"}
        known = {name: value for name, value in row.items() if name in own}
        columns = {name: value for name, value in row.items() if name not in own}
        row = {**known, "columns": columns}
        check_fields(cls, row)
        made = cls(**row)
        made.check()
        return made

    def check(self) -> None:
        """Refuse columns that are missing, or not of one value per token."""
        needed = [*LISTS, *self.parts]
        if missing := [name for name in needed if name not in self.columns]:
            raise ValueError(f"it has no column {', '.join(missing)}")
        count = len(self.columns["token"])
        for name, values in self.columns.items():
            if len(values) != count:
                raise ValueError(f"its {name} has {len(values)} values for {count} tokens")
        for name in ("score", *self.parts):
            if not all(isinstance(value, int | float) for value in self.columns[name]):
                raise TypeError(f"its {name} holds more than numbers")

    def attribution(self) -> Attribution:
        """The attribution that the row was made of."""
        columns, rest = self.columns, from_json(self.rest)
        named = {
            "tokens": tuple(columns["token"]),
            "ids": torch.tensor(columns["id"]),
            "positions": torch.tensor(columns["position"]),
            "special": torch.tensor(columns["special"]),
            "offsets": torch.tensor([columns["start"], columns["stop"]]).T.contiguous(),
            "scores": self._numbers("score"),
            "parts": {name: self._numbers(name) for name in self.parts},
        }
        return Attribution.of_fields({**rest, **named, "text": self.text})

    def _numbers(self, name: str) -> Tensor:
        dtype = self.dtypes.get(name, "float32")
        if dtype not in DTYPES:
            raise ValueError(f"its {name} has the dtype {brief(dtype)}, which is none of torch's")
        return torch.tensor(self.columns[name], dtype=DTYPES[dtype])


def row_of(prompt: str, method: str, attribution: Attribution, number: int = 0) -> ScoreRow:
    """The scores of a prompt by a method, under these names; ``number`` is the prompt's place in its run."""
    frame, cost, target = attribution.to_frame(), attribution.diagnostics.cost, attribution.target_text
    numbers = {"score": attribution.scores, **attribution.parts}
    columns: dict[str, list[Any]] = {str(name): _plain(column) for name, column in frame.items()}
    columns |= {name: shortest(values) for name, values in numbers.items()}
    rest = {name: value for name, value in stored_fields(attribution).items() if name not in (*PER_TOKEN, "text")}
    options = json.loads(json.dumps({**attribution.options}, default=str))
    return ScoreRow(
        prompt=prompt,
        method=method,
        text=attribution.text,
        target_text=target if isinstance(target, str) else " rather than ".join(target),
        columns=columns,
        parts=tuple(attribution.parts),
        dtypes={name: str(values.dtype).removeprefix("torch.") for name, values in numbers.items()},
        versions=options.pop("versions", {}),
        options=options,
        seconds=cost.seconds or 0.0,
        forwards=cost.forwards or 0,
        backwards=cost.backwards or 0,
        hvps=cost.hvps or 0,
        number=number,
        rest=to_json(rest),
    )


def _plain(column: pd.Series) -> list[Any]:
    """A column's values as JSON has them, None where there is none."""
    return [None if missing else value for value, missing in zip(column.tolist(), column.isna(), strict=True)]
