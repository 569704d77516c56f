"""Records of data sets: from the Hugging Face hub, or from a json, jsonl, csv or parquet file.

A file is read whole or refused, because an evaluation should not depend on the lines that are damaged. The error names
the file, the first wrong line and the field, and counts further wrong lines.
"""

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from heta_lens._util.files import NotJSON, brief, numbered_lines, parse_json, read_text, regular_file
from heta_lens._util.python import extra

Record = Mapping[str, Any]
Item = TypeVar("Item")
Made = TypeVar("Made")


class Row(dict[str, Any]):
    """A record of a file, with its place in the file."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, Mapping):
            raise ValueError(f"{where} is not an object but {brief(values)}")
        super().__init__(values)
        self.where = where


def load(
    name: str, split: str = "test", path: str | Path | None = None, *, field: str = "", option: str = "path"
) -> list[Record]:
    """Return the records of the file at ``path``, or else of a data set of the Hugging Face hub.

    Args:
        name: the name on the hub.
        split: the split to load from the hub; a file has only one.
        path: a json, jsonl, csv or parquet file.
        field: the key of the records in a json file of an object.
        option: the caller's name of ``path``, for error messages.
    """
    if path is not None:
        return read(path, name, field=field, option=option)
    load_dataset = extra("datasets", "a data set of the Hugging Face hub").load_dataset
    try:
        return list(load_dataset(name, split=split))
    except (OSError, ValueError, RuntimeError) as error:
        raise OSError(
            f"the {split} split of {name} could not be had from the Hugging Face hub ({first_line(error)}): "
            f"give {option}= a json, jsonl, csv or parquet file of its records"
        ) from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without a full stop."""
    return str(error).strip().split("\n")[0].rstrip(".")


def read(path: str | Path, name: str = "the data set", *, field: str = "", option: str = "path") -> list[Record]:
    """Return the records of a json, jsonl, csv or parquet file."""
    path = Path(path).expanduser()
    readers = {".json": _json, ".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}
    if path.suffix not in readers:
        raise ValueError(f"{option}={str(path)!r} must end in one of {', '.join(readers)}, to be read as {name}")
    regular_file(path, f"{option}={str(path)!r} is not a file: give one with the records of {name}")
    records = _json(path, field) if path.suffix == ".json" else readers[path.suffix](path)
    if not records:
        raise ValueError(f"{path} holds no records of {name}")
    return records


def _json(path: Path, field: str = "") -> list[Record]:
    """Read a list of records, an object with the list, or (as on the hub) a record per line."""
    text = read_text(path)
    try:
        value = parse_json(text)
    except NotJSON as error:
        if error.reason == "Extra data":
            return json_lines(path, text)
        line = text.count("\n", 0, error.position) + 1
        raise ValueError(f"{path}, line {line}, is not valid JSON: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if isinstance(value, Mapping):
        value = value.get(field, [value])
    if not isinstance(value, list):
        raise ValueError(f"{path} holds no list of records")
    return [Row(record, f"{path}: record {number}") for number, record in enumerate(value)]


def _jsonl(path: Path) -> list[Record]:
    return json_lines(path, read_text(path))


def json_lines(path: str | Path, text: str) -> list[Record]:
    """Return the record of every line of JSON except blank lines."""

    def row(_: int, numbered: tuple[int, str]) -> Row:
        number, line = numbered
        try:
            return Row(parse_json(line), f"{path}, line {number}")
        except NotJSON as error:
            raise ValueError(f"{path}, line {number}, is not valid JSON: {error}") from None

    return [*each([*numbered_lines(text)], row, lambda numbered: f"{path}, line {numbered[0]}")]


def _csv(path: Path) -> list[Record]:
    # Not by pandas, which reads an answer such as "None" as missing.
    reader = csv.reader(StringIO(read_text(path), newline=""), strict=True)
    limit = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # global, and restored
    records: list[Record] = []
    try:
        columns = next(reader, [])
        if repeated := next((name for name in columns if columns.count(name) > 1), None):
            raise ValueError(f"{path}, line 1: the column {brief(repeated)} is there twice")
        first = reader.line_num + 1
        for row in reader:
            if row and len(row) != len(columns):
                counts = f"has {len(row)} fields, and line 1 names {len(columns)} columns"
                raise ValueError(f"{path}, line {first}, {counts}")
            if row:
                records.append(Row(dict(zip(columns, row, strict=True)), f"{path}, line {first}"))
            first = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}, is not valid CSV: {error}") from None
    finally:
        csv.field_size_limit(limit)
    return records


def _parquet(path: Path) -> list[Record]:
    import pyarrow.parquet  # comes with datasets

    try:
        with pyarrow.parquet.ParquetFile(path) as file:  # not `read_table`, which adds columns by the names of folders
            records = file.read().to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} is not a readable Parquet file: {reason[:200]}") from None
    return [Row(record, f"{path}: record {number}") for number, record in enumerate(records)]


