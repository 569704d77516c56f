"""Records of public data sets: from the Hugging Face hub, or from a file of the same format.

A file is read whole or refused, because an evaluation should not depend on which lines were damaged. The error names
the file, the first wrong line and the field, and counts the other wrong lines.
"""

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from heta_lens._util.extras import extra
from heta_lens._util.file_reading import NotJSON, brief, numbered_lines, parse_json, read_text, regular_file

Record = Mapping[str, Any]
Item = TypeVar("Item")
Made = TypeVar("Made")


class Row(dict[str, Any]):
    """A record of a file, with its place in it."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        super().__init__(values)
        self.where = where


def load(
    name: str, split: str = "test", path: str | Path | None = None, *, field: str = "", option: str = "path"
) -> list[Record]:
    """The records of a data set: of the file at ``path``, or else from the Hugging Face hub.

    Args:
        name: its name on the hub.
        split: which split to load from the hub; a file has only one.
        path: a json, jsonl, csv or parquet file.
        field: the key of the records in a json file of one object.
        option: the caller's name of ``path``, for error messages.
    """
    return _from_hub(name, split, option) if path is None else read(path, name, field=field, option=option)


def _from_hub(name: str, split: str, option: str) -> list[Record]:
    load_dataset = extra("datasets", "a data set of the Hugging Face hub").load_dataset

    try:
        return list(load_dataset(name, split=split))
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise OSError(
            f"the {split} split of {name} could not be had from the Hugging Face hub ({reason}): "
            f"give {option}= a json, jsonl, csv or parquet file of its records"
        ) from error


def read(path: str | Path, name: str = "the data set", *, field: str = "", option: str = "path") -> list[Record]:
    """The records of a file, by its extension."""
    path = Path(path).expanduser()
    readers = {".json": _json, ".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}
    if path.suffix not in readers:
        raise ValueError(f"{option}={str(path)!r} must end in one of {', '.join(readers)}, to be read as {name}")
    regular_file(path, f"{option}={str(path)!r} is not a file: give one with the records of {name}")
    records = readers[path.suffix](path, field)
    if not records:
        raise ValueError(f"{path} holds no records of {name}")
    return records


def _json(path: Path, field: str) -> list[Record]:
    """A list of records, an object that holds one, or (as the hub has them) lines with a record each."""
    text = read_text(path)
    try:
        value = parse_json(text)
    except NotJSON as error:
        if error.reason == "Extra data":
            return _of_lines(path, text)
        line = text.count("\n", 0, error.position) + 1
        raise ValueError(f"{path}, line {line}, is not valid JSON: {error}") from None
    except ValueError as error:
        if len(lines := [*numbered_lines(text)]) > 1 and _is_json(lines[0][1]):
            return _of_lines(path, text)
        raise ValueError(f"{path}: {error}") from None
    if isinstance(value, Mapping):
        value = value.get(field, [value])
    if not isinstance(value, list):
        raise ValueError(f"{path} holds no list of records")
    return [_row(record, f"{path}: record {number}") for number, record in enumerate(value)]


def _is_json(line: str) -> bool:
    try:
        parse_json(line)
    except ValueError:
        return False
    return True


def _row(record: Any, where: str) -> Row:
    if not isinstance(record, Mapping):
        raise ValueError(f"{where} is not an object but {brief(record)}")
    return Row(record, where)


def _jsonl(path: Path, _: str) -> list[Record]:
    return _of_lines(path, read_text(path))


def _of_lines(path: Path, text: str) -> list[Record]:
    def row(_: int, numbered: tuple[int, str]) -> Row:
        number, line = numbered
        where = f"{path}, line {number}"
        try:
            return _row(parse_json(line), where)
        except NotJSON as error:
            raise ValueError(f"{where}, is not valid JSON: {error}") from None

    return [*each([*numbered_lines(text)], row, lambda numbered: f"{path}, line {numbered[0]}")]


def _csv(path: Path, _: str) -> list[Record]:
    # Not by pandas, which reads an answer such as "None" as missing.
    text = read_text(path)
    with _fields_of_any_length():
        rows = csv.reader(StringIO(text, newline=""), strict=True)
        try:
            return [*_csv_rows(path, rows)]
        except csv.Error as error:
            raise ValueError(f"{path}, line {rows.line_num}, is not valid CSV: {error}") from None


@contextmanager
def _fields_of_any_length() -> Iterator[None]:
    """Lift the limit of 131,072 characters, which is global and so restored."""
    before = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _csv_rows(path: Path, rows: Any) -> Iterator[Row]:
    columns = next(rows, [])
    line = rows.line_num
    if repeated := next((name for name in columns if columns.count(name) > 1), None):
        raise ValueError(f"{path}, line 1: the column {brief(repeated)} is there twice")
    for row in rows:
        line, first = rows.line_num, line + 1
        if row and len(row) != len(columns):
            raise ValueError(f"{path}, line {first}, has {len(row)} fields, and line 1 names {len(columns)} columns")
        if row:
            yield Row(dict(zip(columns, row, strict=True)), f"{path}, line {first}")


def _parquet(path: Path, _: str) -> list[Record]:
    import pyarrow.parquet  # comes with datasets

    try:
        # Not `read_table`, which adds columns by the names of folders.
        with pyarrow.parquet.ParquetFile(path) as file:
            table = file.read()
        names = table.column_names
        records = table.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} is not a readable Parquet file: {reason[:200]}") from None
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{path}: the column {brief(repeated)} is there twice")
    return [Row(record, f"{path}: record {number}") for number, record in enumerate(records)]


# ------------------------------------------------------------------------------------------------------------ parsing
def each(
    items: Iterable[Item],
    make: Callable[[int, Item], Made],
    place: Callable[[Item], str] = lambda item: place_of(item, ""),
) -> Iterator[Made]:
    """What ``make`` gives for each item and its number.

    The first wrong item is refused with its place in the file and the number of others.
    """
    for number, item in enumerate(items):
        try:
            made = make(number, item)
        except (ValueError, TypeError) as error:
            others = _count_wrong(items, number + 1, make) if isinstance(items, Sequence) else 0
            raise _placed(error, place(item), others) from None
        yield made


LONGEST = 600  # characters of an error that may show what is in a file


def _count_wrong(items: Sequence[Item], start: int, make: Callable[[int, Item], Any]) -> int:
    wrong = 0
    for number in range(start, len(items)):
        try:
            make(number, items[number])
        except (ValueError, TypeError):
            wrong += 1
    return wrong


def _placed(error: ValueError | TypeError, where: str, others: int) -> ValueError | TypeError:
    message = str(error) if where in str(error) else f"{where}: {error}"
    message = message if len(message) <= LONGEST else f"{message[:LONGEST]} …"
    more = f" ({others} of those after it are wrong too)" if others else ""
    return (TypeError if isinstance(error, TypeError) else ValueError)(message + more)


def place_of(record: Any, otherwise: str) -> str:
    """The place of a record in its file; ``otherwise``, if it has none."""
    return getattr(record, "where", otherwise)


def needed(record: Record, names: Sequence[str], what: str) -> list[Any]:
    """The values of these fields; one that is missing or null is named."""
    if not isinstance(record, Mapping):
        raise TypeError(f"{what} is {brief(record)}, and must be an object with {', '.join(names)}")
    if missing := [name for name in names if record.get(name) is None]:
        has = brief(", ".join(map(str, record)))[1:-1] or "nothing"
        raise ValueError(f"{what} has no {', '.join(missing)}: it has {has}")
    return [record[name] for name in names]


def texts(record: Record, names: Sequence[str], what: str) -> list[str]:
    """The values of these fields, which must be text."""
    return [_text(value, name, what) for name, value in zip(names, needed(record, names, what), strict=True)]


def text_or_nothing(record: Record, name: str, what: str) -> str:
    """The text of a field that may be missing or null."""
    value = record.get(name)
    return "" if value is None else _text(value, name, what)


def listed_texts(record: Record, name: str, what: str) -> list[str]:
    """The texts in a field's list; none, where it is missing or null."""
    values = record.get(name)
    if not isinstance(values, list | tuple | None):
        raise TypeError(f"{what}: its {name} is {brief(values)}, and must be a list of text")
    return [_text(value, f"{name}[{at}]", what) for at, value in enumerate(values or ())]


def _text(value: Any, name: str, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what}: its {name} is {brief(value)}, and must be text")
    return value
