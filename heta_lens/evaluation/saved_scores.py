"""The scores of many prompts on disk: JSON lines, Parquet or CSV, which load as attributions again.

A row holds an attribution. Values per token (token, score, parts, standard errors, role, …) are lists in the row, under
the column names of `Attribution.to_frame`: the ``explode`` of pandas makes a row per token.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple
from zlib import compress, decompress

import pandas as pd
import torch
from torch import Tensor

from heta_lens._util.files import brief, regular_file, write_atomically
from heta_lens._util.options import check_choice, check_fields, hint
from heta_lens._util.python import Lazy, extra
from heta_lens._util.storage import pack, reason, unpack
from heta_lens.attribution import Attribution, stored_fields
from heta_lens.data import records
from heta_lens.evaluation.json_lines import JsonLinesFile

SCORES = "scores.jsonl"
READ_COLUMNS = ("position", "token", "id", "special", "start", "stop", "score")
FIELDS_IN_COLUMNS = ("tokens", "ids", "positions", "special", "offsets", "scores", "parts", "text")
JSON_IN_PARQUET = ("options", "versions", "dtypes", "rest")  # nested fields, which Parquet files hold as JSON


NESTED_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    )
}


@dataclass(frozen=True)
class ScoreRow:
    """The scores of a method on a prompt, as files hold them."""

    prompt: str  # the id of the prompt in the run
    method: str  # the label of the method in the run
    text: str
    target_text: str
    columns: Mapping[str, Sequence[Any]]  # lists with a value per token, by name
    parts: Sequence[str] = ()  # the names of the columns that are parts of the score
    dtypes: Mapping[str, str] = field(default_factory=dict)  # the precision of the scores and of the parts
    options: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    forwards: int = 0
    backwards: int = 0
    hvps: int = 0
    evaluation: str = ""  # the identity of the run
    number: int = 0  # the place of the prompt in the run
    rest: Mapping[str, Any] = field(default_factory=dict)  # the fields of the attribution without a column

    @property
    def key(self) -> tuple[str, str]:
        return self.prompt, self.method

    def flat(self) -> dict[str, Any]:
        """Return the row as files hold it: columns beside the other fields."""
        row = asdict(self)
        return row | row.pop("columns")

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "ScoreRow":
        """Read and check a row of a file."""
        names = {entry.name for entry in fields(cls)} - {"columns"}
        values = {name: value for name, value in row.items() if name in names}
        values["columns"] = {name: value for name, value in row.items() if name not in names}
        check_fields(cls, values)
        made = cls(**values)
        made._check_columns()
        return made

    def _check_columns(self) -> None:
        if missing := [name for name in (*READ_COLUMNS, *self.parts) if name not in self.columns]:
            raise ValueError(f"it has no column {', '.join(missing)}")
        count = len(self.columns["token"])
        for name, values in self.columns.items():
            if len(values) != count:
                raise ValueError(f"its {name} has {len(values)} values for {count} tokens")
        for name in ("score", *self.parts):
            if not all(isinstance(value, int | float) for value in self.columns[name]):
                raise TypeError(f"its {name} holds more than numbers")

    def attribution(self) -> Attribution:
        """Make the attribution of the row again."""
        columns = self.columns
        values = {
            **from_json(self.rest),
            "text": self.text,
            "tokens": tuple(columns["token"]),
            "ids": torch.tensor(columns["id"]),
            "positions": torch.tensor(columns["position"]),
            "special": torch.tensor(columns["special"]),
            "offsets": torch.tensor([columns["start"], columns["stop"]]).T.contiguous(),
            "scores": self._numbers("score"),
            "parts": {name: self._numbers(name) for name in self.parts},
        }
        return Attribution.of_fields(values)

    def _numbers(self, name: str) -> Tensor:
        dtype = self.dtypes.get(name, "float32")
        if dtype not in NESTED_DTYPES:
            raise ValueError(f"its {name} has the dtype {brief(dtype)}, which is no dtype of torch")
        return torch.tensor(self.columns[name], dtype=NESTED_DTYPES[dtype])


def to_json(value: Any) -> dict[str, Any]:
    """Return the JSON of a value, with the tensors beside the value as lists of numbers."""
    tensors: dict[str, Tensor] = {}
    packed = pack(value, tensors)
    lists = {
        name: {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": [*tensor.shape],
            "values": pack(shortest(tensor), {}),
        }
        for name, tensor in tensors.items()
    }
    return {"value": packed, "tensors": lists}


def from_json(written: Any) -> Any:
    """Return the value of JSON from `to_json`; raise a ValueError for foreign JSON."""
    try:
        tensors = {
            name: torch.tensor(unpack(entry["values"], {}), dtype=NESTED_DTYPES[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in written["tensors"].items()
        }
        return unpack(written["value"], tensors)
    except Exception as error:  # every library below has exceptions for damaged input
        raise ValueError(f"{brief(written)} is not a value and its tensors: {reason(error)}") from None


def shortest(tensor: Tensor) -> list[Any]:
    """Return the numbers of a tensor, flat, with only the digits that the precision of the tensor can tell apart."""
    values = tensor.detach().cpu().flatten()
    if values.dtype in (torch.float32, torch.float16, torch.bfloat16):
        return [float(str(value)) for value in values.float().numpy()]
    return values.tolist()


def row_of(prompt: str, method: str, attribution: Attribution, number: int = 0) -> ScoreRow:
    """Make the row of an attribution, under the names of the prompt and of the method."""
    frame, cost, target = attribution.to_frame(), attribution.diagnostics.cost, attribution.target_text
    numbers = {"score": attribution.scores, **attribution.parts}
    frame = frame.astype(object).where(frame.notna(), None)
    columns = {str(name): column.tolist() for name, column in frame.items()}
    rest = {name: value for name, value in stored_fields(attribution).items() if name not in FIELDS_IN_COLUMNS}
    options = json.loads(json.dumps({**attribution.options}, default=str))
    return ScoreRow(
        prompt=prompt,
        method=method,
        text=attribution.text,
        target_text=target if isinstance(target, str) else " rather than ".join(target),
        columns=columns | {name: shortest(values) for name, values in numbers.items()},
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


class PackedRow(NamedTuple):
    """A checked row, compressed to save memory."""

    prompt: str
    method: str
    number: int
    data: bytes

    @classmethod
    def of(cls, row: ScoreRow) -> "PackedRow":
        return cls(*row.key, row.number, compress(json.dumps(row.flat(), ensure_ascii=False).encode(errors="replace")))

    def row(self) -> ScoreRow:
        return ScoreRow.of(json.loads(decompress(self.data)))


@dataclass(frozen=True, eq=False, repr=False)
class SavedScores(Sequence[Attribution]):
    """The saved attributions of many prompts: ``scores[0]``, or ``scores["story-1", "heta"]``.

    An attribution is made when it is accessed.
    """

    packed: tuple[PackedRow, ...]

    def __len__(self) -> int:
        return len(self.packed)

    def __iter__(self) -> Iterator[Attribution]:
        return (row.attribution() for row in self.rows)

    def __getitem__(self, place: Any) -> Any:
        """Return the attribution of a number, or of a prompt and a method; a slice returns saved scores."""
        if isinstance(place, slice):
            return SavedScores(self.packed[place])
        if not isinstance(place, tuple):
            return self.rows[place].attribution()
        if place in self.names:
            return self.rows[self.names.index(place)].attribution()
        prompt, method = place
        near = hint(prompt, self.prompts) if prompt not in self.prompts else hint(method, self.methods)
        raise KeyError(f"there are no scores of {method!r} on {prompt!r}{near}; methods: {', '.join(self.methods)}")

    @property
    def rows(self) -> Sequence[ScoreRow]:
        return Lazy(len(self), lambda number: self.packed[number].row())

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """The prompt and the method of every attribution."""
        return tuple((row.prompt, row.method) for row in self.packed)

    @property
    def prompts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.prompt for row in self.packed))

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.method for row in self.packed))

    def of(self, *, prompt: str | None = None, method: str | None = None) -> "SavedScores":
        """Select the scores of a prompt, or of a method."""
        for name, value, known in ("prompt", prompt, self.prompts), ("method", method, self.methods):
            if value is not None:
                check_choice(name, value, known)
        return SavedScores(
            tuple(row for row in self.packed if prompt in (None, row.prompt) and method in (None, row.method))
        )

    def to_frame(self) -> pd.DataFrame:
        """Make a table with a row per token, and the names of the prompt and of the method."""
        frames = [pd.DataFrame({"prompt": row.prompt, "method": row.method, **row.columns}) for row in self.rows]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def save(self, path: str | PathLike[str]) -> None:
        """Write a .jsonl or .parquet file with a row per attribution, or a .csv file with a row per token."""
        check_choice("the suffix of path", Path(path).suffix, [*WRITERS])
        write_atomically(path, WRITERS[Path(path).suffix](self))

    def __repr__(self) -> str:
        return f"SavedScores({len(self.prompts)} prompts, methods: {', '.join(self.methods)})"


def load_scores(path: str | PathLike[str]) -> SavedScores:
    """Load the attributions that `attribute_dataset` or `evaluate` saved in a folder, or that `save` wrote to a file.

    Prompts come in the order of the run, methods in the order of their first run. The last of several attributions of
    a prompt by a method counts.
    """
    file = Path(path).expanduser()
    file = file / SCORES if file.is_dir() else file
    regular_file(file, f"{path} has no scores: heta-lens attribute-dataset … --out {path} makes them")
    if file.suffix not in READERS:
        raise ValueError(
            f"{file.name} is no {' or '.join(READERS)} file of scores; Attribution.load reads .safetensors"
        )
    latest = {row[:2]: row for row in sorted(READERS[file.suffix](file), key=lambda row: row.number)}
    prompts, methods = (dict.fromkeys(names) for names in zip(*latest, strict=True)) if latest else ((), ())
    return SavedScores(
        tuple(latest[prompt, method] for prompt in prompts for method in methods if (prompt, method) in latest)
    )


def score_lines(path: Path) -> JsonLinesFile[PackedRow]:
    """Open the file of scores that a run appends to: ``scores.jsonl`` in a folder, or another file."""
    return JsonLinesFile(
        path / SCORES if path.is_dir() else path,
        lambda values: PackedRow.of(ScoreRow.of(values)),
        "scores of a prompt",
        "run again into this folder to redo them",
    )


def _read_parquet(path: Path) -> list[PackedRow]:
    rows = records.read(path, "scores")
    try:
        return [PackedRow.of(ScoreRow.of(_parquet_row(row, json.loads))) for row in rows]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} holds no scores: {error}") from None


def _to_parquet(scores: SavedScores) -> bytes:
    extra("datasets", "Parquet")  # pyarrow comes with the extra
    rows = [_parquet_row(row.flat(), lambda value: json.dumps(value, ensure_ascii=False)) for row in scores.rows]
    return pd.DataFrame(rows).to_parquet(index=False)


def _parquet_row(row: Mapping[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Convert the nested fields of a row, and leave out the columns without a value."""
    return {
        name: convert(value) if name in JSON_IN_PARQUET else value for name, value in row.items() if value is not None
    }


def _to_jsonl(scores: SavedScores) -> str:
    return "".join(json.dumps(row.flat(), ensure_ascii=False, allow_nan=False) + "\n" for row in scores.rows)


READERS: dict[str, Callable[[Path], list[PackedRow]]] = {
    ".jsonl": lambda path: score_lines(path).read(),
    ".parquet": _read_parquet,
}
WRITERS: dict[str, Callable[[SavedScores], bytes | str]] = {
    ".jsonl": _to_jsonl,
    ".parquet": _to_parquet,
    ".csv": lambda scores: scores.to_frame().to_csv(index=False),
}
