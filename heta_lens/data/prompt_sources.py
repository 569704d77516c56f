"""Prompts of one's own: from Python, a file, a suite, or a data set of the Hugging Face hub."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from heta_lens._util.files import brief
from heta_lens._util.options import check_at_least, check_choice, hint
from heta_lens._util.python import extra
from heta_lens.data.datasets import each, place_of, read
from heta_lens.data.instance import FORMER_FIELDS, Instance, instance_of
from heta_lens.data.suites import SUITES, suite

Record: TypeAlias = Mapping[str, Any]
Source: TypeAlias = str | Path | Iterable[Any]

HUB = "hf:"  # before the name of a data set on the Hugging Face hub
FIELDS = tuple(entry.name for entry in fields(Instance))
PLAIN = ("id", "text", "answer", "template")  # fields of text; a column that is called "question" may be one too
FORMATS = (".jsonl", ".json", ".csv", ".parquet")


def prompts(
    source: Source,
    *,
    fields: Mapping[str, str] | None = None,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    path: str | Path | None = None,
    **options: Any,
) -> list[Instance]:
    """The prompts of a suite, a file or a data set, or those given: texts, chats, records or instances.

    Of records, the fields of `Instance` are read (``text`` or ``messages``, and if they are there ``id``, ``answer``,
    ``template`` and the spans of evidence), and others left alone.

    Args:
        source: the name of a suite; a .jsonl, .json, .csv or .parquet file; ``hf:NAME`` (or ``hf:NAME:CONFIG``), a data
            set of the hub or a local copy of one; or prompts.
        fields: which column is which field, as in ``{"text": "question"}``, where they have other names.
        split: which split, of suites and data sets that have some (of a data set: train).
        limit: how many at most: of a suite drawn by ``seed``, of others the first.
        seed: which prompts of a suite are drawn.
        path: the file that a suite is read from.
        options: those of the suite.
    """
    if limit is not None:
        check_at_least("limit", limit, 1, whole=True)
    for name in fields or {}:
        check_choice("the field", name, FIELDS)
    if isinstance(source, str) and source in SUITES:
        _refuse(fields, "the suite is read by its own fields", "fields")
        return suite(source, path, split=split, limit=limit, seed=seed, **options)
    for name, value in {**options, **({} if path is None else {"path": path})}.items():
        raise TypeError(f"{name}={value!r} is an option of a suite, and {_named(source)} is none")
    if isinstance(source, str) and source.startswith(HUB):
        records: Iterable[Any] = _streamed(source.removeprefix(HUB), split or "train")
    else:
        _refuse(split, f"{_named(source)} has no parts", "split")
        records = _read(source) if isinstance(source, str | Path) else _listed(source)
    name = _named(source)

    def made(number: int, item: Any) -> Instance:
        try:
            return _instance(item, fields or {}, f"{name}-{number}")
        except (ValueError, TypeError) as error:
            raise type(error)(f"{place_of(item, f'number {number} of {name}')}: {error}") from None

    instances = [*each([*islice(records, limit)], made)]
    if not instances:
        raise ValueError(f"there are no prompts in {name}")
    return instances


def _read(source: str | Path) -> Iterable[Record]:
    path = Path(source).expanduser()
    if path.suffix not in FORMATS:
        known = [*SUITES, *(f"a file that ends in {suffix}" for suffix in FORMATS), f"{HUB}NAME of a data set"]
        raise ValueError(
            f"{str(source)!r} is no source of prompts{hint(str(source), SUITES)}: give one of {', '.join(known)}"
        )
    return read(path, "prompts", option="source")


def _listed(source: Any) -> Iterable[Any]:
    """Prompts of Python; a table's rows."""
    if isinstance(source, pd.DataFrame):
        return source.astype(object).where(source.notna(), None).to_dict("records")
    chat = isinstance(source, list | tuple) and source and isinstance(source[0], Mapping) and "role" in source[0]
    if chat or isinstance(source, Mapping | Instance):
        raise TypeError(f"{brief(source)} is one prompt: put it into a list")
    return source


def _streamed(name: str, split: str) -> Iterator[Record]:
    """The records of a data set, as they are needed."""
    load_dataset = extra("datasets", "a data set of the Hugging Face hub").load_dataset
    folder, _, config = name.partition(":")
    try:
        yield from load_dataset(folder, config or None, split=split, streaming=True)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        way = f"give a file, another split, or {HUB}NAME:CONFIG"
        raise OSError(f"the {split} split of {name} could not be read ({reason}): {way}") from error


def _instance(item: Any, fields: Mapping[str, str], otherwise: str) -> Instance:
    """A prompt as an instance; ``otherwise`` is its id, where it has none."""
    if isinstance(item, Instance):
        return item
    if isinstance(item, str):
        return Instance(otherwise, item, None)
    if isinstance(item, list | tuple):  # a chat
        return Instance(otherwise, said(item), None, messages=tuple(item))
    if not isinstance(item, Mapping):
        raise TypeError(f"the prompt {brief(item)} is neither a text, nor a chat, nor a record with a text")
    record = {FORMER_FIELDS.get(str(name), str(name)): value for name, value in item.items()}
    return _of_record(record, fields, otherwise)


def _of_record(record: Record, fields: Mapping[str, str], otherwise: str) -> Instance:
    values = {name: record[column] for name, column in _columns(record, fields).items()}
    given = {name: value for name, value in values.items() if value not in (None, "")}
    if "messages" in given:
        given.setdefault("text", said(given["messages"]))
    if "text" not in given:
        if "text" in values:
            raise ValueError("its text is empty")
        columns, first = ", ".join(map(brief, record)), next(iter(record), "…")
        way = f"fields={{'text': {first!r}}} or --field text={first}"
        raise ValueError(f"it has no text, but {columns}: say which of them is, as by {way}")
    return instance_of({"answer": None, **given, "id": str(given.get("id", otherwise))})


def _columns(record: Record, fields: Mapping[str, str]) -> dict[str, str]:
    """Which column is which field: as it is said, or else by its name, if it holds what the field does."""
    for name, column in fields.items():
        if column not in record:
            raise ValueError(f"it has no column {brief(column)} for {name}{hint(column, record)}")
    free = [name for name in FIELDS if name in record and name not in (*fields, *fields.values())]
    return {name: name for name in free if name in PLAIN or not isinstance(record[name], str)} | dict(fields)


def said(messages: Any) -> str:
    """What a chat says, without its template."""
    contents = [message.get("content") for message in messages if isinstance(message, Mapping)]
    return "\n".join(content for content in contents if isinstance(content, str)) or "(a chat without text)"


def _refuse(given: Any, why: str, name: str) -> None:
    if given:
        raise ValueError(f"{name}={brief(given)} has no effect: {why}")


def _named(source: Source) -> str:
    """What a source is called: prompts without an id are named after it."""
    if isinstance(source, str | Path):
        return Path(str(source).removeprefix(HUB)).stem
    return "prompt"
