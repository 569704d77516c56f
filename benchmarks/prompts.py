"""Families of prompts with known evidence and a counterfactual, each of one model.

    recall, two hops    stories of the demo model, in 64 wordings, whose answer is one or two sentences away
    copied              stories whose next word is copied, by stories3M
    lists, pronouns     repeated lists, and the gender of a pronoun, by stories3M
    contest             the name with the highest number, by a model of another kind (see contest.py)

    lists       Tom saw a ball, a drum and a key. Then he took the ball, the drum and the         → key
    pronouns    Lily and Tom went to the park. Tom saw a big dog. Lily was happy because          → she, rather than he

A prompt is used only if the model continues it as expected and its counterfactual has as many tokens.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import count, islice, product
from typing import Any, NamedTuple

import torch

import heta_lens
from benchmarks import contest, copied_words
from benchmarks.copied_words import KINDS
from benchmarks.models import load_stories3m
from benchmarks.outcomes import Outcomes
from heta_lens._util.text import Span
from heta_lens.data.datasets import occurrences
from heta_lens.data.instance import Instance
from heta_lens.data.recall import Draw, instances
from heta_lens.model.adapter import ModelAdapter
from heta_lens.prediction.prediction import Prediction

GIRLS, BOYS, THINGS = KINDS["girl"], KINDS["boy"], KINDS["thing"]
LISTS = (
    "{name} had a big box. In the box there was {some}. {name} took out {all}",
    "Once upon a time, {name} had {some}. {name} liked to play with {all}",
    "On the table there was {some}. {name} looked at {all}",
    "There was {some} in the garden. {name} picked up {all}",
    "In the attic {name} found {some}. {name} showed mom {all}",
    "{name} drew {some}. Then {pronoun} painted {all}",
)
PRONOUNS = (
    "{who} and {other} played with a ball. {other} kicked the ball far away. {who} was sad because",
    "Once upon a time, {who} met {other} in the forest. {other} gave {who} a flower. {who} was glad that",
    "{who} and {other} were friends. {other} was sick. {who} felt sad and said that",
    "{who} found a shiny coin. {other} wanted it too. {who} ran home because",
    "{who} made a castle of sand. {other} stepped on it. {who} was angry because",
    "It was late. {other} was tired. {who} was not tired because",
)


class Prompt(NamedTuple):
    """A prompt whose story goes on with ``target``, contrasted with ``foil`` if given."""

    id: str
    template: str
    text: str
    counterfactual: str
    target: str
    foil: str | None
    evidence: tuple[Span, ...]


def lists() -> Iterator[Prompt]:
    """Yield lists without end; in the counterfactual, the next item is another item."""
    draw = Draw("lists test 0")
    for number in count():
        which, wording = number % len(LISTS), LISTS[number % len(LISTS)]
        size = 3 + draw.below(2)
        items, asked = draw.some(THINGS, size + 1), 1 + draw.below(size - 1)
        girl = draw.below(2)
        name, pronoun = (draw.one(GIRLS), "she") if girl else (draw.one(BOYS), "he")
        template = f"lists {which}, {size} things, number {asked + 1}"
        *items, other = items

        def text(some: list[str], repeated: list[str], shape: str = wording, who: str = name, it: str = pronoun) -> str:
            begun = ", ".join(f"the {one}" for one in repeated)
            end = f"{begun}, the" if asked < size - 1 else f"{begun} and the"  # noqa: B023
            listed = f"{', '.join(f'a {one}' for one in some[:-1])} and a {some[-1]}"
            return shape.format(name=who, pronoun=it, some=listed, all=end)

        changed = [*items[:asked], other, *items[asked + 1 :]]
        own, counterfactual = (text(some, items[:asked]) for some in (items, changed))
        id, target, evidence = f"lists-{number:05d}", items[asked], occurrences(items[asked], own)
        yield Prompt(id, template, own, counterfactual, f" {target}", None, tuple(evidence))


def pronouns() -> Iterator[Prompt]:
    """Yield stories without end; in the counterfactual, both people have the other gender."""
    draw = Draw("pronouns test 0")
    for number in count():
        which, wording = number % len(PRONOUNS), PRONOUNS[number % len(PRONOUNS)]
        girl, boy, girl_too, boy_too = *draw.some(GIRLS, 1), *draw.some(BOYS, 1), draw.one(GIRLS), draw.one(BOYS)
        of_girl = draw.below(2) == 0
        who, other = (girl, boy) if of_girl else (boy, girl)
        swapped = (boy_too, girl_too) if of_girl else (girl_too, boy_too)
        text, counterfactual = (wording.format(who=a, other=b) for a, b in ((who, other), swapped))
        target, foil = (" she", " he") if of_girl else (" he", " she")
        template = f"pronouns {which}, {'she' if of_girl else 'he'}"
        evidence = tuple(occurrences(who, text))
        yield Prompt(f"pronouns-{number:05d}", template, text, counterfactual, target, foil, evidence)


load = {
    "demo": cache(heta_lens.load_demo_model),
    "stories3M": load_stories3m,
    "contest": cache(contest.load_contest_model),
}


class Case(NamedTuple):
    """A prompt with its prediction. ``other`` is the same target after the counterfactual."""

    family: str
    id: str
    template: str
    prediction: Prediction
    other: Prediction
    evidence: list[int]


class Family(NamedTuple):
    model: str
    prompts: Callable[[], Iterator[Prompt]]

    def cases(self, name: str, size: int) -> Iterator[Case]:
        """Yield the first prompts that the model continues as expected."""
        model = load[self.model]()
        ready = (case_of(model, name, prompt) for prompt in self.prompts())
        return islice((case for case in ready if case is not None), size)


def case_of(model: Any, family: str, prompt: Prompt) -> Case | None:
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


def of_instances(some: Iterator[Instance]) -> Iterator[Prompt]:
    for one in some:
        assert one.counterfactual is not None and one.answer is not None
        yield Prompt(one.id, one.template, one.text, one.counterfactual.text, one.answer, None, tuple(one.support))


def recall(hops: int) -> Iterator[Prompt]:
    """Yield stories with three to six facts in turn, in many wordings."""
    how: dict[str, Any] = {"rivals": 1, "hops": hops, "wordings": "more"}
    streams = [of_instances(instances("test", seed=facts, facts=facts, **how)) for facts in (3, 4, 5, 6)]
    return (prompt for some in zip(*streams, strict=True) for prompt in some)


def copied() -> Iterator[Prompt]:
    """Every second template had a part in the choice of a setting, and is left out."""
    first, more = copied_words.prompts(), copied_words.prompts(more=True)
    templates = sorted({prompt["template"] for prompt in first})[1::2]
    for prompt in [*sorted(first, key=copied_words.turn), *sorted(more, key=copied_words.turn)]:
        if prompt["template"] in templates:
            text, target = prompt["text"], prompt["target"]
            places = occurrences(target.strip(), text)
            changed = text
            for start, stop in reversed(places):
                changed = changed[:start] + prompt["swapped_word"] + changed[stop:]
            yield Prompt(prompt["id"], prompt["template"], text, changed, target, None, tuple(places))


FAMILIES: dict[str, Family] = {
    "recall": Family("demo", partial(recall, 1)),
    "two hops": Family("demo", partial(recall, 2)),
    "copied": Family("stories3M", copied),
    "lists": Family("stories3M", lists),
    "pronouns": Family("stories3M", pronouns),
    "contest": Family("contest", lambda: of_instances(contest.instances("test"))),
}


def measure_family(outcomes: Outcomes, family: str, size: int, outcome: Callable[[Case], Any]) -> None:
    """Measure the first prompts of a family that have no outcome yet."""
    cases = {case.id: case for case in FAMILIES[family].cases(family, size)}
    outcomes.measure(product(cases), lambda id: outcome(cases[id]))
