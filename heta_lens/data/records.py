"""Records of data sets: from the Hugging Face hub, or from a json, jsonl, csv or parquet file.

A file is read whole or refused, because an evaluation should not depend on the lines that are damaged. The error names
the file, the first wrong line and the field.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from heta_lens._util.files import brief, invalid_json, read_text, regular_file
from heta_lens._util.options import check_types, fits
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


def load(name: str, split: str = "test", path: str | Path | None = None) -> list[Record]:
    """Return the records of the file at ``path``, or else of a split of a data set of the Hugging Face hub."""
    return [*from_hub(name, split)] if path is None else read(path, name)


def from_hub(name: str, split: str, **options: Any) -> Iterator[Record]:
    """Yield the records of a data set of the Hugging Face hub, by ``NAME`` or ``NAME:CONFIG``."""
    load_dataset = extra("datasets", "a data set of the Hugging Face hub").load_dataset
    name, _, config = name.partition(":")
    try:
        yield from load_dataset(name, config or None, split=split, **options)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise OSError(
            f"the {split} split of {name} could not be read from the Hugging Face hub ({reason}): give another split, "
            "NAME:CONFIG, or a json, jsonl, csv or parquet file of its records"
        ) from error


def read(path: str | Path, name: str = "the data set", *, field: str = "") -> list[Record]:
    """Return the records of a json, jsonl, csv or parquet file; ``field`` holds the records in an object of json."""
    path = Path(path).expanduser()
    readers = {".json": partial(_json, field=field), ".jsonl": json_lines, ".csv": _csv, ".parquet": _parquet}
    if path.suffix not in readers:
        raise ValueError(f"{str(path)!r} must end in one of {', '.join(readers)}, to be read as {name}")
    regular_file(path, f"{str(path)!r} is not a file: give one with the records of {name}")
    if not (records := readers[path.suffix](path)):
        raise ValueError(f"{path} holds no records of {name}")
    return records


def _json(path: Path, field: str) -> list[Record]:
    """Read a list of records, an object with the list, or (as on the hub) a record per line."""
    try:
        value = _strict_json(read_text(path))
    except ValueError as error:
        if getattr(error, "msg", "") == "Extra data":
            return json_lines(path)
        raise invalid_json(str(path), error) from None
    if isinstance(value, Mapping):
        value = value.get(field, [value])
    if not isinstance(value, list):
        raise ValueError(f"{path} holds no list of records")
    return [Row(record, f"{path}: record {number}") for number, record in enumerate(value)]


def json_lines(path: str | Path, missing: str = "") -> list[Record]:
    """Return the record of every line of JSON except blank lines."""
    records: list[Record] = []
    for number, line in enumerate(read_text(path, missing).split("\n"), 1):  # `splitlines` would break inside a text
        try:
            record = _strict_json(line) if line.strip() else None
        except ValueError as error:
            raise invalid_json(str(path), error, number) from None
        if line.strip():
            records.append(Row(record, f"{path}, line {number}"))
    return records


def _strict_json(text: str) -> Any:
    def refused(number: str) -> None:
        raise ValueError(f"{number} is no number of JSON: write null instead")

    return json.loads(text, object_pairs_hook=_object, parse_constant=refused)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if len(values := dict(pairs)) < len(pairs):
        raise ValueError(f"two fields have the same name, of {brief([name for name, _ in pairs])}: rename one")
    return values


def _csv(path: Path) -> list[Record]:
    # Not by pandas, which fills rows that are too short.
    csv.field_size_limit(2**31 - 1)  # the default is 128 KiB, less than a long context
    rows = csv.reader(StringIO(read_text(path), newline=""), strict=True)
    records: list[Record] = []
    try:
        names = next(rows, [])
        for row in filter(None, rows):
            if len(row) != len(names):
                raise ValueError(f"it has {len(row)} fields, and line 1 has {len(names)}")
            records.append(Row(_object([*zip(names, row, strict=True)]), f"{path}, line {rows.line_num}"))
    except (csv.Error, ValueError) as error:  # a quote that is not closed is noticed at the end of the file
        raise ValueError(f"{path}, line {rows.line_num}, after {len(records)} records: {error}") from None
    return records


def _parquet(path: Path) -> list[Record]:
    import pyarrow.parquet  # comes with datasets

    try:
        records = pyarrow.parquet.ParquetFile(path).read().to_pylist()  # `read_table` adds columns by names of folders
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{path} is not a readable Parquet file: {' '.join(str(error).split())}") from None
    return [Row(record, f"{path}: record {number}") for number, record in enumerate(records)]


def each(
    items: Iterable[Item],
    make: Callable[[int, Item], Made],
    name: str = "record",
    place: Callable[[Item], str] = lambda item: getattr(item, "where", ""),
) -> Iterator[Made]:
    """Apply ``make`` to every item and its number; an error names the item's place in its file, or else its number."""
    for number, item in enumerate(items):
        try:
            made = make(number, item)
        except (ValueError, TypeError) as error:
            message = f"{place(item) or f'{name} {number}'}: {error}"
            raise (TypeError if isinstance(error, TypeError) else ValueError)(message) from None
        yield made


def values_of(record: Any, **kinds: Any) -> list[Any]:
    """Return the values of fields; refuse a missing field, and a value of another type than the given one."""
    if not isinstance(record, Mapping):
        raise TypeError(f"{brief(record)} is not an object with {', '.join(kinds)}")
    values = {name: record.get(name) for name in kinds}
    if missing := [name for name, value in values.items() if value is None and not fits(None, kinds[name])]:
        raise ValueError(f"it has no {', '.join(missing)}, but {brief(', '.join(map(str, record)))[1:-1] or 'nothing'}")
    check_types(kinds, values)
    return [*values.values()]
