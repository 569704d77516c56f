"""Two families of short stories that stories3M continues from what stands before: repeated lists, and pronouns.

lists       Tom saw a ball, a drum and a key. Then he took the ball, the drum and the         → key
pronouns    Lily and Tom went to the park. Tom saw a big dog. Lily was happy because          → she, rather than he

In each, every second wording is of the dev split, and the others are of the test split.
"""

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from benchmarks.copied_words.templates import KINDS
from heta_lens._util.text import Span
from heta_lens.data.datasets import occurrences
from heta_lens.data.recall import Draw, Split

GIRLS, BOYS, THINGS = KINDS["girl"], KINDS["boy"], KINDS["thing"]
LISTS = (
    "{name} saw {some}. Then {pronoun} took {all}",
    "{name} had a big box. In the box there was {some}. {name} took out {all}",
    "One day, {name} went to the park and found {some}. {name} put {all}",
    "Once upon a time, {name} had {some}. {name} liked to play with {all}",
    "Mom bought {some}. {name} was happy to see {all}",
    "On the table there was {some}. {name} looked at {all}",
    "{name} wanted {some}. Dad gave {name} {all}",
    "There was {some} in the garden. {name} picked up {all}",
    "{name} went to the shop and saw {some}. {name} wanted to buy {all}",
    "In the attic {name} found {some}. {name} showed mom {all}",
    "{name} lost {some}. After a long time {name} found {all}",
    "{name} drew {some}. Then {pronoun} painted {all}",
)
PRONOUNS = (
    "One day, {who} and {other} went to the park. {other} saw a big dog. {who} was very happy because",
    "{who} and {other} played with a ball. {other} kicked the ball far away. {who} was sad because",
    "{other} had a red car. {who} had a blue kite. The wind was strong. {who} smiled because",
    "Once upon a time, {who} met {other} in the forest. {other} gave {who} a flower. {who} was glad that",
    "{other} was hungry. {who} had a big cake. {who} gave some of it to {other}, and then",
    "{who} and {other} were friends. {other} was sick. {who} felt sad and said that",
    "{other} hid behind a tree. {who} looked everywhere. At last {who} laughed because",
    "{who} found a shiny coin. {other} wanted it too. {who} ran home because",
    "{other} fell down and cried. {who} wanted to help. {who} came back when",
    "{who} made a castle of sand. {other} stepped on it. {who} was angry because",
    "{other} told a story. {who} listened. {who} went to bed when",
    "It was late. {other} was tired. {who} was not tired because",
)


class LocalPrompt(NamedTuple):
    """``target`` is what the story goes on with; ``foil``, if there is one, what it is contrasted with."""

    id: str
    template: str
    text: str
    counterfactual: str
    target: str
    foil: str | None
    evidence: tuple[Span, ...]


def lists(split: Split, seed: int = 0) -> Iterator[LocalPrompt]:
    """Endless; the item that comes next is in the counterfactual another one in the list that it is read from."""
    draw, wordings = Draw(f"lists {split} {seed}"), [*enumerate(LISTS)][split == "test" :: 2]
    for number in count():
        which, wording = wordings[number % len(wordings)]
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

        changed = [*items]
        changed[asked] = other
        own = text(items, items[:asked])
        evidence = tuple(occurrences(items[asked], own))
        counterfactual = text(changed, items[:asked])
        yield LocalPrompt(
            f"lists-{split}-{seed}-{number:05d}", template, own, counterfactual, f" {items[asked]}", None, evidence
        )


def pronouns(split: Split, seed: int = 0) -> Iterator[LocalPrompt]:
    """Endless; in the counterfactual, whoever is spoken of is of the other gender, and so is the other one."""
    draw, wordings = Draw(f"pronouns {split} {seed}"), [*enumerate(PRONOUNS)][split == "test" :: 2]
    for number in count():
        which, wording = wordings[number % len(wordings)]
        girl, boy, girl_too, boy_too = *draw.some(GIRLS, 1), *draw.some(BOYS, 1), draw.one(GIRLS), draw.one(BOYS)
        of_girl = draw.below(2) == 0
        who, other = (girl, boy) if of_girl else (boy, girl)
        swapped = (boy_too, girl_too) if of_girl else (girl_too, boy_too)
        text, counterfactual = (wording.format(who=a, other=b) for a, b in ((who, other), swapped))
        target, foil = (" she", " he") if of_girl else (" he", " she")
        template = f"pronouns {which}, {'she' if of_girl else 'he'}"
        evidence = tuple(occurrences(who, text))
        yield LocalPrompt(
            f"pronouns-{split}-{seed}-{number:05d}", template, text, counterfactual, target, foil, evidence
        )
