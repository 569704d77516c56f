"""Records of public data sets: from the Hugging Face hub, or from a file of the same format."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]


def load(
    name: str, split: str = "test", path: str | Path | None = None, *, field: str = "", option: str = "path"
) -> list[Record]:
    """The records of a data set: of the file at ``path``, if one is given, and else of the hub, which is asked once.

    Args:
        name: what the hub calls it.
        split: which part of it the hub should give; a file is one part, whatever this says.
        path: a json, jsonl, csv or parquet file.
        field: where in a json file of one object the records stand.
        option: what the caller calls ``path``, to be named where nothing is found.
    """
    return _from_hub(name, split, option) if path is None else read(path, name, field=field, option=option)


def _from_hub(name: str, split: str, option: str) -> list[Record]:
    from datasets import load_dataset  # slow to import, and needed here alone

    try:
        return list(load_dataset(name, split=split))  # type: ignore[arg-type]
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise OSError(
            f"the {split} split of {name} could not be had from the Hugging Face hub ({reason}): "
            f"give {option}= a json, jsonl, csv or parquet file of its records"
        ) from error


def read(path: str | Path, name: str = "the data set", *, field: str = "", option: str = "path") -> list[Record]:
    """The records of a file, by the ending of its name."""
    path = Path(path).expanduser()
    readers = {".json": _json, ".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}
    if path.suffix not in readers:
        raise ValueError(f"{option}={str(path)!r} must end in one of {', '.join(readers)}, to be read as {name}")
    if not path.is_file():
        raise FileNotFoundError(f"{option}={str(path)!r} is no file: give one with the records of {name}")
    records = readers[path.suffix](path, field)
    for number, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise ValueError(f"{path}: record {number} is no object but {record!r}")
    return records


def _json(path: Path, field: str) -> list[Record]:
    """A list of records, an object that holds one, or (as the hub has them) lines with a record each."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError:
        return _jsonl(path, field)
    if isinstance(value, Mapping):
        value = value.get(field, [value])
    if not isinstance(value, list):
        raise ValueError(f"{path} holds no list of records")
    return value


def _jsonl(path: Path, _: str) -> list[Record]:
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        try:
            records += [json.loads(line)] if line.strip() else []
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}, is no JSON: {error}") from None
    return records


def _csv(path: Path, _: str) -> list[Record]:
    # Not by pandas, to which an answer such as "None" is no answer.
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def _parquet(path: Path, _: str) -> list[Record]:
    import pyarrow.parquet  # comes with datasets

    return pyarrow.parquet.read_table(path).to_pylist()


def needed(record: Record, names: Sequence[str], what: str) -> list[Any]:
    """The values of these fields; one that is missing or null is named."""
    if not isinstance(record, Mapping):
        raise TypeError(f"{what} is {record!r}, and must be an object with {', '.join(names)}")
    if missing := [name for name in names if record.get(name) is None]:
        raise ValueError(f"{what} has no {', '.join(missing)}: it has {', '.join(map(str, record)) or 'nothing'}")
    return [record[name] for name in names]


def texts(record: Record, names: Sequence[str], what: str) -> list[str]:
    """The values of these fields, which must be text."""
    values = needed(record, names, what)
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, str):
            raise TypeError(f"{what}: its {name} is {value!r}, and must be text")
    return values
