"""Prompts from Python, a file, a suite, or a data set of the Hugging Face hub."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from heta_lens._util.files import brief
from heta_lens._util.options import check_at_least, check_choice, hint
from heta_lens.data.instance import Instance, instance_of
from heta_lens.data.records import Record, each, from_hub, read
from heta_lens.data.suites import SUITES, suite

Source: TypeAlias = str | Path | Iterable[Any]

HUB = "hf:"  # before the name of a data set on the Hugging Face hub
FIELDS = tuple(entry.name for entry in fields(Instance))
PLAIN = ("id", "text", "answer", "template")  # fields of text; a column with the name "question" may be text too
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
    """Return the prompts of a suite, a file or a data set, or the given texts, chats, records or instances.

    From records, the fields of `Instance` are read (``text`` or ``messages``, and optionally ``id``, ``answer``,
    ``template`` and the spans of evidence); further fields are ignored.

    Args:
        source: the name of a suite; a .jsonl, .json, .csv or .parquet file; ``hf:NAME`` (or ``hf:NAME:CONFIG``), a data
            set of the hub or a local copy of one; or prompts.
        fields: the columns of fields with other names, as in ``{"text": "question"}``.
        split: the split, of suites and data sets with splits (of a data set: train).
        limit: the largest number of prompts: of a suite drawn by ``seed``, of other sources the first prompts.
        seed: the seed of the prompts of a suite.
        path: the file that a suite is read from.
        options: the options of the suite.
    """
    if limit is not None:
        check_at_least("limit", limit, 1, whole=True)
    for name in fields or {}:
        check_choice("the field", name, FIELDS)
    if isinstance(source, str) and source in SUITES:
        if fields:
            raise ValueError(f"fields={brief(fields)} has no effect: the suite is read by its own fields")
        return suite(source, path, split=split, limit=limit, seed=seed, **options)
    # Prompts without an id are named after the source.
    called = Path(str(source).removeprefix(HUB)).stem if isinstance(source, str | Path) else "prompt"
    for name in [*options, *(["path"] if path is not None else [])]:
        raise TypeError(f"{name}= is an option of a suite, and {called} is none")
    if isinstance(source, str) and source.startswith(HUB):
        records: Iterable[Any] = from_hub(source.removeprefix(HUB), split or "train", streaming=True)
    elif split:
        raise ValueError(f"split={brief(split)} has no effect: {called} has no parts")
    else:
        records = _read(source) if isinstance(source, str | Path) else _listed(source)

    def made(number: int, item: Any) -> Instance:
        return _instance(item, fields or {}, f"{called}-{number}")

    instances = [*each(islice(records, limit), made, called)]
    if not instances:
        raise ValueError(f"there are no prompts in {called}")
    return instances


def _read(source: str | Path) -> Iterable[Record]:
    if Path(source).suffix not in FORMATS:
        known = [*SUITES, *(f"a file that ends in {suffix}" for suffix in FORMATS), f"{HUB}NAME of a data set"]
        raise ValueError(
            f"{str(source)!r} is no source of prompts{hint(str(source), SUITES)}: give one of {', '.join(known)}"
        )
    return read(source, "prompts")


def _listed(source: Any) -> Iterable[Any]:
    """Return the prompts of a Python collection; of a table, the rows."""
    if isinstance(source, pd.DataFrame):
        return source.astype(object).where(source.notna(), None).to_dict("records")
    chat = isinstance(source, list | tuple) and source and isinstance(source[0], Mapping) and "role" in source[0]
    if chat or isinstance(source, Mapping | Instance):
        raise TypeError(f"{brief(source)} is one prompt: put it into a list")
    return source


def _instance(item: Any, fields: Mapping[str, str], otherwise: str) -> Instance:
    """Return a prompt as an instance, with the id ``otherwise`` if the prompt has no id."""
    if isinstance(item, Instance):
        return item
    if isinstance(item, str):
        return Instance(otherwise, item, None)
    if isinstance(item, list | tuple):  # a chat
        return Instance(otherwise, said(item), None, messages=tuple(item))
    if not isinstance(item, Mapping):
        raise TypeError(f"the prompt {brief(item)} is neither a text, nor a chat, nor a record with a text")
    record = {str(name): value for name, value in item.items()}
    values = {name: record[column] for name, column in _columns(record, fields).items()}
    given = {name: value for name, value in values.items() if value not in (None, "")}
    if "messages" in given:
        given.setdefault("text", said(given["messages"]))
    if "text" not in given:
        columns, first = ", ".join(map(brief, record)), next(iter(record), "…")
        way = f"fields={{'text': {first!r}}} or --field text={first}"
        raise ValueError(f"it has no text, but {columns}: say which of them is, as by {way}")
    return instance_of({"answer": None, **given, "id": str(given.get("id", otherwise))})


def _columns(record: Record, fields: Mapping[str, str]) -> dict[str, str]:
    """Return the column of every field: the given column, or the column of the field's name if its type fits."""
    for name, column in fields.items():
        if column not in record:
            raise ValueError(f"it has no column {brief(column)} for {name}{hint(column, record)}")
    free = [name for name in FIELDS if name in record and name not in (*fields, *fields.values())]
    return {name: name for name in free if name in PLAIN or not isinstance(record[name], str)} | dict(fields)


def said(messages: Any) -> str:
    """Return the text of a chat, without its template."""
    contents = [message.get("content") for message in messages if isinstance(message, Mapping)]
    return "\n".join(content for content in contents if isinstance(content, str)) or "(a chat without text)"
