"""Scores of many prompts on disk: read again as attributions, and written as JSON lines, Parquet or CSV."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple
from zlib import compress, decompress

import pandas as pd

from heta_lens._util.extras import extra
from heta_lens._util.file_reading import regular_file
from heta_lens._util.file_writing import write_atomically
from heta_lens._util.json_lines_file import JsonLinesFile
from heta_lens._util.lazy_sequence import Lazy
from heta_lens._util.options import check_choice, hint
from heta_lens.attribution import Attribution
from heta_lens.data import dataset_files
from heta_lens.evaluation.score_rows import ScoreRow

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
    rows = dataset_files.read(path, "scores")
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
