"""An attribution as a row: columns that any tool can read, and all that is needed to have the attribution again.

What there is one of per token (token, score, parts, standard errors, role, place …) is a list in the row, under the
name of its column in `Attribution.to_frame`: pandas' ``explode`` gives a row per token.
"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple
from zlib import compress, decompress

import pandas as pd
import torch
from torch import Tensor

from heta_lens._util.files import JsonLinesFile, brief, regular_file, write_atomically
from heta_lens._util.options import check_choice, check_fields, hint
from heta_lens._util.python import Lazy, extra
from heta_lens._util.storage import NESTED_DTYPES, from_json, shortest, to_json
from heta_lens.attribution import Attribution, stored_fields
from heta_lens.data import records

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
        if dtype not in NESTED_DTYPES:
            raise ValueError(f"its {name} has the dtype {brief(dtype)}, which is none of torch's")
        return torch.tensor(self.columns[name], dtype=NESTED_DTYPES[dtype])


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


# --------------------------------------------------------------------------------------------------------- kept scores
# Scores of many prompts on disk: read again as attributions, and written as JSON lines, Parquet or CSV.


SCORES = "scores.jsonl"
NESTED = ("options", "versions", "dtypes", "rest")  # fields that Parquet has as JSON


class Packed(NamedTuple):
    """A row, checked and in little memory."""

    prompt: str
    method: str
    number: int
    data: bytes

    @classmethod
    def of(cls, row: ScoreRow) -> "Packed":
        return cls(*row.key, row.number, compress(json.dumps(row.flat(), ensure_ascii=False).encode(errors="replace")))

    def row(self) -> ScoreRow:
        return ScoreRow.of(json.loads(decompress(self.data)))


@dataclass(frozen=True, eq=False, repr=False)
class KeptScores(Sequence[Attribution]):
    """Attributions of many prompts, as a folder or file has them: ``scores[0]``, or ``scores["story-1", "heta"]``.

    Each is made when it is accessed.
    """

    packed: tuple[Packed, ...]

    def __len__(self) -> int:
        return len(self.packed)

    def __iter__(self) -> Iterator[Attribution]:
        return (row.attribution() for row in self.rows)

    def __getitem__(self, place: Any) -> Any:
        """An attribution by its number or by the names of its prompt and method; a slice has the scores of some."""
        if isinstance(place, slice):
            return KeptScores(self.packed[place])
        number = self._number(*place) if isinstance(place, tuple) else place
        return self.rows[number].attribution()

    def _number(self, prompt: str, method: str) -> int:
        if (prompt, method) in self.names:
            return self.names.index((prompt, method))
        near = hint(prompt, self.prompts) if prompt not in self.prompts else hint(method, self.methods)
        raise KeyError(f"there are no scores of {method!r} on {prompt!r}{near}; methods: {', '.join(self.methods)}")

    @property
    def rows(self) -> Sequence[ScoreRow]:
        return Lazy(len(self), lambda number: self.packed[number].row())

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """Of each, prompt and method."""
        return tuple((each.prompt, each.method) for each in self.packed)

    @property
    def prompts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.prompt for each in self.packed))

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.method for each in self.packed))

    def of(self, *, prompt: str | None = None, method: str | None = None) -> "KeptScores":
        """Only those of a prompt, or of a method."""
        if prompt is not None:
            check_choice("prompt", prompt, self.prompts)
        if method is not None:
            check_choice("method", method, self.methods)
        chosen = [each for each in self.packed if prompt in (None, each.prompt) and method in (None, each.method)]
        return KeptScores(tuple(chosen))

    def to_frame(self) -> pd.DataFrame:
        """A row per token, with the names of prompt and method."""
        frames = [pd.DataFrame({"prompt": row.prompt, "method": row.method, **row.columns}) for row in self.rows]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def save(self, path: str | PathLike[str]) -> None:
        """Write a .jsonl or .parquet file of a row per attribution, or a .csv file of a row per token."""
        check_choice("the suffix of path", Path(path).suffix, [*WRITERS])
        write_atomically(path, WRITERS[Path(path).suffix](self))

    def __repr__(self) -> str:
        return f"KeptScores({len(self.prompts)} prompts, methods: {', '.join(self.methods)})"


def load_scores(path: str | PathLike[str]) -> KeptScores:
    """The attributions that `attribute_dataset` and `evaluate` kept in a folder, or a file that was saved of them.

    In the order of prompts, and in which methods were first run. Of two for one prompt and method, the later counts.
    """
    where = Path(path).expanduser()
    where = where / SCORES if where.is_dir() else where
    regular_file(where, f"{path} has no scores: heta-lens attribute-dataset … --out {path} makes them")
    if where.suffix not in READERS:
        raise ValueError(
            f"{where.name} is no {' or '.join(READERS)} file of scores; Attribution.load reads .safetensors"
        )
    read = sorted(READERS[where.suffix](where), key=lambda packed: packed.number)
    latest = {packed[:2]: packed for packed in read}
    prompts, methods = (list(dict.fromkeys(names)) for names in zip(*latest, strict=True)) if latest else ([], [])
    return KeptScores(
        tuple(latest[prompt, method] for prompt in prompts for method in methods if (prompt, method) in latest)
    )


def score_lines(folder: Path) -> JsonLinesFile[Packed]:
    """The file of scores that a run appends to."""
    return _lines(folder / SCORES)


def _lines(path: Path) -> JsonLinesFile[Packed]:
    def packed(values: Mapping[str, Any]) -> Packed:
        return Packed.of(ScoreRow.of(values))

    return JsonLinesFile(path, packed, "scores of a prompt", "run again into this folder to redo them")


def _read_parquet(path: Path) -> list[Packed]:
    rows = records.read(path, "scores")
    try:
        return [Packed.of(ScoreRow.of(_nested(json.loads, row))) for row in rows]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} holds no scores: {error}") from None


def _nested(convert: Callable[[Any], Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of Parquet, without columns that only other rows have."""
    return {name: convert(value) if name in NESTED else value for name, value in row.items() if value is not None}


def _to_parquet(scores: KeptScores) -> bytes:
    extra("datasets", "Parquet")  # which pyarrow comes with
    import pyarrow
    import pyarrow.parquet

    rows = [_nested(partial(json.dumps, ensure_ascii=False), row.flat()) for row in scores.rows]
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(_alike(rows)), sink)
    return sink.getvalue().to_pybytes()


def _alike(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the columns of all of them: the first decides which a table has."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


def _to_jsonl(scores: KeptScores) -> str:
    return "".join(json.dumps(row.flat(), ensure_ascii=False, allow_nan=False) + "\n" for row in scores.rows)


def _to_csv(scores: KeptScores) -> str:
    out = StringIO()
    scores.to_frame().to_csv(out, index=False, quoting=csv.QUOTE_MINIMAL)
    return out.getvalue()


READERS: dict[str, Callable[[Path], list[Packed]]] = {
    ".jsonl": lambda path: _lines(path).read(),
    ".parquet": _read_parquet,
}
WRITERS: dict[str, Callable[[KeptScores], bytes | str]] = {
    ".jsonl": _to_jsonl,
    ".parquet": _to_parquet,
    ".csv": _to_csv,
}
