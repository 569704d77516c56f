"""The prompts of the study: families of them, each of one model, with a counterfactual and known evidence.

    recall, two hops    stories of the demo model, in 64 wordings, whose answer is one or two sentences away
    copied              stories whose next word is copied, by stories3M
    lists, pronouns     repeated lists, and who a pronoun is about, by stories3M (see local_families.py)
    contest             who has the highest number, by a model of another kind (see contest.py); on test only

Only prompts that the model continues as expected are used, and whose counterfactual has as many tokens.
"""

import json
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain, islice
from typing import Any, NamedTuple

import torch

import heta_lens
from benchmarks.copied_words.build import MORE, OUTPUT
from benchmarks.stories3m import load_stories3m
from benchmarks.study import contest, local_families
from benchmarks.study.local_families import LocalPrompt
from heta_lens.data.datasets import occurrences
from heta_lens.data.instance import Instance
from heta_lens.data.recall import Split, instances
from heta_lens.model.adapter import ModelAdapter
from heta_lens.prediction.prediction import Prediction

STORIES = OUTPUT, MORE  # of copied words; the study had only the first

load = {
    "demo": cache(heta_lens.load_demo_model),
    "stories3M": cache(load_stories3m),
    "contest": cache(contest.load_contest_model),
}


class Case(NamedTuple):
    """A prompt of the study. ``other`` is the same target after the counterfactual."""

    family: str
    id: str
    template: str
    prediction: Prediction
    other: Prediction
    evidence: list[int]


class Family(NamedTuple):
    model: str
    prompts: Callable[[Split], Iterator[LocalPrompt]]

    def cases(self, name: str, split: Split, size: int) -> Iterator[Case]:
        """The first prompts that the model continues as expected."""
        model = load[self.model]()
        ready = (case_of(model, name, prompt) for prompt in self.prompts(split))
        return islice((case for case in ready if case is not None), size)


def case_of(model: Any, family: str, prompt: LocalPrompt) -> Case | None:
    ids, changed = model.to_tokens(prompt.text), model.to_tokens(prompt.counterfactual)
    if ids.shape != changed.shape or torch.equal(ids, changed):
        return None
    adapter = ModelAdapter(model)
    cache = adapter.cache(ids)
    plain = Prediction.from_cache(cache, tokens=ids)
    target, *_ = plain.spell(prompt.target)
    foil = None if prompt.foil is None else plain.spell(prompt.foil)[0]
    if plain.target != target if foil is None else not bool(plain.log_probs[target] > plain.log_probs[foil]):
        return None
    wanted = target if foil is None else (target, foil)
    prediction = Prediction.from_cache(cache, wanted, tokens=ids)
    other = Prediction.from_cache(adapter.cache(changed), wanted, tokens=changed)
    text, spans = prediction.located
    begins = text.index(prompt.text)
    evidence = [
        place
        for place, span in enumerate(spans)
        if any(span.start < begins + stop and begins + start < span.stop for start, stop in prompt.evidence)
    ]
    return Case(family, prompt.id, prompt.template, prediction, other, evidence)


def of_instances(some: Iterator[Instance]) -> Iterator[LocalPrompt]:
    for one in some:
        assert one.counterfactual is not None and one.answer is not None
        own = one.id, one.template, one.text, one.counterfactual.text
        yield LocalPrompt(*own, one.answer, None, one.support)


def recall(hops: int, split: Split) -> Iterator[LocalPrompt]:
    """With two to five other facts, in turn, and the others before, after or around the evidence, or anywhere."""
    streams = [
        instances(split, seed=facts, facts=facts, rivals=1, hops=hops, wordings="more") for facts in (3, 4, 5, 6)
    ]
    return (prompt for some in zip(*map(of_instances, streams), strict=True) for prompt in some)


def copied(split: Split) -> Iterator[LocalPrompt]:
    """Every second template is of the dev split."""
    first, more = ([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] for path in STORIES)
    templates = sorted({prompt["template"] for prompt in first})[split == "test" :: 2]
    spread = (sorted(some, key=lambda prompt: int(prompt["id"].rpartition("-")[2])) for some in (first, more))
    for prompt in chain.from_iterable(spread):
        if prompt["template"] in templates:
            text, word, swapped = prompt["text"], prompt["target"].strip(), prompt["swapped_word"]
            places = occurrences(word, text)
            changed = text
            for start, stop in reversed(places):
                changed = changed[:start] + swapped + changed[stop:]
            yield LocalPrompt(prompt["id"], prompt["template"], text, changed, prompt["target"], None, tuple(places))


FAMILIES: dict[str, Family] = {
    "recall": Family("demo", lambda split: recall(1, split)),
    "two hops": Family("demo", lambda split: recall(2, split)),
    "copied": Family("stories3M", copied),
    "lists": Family("stories3M", local_families.lists),
    "pronouns": Family("stories3M", local_families.pronouns),
    "contest": Family("contest", lambda split: of_instances(contest.instances(split))),
}
DEV = [name for name in FAMILIES if name != "contest"]
