"""Prompts: suites by name, and prompts from Python, a file, or a data set of the Hugging Face hub."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from importlib import import_module
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from heta_lens._util.files import brief
from heta_lens._util.options import check_choice, check_count, hint
from heta_lens.data import recall
from heta_lens.data.instance import Instance, instance_of
from heta_lens.data.recall import Draw
from heta_lens.data.records import Record, each, from_hub, load, read

FAMILIES = ("key_value", "in_context_qa", "needle", "two_hop", "variable_tracking", "ioi", "agreement")
SUITES: Mapping[str, str] = {
    "recall": "recall:stories",
    "curated": "curated:pairs",
    "longra": "datasets:longra_instances",
    "tellmewhy": "datasets:tellmewhy_instances",
    "wikibio": "datasets:wikibio_instances",
    "jsonl": "instance:read_jsonl",
    **{name: f"families:{name}" for name in FAMILIES},
    "squad": "published:squad",
    "known_facts": "published:known_facts",
}
"""The module and function of a suite, imported when the suite is read; the function's keywords are its options."""
PUBLISHED = {"curated": "curated:released", "ioi": "published:indirect_objects", "agreement": "published:agreement"}
"""The function that reads the published file of a suite that can also be made."""
GIVEN = {"records", "path", "split", "seed", "draw", "forms"}  # parameters that are no options
HUB = {
    "narratives": "deepmind/narrativeqa",  # of the curated set, like the questions
    "questions": "allenai/sciq",
    "tellmewhy": "StonyBrookNLP/tellmewhy",
    "wikibio": "potsawee/wiki_bio_gpt3_hallucination",
}
SPLIT: dict[str, Any] = {"wikibio": "evaluation"}  # of data sets with a single split
WITH_SPLITS = ("recall", "curated", "tellmewhy", *FAMILIES)
FROM_FILES = {
    "longra": "a json or jsonl file of records with text, target, category, antecedent_span, distractor_span",
    "squad": "a json file of SQuAD, as published or as on the Hugging Face hub",
    "known_facts": "a json file of facts with prompt, subject, attribute, relation_id, as ROME publishes them",
    "jsonl": "a file with an instance per line, as write_jsonl makes it",
}


def suite(
    name: str,
    path: str | Path | None = None,
    *,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    **options: Any,
) -> list[Instance]:
    """Return the instances of a suite.

    Args:
        name: a name of `SUITES`.
        path: the file to read, in the format in which the suite is published; without it, suites on the Hugging Face
            hub are loaded from the hub.
        split: the split, of suites with splits: generated stories, and most suites on the hub. None is test.
        limit: the largest number of instances, drawn by ``seed``; None takes every instance.
        seed: the seed of draws and of generated stories.
        **options: the options of the suite, which its module documents.
    """
    check_choice("suite", name, SUITES)
    if limit is not None:
        check_count("limit", limit)
    if split is not None and (path is not None or name not in WITH_SPLITS):
        raise ValueError(f"split={split!r}: what the {name} suite is read from has no parts, leave it out")
    if path is None and name in FROM_FILES:
        raise ValueError(f"the {name} suite is read from a file: give path=, {FROM_FILES[name]}")
    if name in ("recall", *FAMILIES) and (path or limit is None) and not (path and name in PUBLISHED):
        raise ValueError(f"the {name} suite is made, without an end: leave out path=, and give limit=")
    function = PUBLISHED.get(name, SUITES[name]) if path is not None else SUITES[name]
    module, _, function_name = function.partition(":")
    make = getattr(import_module(f"heta_lens.data.{module}"), function_name)
    known = sorted({*signature(make).parameters, *(["chat"] if module == "families" else [])} - GIVEN)
    for own in options:
        if own not in known:
            raise TypeError(f"{name} has no option {own!r}{hint(own, known)}; it has {', '.join(known) or 'none'}")
    every = [*_instances(name, make, path, split or "test", limit, seed, options)]
    chosen = range(len(every)) if limit is None else Draw(f"limit {seed}").some(range(len(every)), limit)
    return [every[number] for number in sorted(chosen)]


def _instances(
    name: str, make: Callable[..., Iterable[Any]], path: Any, split: Any, limit: Any, seed: int, options: dict[str, Any]
) -> Iterable[Instance]:
    if name == "recall":
        # A voice is a single wording. Otherwise use more templates than the few that the demo model was trained on.
        wordings = "more" if options.get("voice") is None else "trained"
        return recall.instances(split, seed=seed, count=limit, **{"wordings": wordings, **options})
    if name in FAMILIES and path is None:
        from heta_lens.data.families import family

        return family(name, split, seed=seed, count=limit, **options)
    if name == "jsonl":
        return make(str(path))
    if name == "curated":
        if path is not None:
            return make(read(path, "the curated data", field="examples"), **options)
        stories, questions = (load(HUB[kind], split, options.pop(kind, None)) for kind in ("narratives", "questions"))
        return make(stories, questions, seed=seed, **options)
    return make(load(HUB.get(name, name), SPLIT.get(name, split), path), **options)


# -------------------------------------------------------------------------------------------------------- other sources
Source: TypeAlias = str | Path | Iterable[Any]

ON_HUB = "hf:"  # before the name of a data set on the Hugging Face hub
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
        check_count("limit", limit)
    for name in fields or {}:
        check_choice("the field", name, FIELDS)
    if isinstance(source, str) and source in SUITES:
        if fields:
            raise ValueError(f"fields={brief(fields)} has no effect: the suite is read by its own fields")
        return suite(source, path, split=split, limit=limit, seed=seed, **options)
    # Prompts without an id are named after the source.
    called = Path(str(source).removeprefix(ON_HUB)).stem if isinstance(source, str | Path) else "prompt"
    for name in [*options, *(["path"] if path is not None else [])]:
        raise TypeError(f"{name}= is an option of a suite, and {called} is none")
    if isinstance(source, str) and source.startswith(ON_HUB):
        records: Iterable[Any] = from_hub(source.removeprefix(ON_HUB), split or "train", streaming=True)
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
        known = [*SUITES, *(f"a file that ends in {suffix}" for suffix in FORMATS), f"{ON_HUB}NAME of a data set"]
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
    given = {name: value for name, value in values.items() if value is not None and str(value)}
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
