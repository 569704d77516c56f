"""The attributions of many prompts, which `evaluate` and `attribute_dataset` keep in a folder."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from heta_lens._util.files import write_atomically
from heta_lens._util.options import check_choice, hint
from heta_lens._util.python import extra
from heta_lens.attribution import Attribution
from heta_lens.evaluation.run_database import reading


@dataclass(frozen=True, eq=False, repr=False)
class SavedScores(Sequence[Attribution]):
    """The saved attributions of many prompts: ``scores[0]``, or ``scores["story-1", "heta"]``.

    An attribution is read when it is accessed. ``names`` are the prompt and the method of every attribution.
    """

    path: Path
    names: tuple[tuple[str, str], ...]

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Attribution]:
        with reading(self.path) as database:
            for name in self.names:
                yield database.attribution(*name)

    def __getitem__(self, place: Any) -> Any:
        """Return the attribution of a number, or of a prompt and a method; a slice returns saved scores."""
        if isinstance(place, slice):
            return SavedScores(self.path, self.names[place])
        if isinstance(place, str):
            raise KeyError(f"{place!r} is one name: write scores[prompt, method], or .of(prompt=…)")
        prompt, method = place if isinstance(place, tuple) else self.names[place]
        if (prompt, method) not in self.names:
            near = hint(prompt, self.prompts) if prompt not in self.prompts else hint(method, self.methods)
            raise KeyError(f"there are no scores of {method!r} on {prompt!r}{near}; methods: {', '.join(self.methods)}")
        with reading(self.path) as database:
            return database.attribution(prompt, method)

    @property
    def prompts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(prompt for prompt, _ in self.names))

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(method for _, method in self.names))

    def of(self, *, prompt: str | None = None, method: str | None = None) -> "SavedScores":
        """Select the scores of a prompt, or of a method."""
        if prompt is not None:
            check_choice("prompt", prompt, self.prompts)
        if method is not None:
            check_choice("method", method, self.methods)
        chosen = (name for name in self.names if prompt in (None, name[0]) and method in (None, name[1]))
        return SavedScores(self.path, tuple(chosen))

    def to_frame(self) -> pd.DataFrame:
        """Make a table with a row per token, and the names of the prompt and of the method."""
        if not self.names:
            return pd.DataFrame()
        frames: dict[Any, pd.DataFrame] = {name: each.to_frame() for name, each in zip(self.names, self, strict=True)}
        return pd.concat(frames, names=["prompt", "method"]).droplevel(-1).reset_index()

    def save(self, path: str | PathLike[str]) -> None:
        """Export a row per token to a .csv, .jsonl or .parquet file."""
        check_choice("the suffix of path", Path(path).suffix, [*EXPORTS])
        write_atomically(path, EXPORTS[Path(path).suffix](self.to_frame()))

    def __repr__(self) -> str:
        return f"SavedScores({len(self.prompts)} prompts, methods: {', '.join(self.methods)})"


def load_scores(path: str | PathLike[str]) -> SavedScores:
    """Load the attributions that `attribute_dataset` or `evaluate` saved in a folder.

    Prompts and methods come in the order of the run.
    """
    file = Path(path).expanduser()
    with reading(file) as database:
        return SavedScores(database.path, tuple(database.explained()))


def _to_jsonl(table: pd.DataFrame) -> str:
    """Write all digits, of which pandas keeps 15 decimal places at most."""
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _to_parquet(table: pd.DataFrame) -> bytes:
    extra("datasets", "Parquet")  # pyarrow comes with the extra
    return table.to_parquet(index=False)


EXPORTS: Mapping[str, Callable[[pd.DataFrame], bytes | str]] = {
    ".csv": lambda table: table.to_csv(index=False),
    ".jsonl": _to_jsonl,
    ".parquet": _to_parquet,
}


def row_of(attribution: Attribution) -> dict[str, Any]:
    """Return an attribution as JSON: its columns as lists, and its options, versions and cost."""
    numbers = {"score": attribution.scores, **attribution.parts}
    frame = attribution.to_frame()
    columns = frame.astype(object).where(frame.notna(), None).to_dict("list")
    target = attribution.target_text
    options = json.loads(json.dumps({**attribution.options}, default=str))
    cost = attribution.diagnostics.cost
    return {
        "method": attribution.method,
        "text": attribution.text,
        "target_text": target if isinstance(target, str) else " rather than ".join(target),
        **{str(name): values for name, values in columns.items()},
        **{name: shortest(values) for name, values in numbers.items()},
        "parts": [*attribution.parts],
        "options": options,
        **{name: getattr(cost, name) or 0 for name in ("seconds", "forwards", "backwards", "hvps")},
    }


def shortest(tensor: Tensor) -> list[Any]:
    """Return the numbers of a tensor, flat, with only the digits that the precision of the tensor can tell apart."""
    values = tensor.detach().cpu().flatten()
    if values.dtype in (torch.float32, torch.float16, torch.bfloat16):
        return [float(str(value)) for value in values.float().numpy()]
    return values.tolist()