# -------------------------------------------------------------------------------------------------------------- fields
LONGEST_ERROR = 600  # characters


def place_of(record: Any, otherwise: str = "") -> str:
    """Return the place of a record in its file, or else ``otherwise``."""
    return getattr(record, "where", otherwise)


def each(
    items: Iterable[Item], make: Callable[[int, Item], Made], place: Callable[[Item], str] = place_of
) -> Iterator[Made]:
    """Apply ``make`` to every item and its number; refuse the first wrong item by its place, and count the others."""
    for number, item in enumerate(items):
        try:
            made = make(number, item)
        except (ValueError, TypeError) as error:
            where = place(item)
            message = str(error) if where in str(error) else f"{where}: {error}"
            message = message if len(message) <= LONGEST_ERROR else f"{message[:LONGEST_ERROR]}…"  # with an odd id
            others = _count_wrong(items, number + 1, make) if isinstance(items, Sequence) else 0
            more = f" ({others} of those after it are wrong too)" if others else ""
            raise (TypeError if isinstance(error, TypeError) else ValueError)(message + more) from None
        yield made


def _count_wrong(items: Sequence[Item], start: int, make: Callable[[int, Item], Any]) -> int:
    wrong = 0
    for number in range(start, len(items)):
        try:
            make(number, items[number])
        except (ValueError, TypeError):
            wrong += 1
    return wrong


def needed(record: Record, names: Sequence[str], what: str) -> list[Any]:
    """Return the values of fields; refuse a missing field or null."""
    if not isinstance(record, Mapping):
        raise TypeError(f"{what} is {brief(record)}, and must be an object with {', '.join(names)}")
    if missing := [name for name in names if record.get(name) is None]:
        has = brief(", ".join(map(str, record)))[1:-1] or "nothing"
        raise ValueError(f"{what} has no {', '.join(missing)}: it has {has}")
    return [record[name] for name in names]


def texts(record: Record, names: Sequence[str], what: str) -> list[str]:
    """Return the values of fields of text; refuse values of another type."""
    return [_text(value, name, what) for name, value in zip(names, needed(record, names, what), strict=True)]


def text_or_nothing(record: Record, name: str, what: str) -> str:
    """Return the text of a field; empty if the field is missing or null."""
    value = record.get(name)
    return "" if value is None else _text(value, name, what)


def listed_texts(record: Record, name: str, what: str) -> list[str]:
    """Return the texts in a field's list; empty if the field is missing or null."""
    values = record.get(name)
    if not isinstance(values, list | tuple | None):
        raise TypeError(f"{what}: its {name} is {brief(values)}, and must be a list of text")
    return [_text(value, f"{name}[{at}]", what) for at, value in enumerate(values or ())]


def _text(value: Any, name: str, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what}: its {name} is {brief(value)}, and must be text")
    return value
