"""Suites by name, and the instances of every suite."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias

from heta_lens._util.options import check_choice, check_count, hint
from heta_lens.data import recall
from heta_lens.data.instance import Instance
from heta_lens.data.recall import Draw

Source: TypeAlias = str | Path | None

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
    function = PUBLISHED.get(name, SUITES[name]) if path is not None else SUITES[name]
    module, _, function_name = function.partition(":")
    make = getattr(import_module(f"heta_lens.data.{module}"), function_name)
    known = sorted({*signature(make).parameters, *(["chat"] if module == "families" else [])} - GIVEN)
    for each in options:
        if each not in known:
            raise TypeError(f"{name} has no option {each!r}{hint(each, known)}; it has {', '.join(known) or 'none'}")
    every = [*_instances(name, make, path, split or "test", limit, seed, options)]
    chosen = range(len(every)) if limit is None else Draw(f"limit {seed}").some(range(len(every)), limit)
    return [every[number] for number in sorted(chosen)]


def _instances(
    name: str,
    make: Callable[..., Iterable[Any]],
    path: Source,
    split: Any,
    limit: Any,
    seed: int,
    options: dict[str, Any],
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
    from heta_lens.data.records import load, read

    if name == "curated":
        if path is not None:
            return make(read(path, "the curated data", field="examples"), **options)
        stories, questions = (load(HUB[kind], split, options.pop(kind, None)) for kind in ("narratives", "questions"))
        return make(stories, questions, seed=seed, **options)
    return make(load(HUB.get(name, name), SPLIT.get(name, split), path), **options)
