"""Suites by name, and the instances of every suite."""

from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias

from heta_lens._util.options import check_choice, check_count, hint
from heta_lens.data import curated, datasets, published, recall
from heta_lens.data.families import FAMILIES, family
from heta_lens.data.instance import Instance, read_jsonl
from heta_lens.data.recall import Draw
from heta_lens.data.records import load, read

Source: TypeAlias = str | Path | None


def suite(
    name: str,
    path: Source = None,
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
    make = SUITES[name]
    if path is not None:
        make = curated.released if name == "curated" else PUBLISHED.get(name, make)
    known = sorted({*signature(make).parameters, *(["chat"] if make in FAMILIES.values() else [])} - GIVEN)
    for each in options:
        if each not in known:
            raise TypeError(f"{name} has no option {each!r}{hint(each, known)}; it has {', '.join(known) or 'none'}")
    every = [*_instances(name, path, split or "test", limit, seed, options)]
    chosen = range(len(every)) if limit is None else Draw(f"limit {seed}").some(range(len(every)), limit)
    return [every[number] for number in sorted(chosen)]


def _instances(
    name: str, path: Source, split: Any, limit: Any, seed: int, options: dict[str, Any]
) -> Iterable[Instance]:
    if name == "recall":
        # A voice is a single wording. Otherwise use more templates than the few that the demo model was trained on.
        wordings = "more" if options.get("voice") is None else "trained"
        return recall.instances(split, seed=seed, count=limit, **{"wordings": wordings, **options})
    if name == "curated" and path is not None:
        return curated.released(read(path, "the curated data", field="examples"), **options)
    if name == "curated":
        narratives = load(curated.NARRATIVES, split, options.pop("narratives", None))
        questions = load(curated.QUESTIONS, split, options.pop("questions", None))
        return curated.pairs(narratives, questions, seed=seed, **options)
    if name == "jsonl":
        return read_jsonl(str(path))
    if name in FAMILIES and path is None:
        return family(name, split, seed=seed, count=limit, **options)
    if name in PUBLISHED:
        return PUBLISHED[name](read(str(path), name), **options)
    return SUITES[name](load(HUB.get(name, "LongRA"), "evaluation" if name == "wikibio" else split, path), **options)


SUITES: Mapping[str, Callable[..., Iterable[Any]]] = {
    "recall": recall.stories,
    "curated": curated.pairs,
    "longra": datasets.longra_instances,
    "tellmewhy": datasets.tellmewhy_instances,
    "wikibio": datasets.wikibio_instances,
    "jsonl": read_jsonl,
    **FAMILIES,
    "squad": published.squad,
    "known_facts": published.known_facts,
}
"""The function that makes the instances of a suite, or one, and whose keywords are the options of the suite."""
PUBLISHED: Mapping[str, Callable[..., Iterable[Instance]]] = {
    "squad": published.squad,
    "known_facts": published.known_facts,
    "ioi": published.indirect_objects,
    "agreement": published.agreement,
}
"""The function that reads the published file of a suite; `ioi` and `agreement` are made without a file."""
GIVEN = {"records", "path", "split", "seed", "draw", "forms"}  # parameters that are no options
HUB = {"tellmewhy": datasets.TELLMEWHY_HUB, "wikibio": datasets.WIKIBIO_HUB}
WITH_SPLITS = ("recall", "curated", "tellmewhy", *FAMILIES)
FROM_FILES = {
    "longra": "a json or jsonl file of records with text, target, category, antecedent_span, distractor_span",
    "squad": "a json file of SQuAD, as published or as on the Hugging Face hub",
    "known_facts": "a json file of facts with prompt, subject, attribute, relation_id, as ROME publishes them",
    "jsonl": "a file with an instance per line, as write_jsonl makes it",
}
