"""Families of generated prompts for language models: the answer stands in the prompt, and its place is known.

A family has wordings for ``dev`` and others for ``test``, so that what is chosen on the one is tried on another form.
Every instance has a counterfactual, in which the evidence tells another answer. Where a question is asked,
``chat=True`` asks it in a chat, as the model's own template has it. Words and wordings are in ``families.json``.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from heta_lens._util.options import check_choice
from heta_lens._util.text import Span
from heta_lens.data.datasets import Piece, composed, occurrences
from heta_lens.data.instance import Instance
from heta_lens.data.recall import Draw

Split = Literal["dev", "test"]
Wording = Mapping[str, str]

FORMS: dict[str, Any] = json.loads(Path(__file__).with_name("families.json").read_text(encoding="utf-8"))
NAMES, PLACES, THINGS, WORDS, LETTERS, NOUNS, RELATIONS, ATTRACTORS = (
    FORMS[name].split()
    for name in ["names", "places", "things", "words", "letters", "nouns", "relations", "attractors"]
)


@dataclass(frozen=True)
class Asked:
    """A context in pieces, named ``support`` or ``distractor``; a question; the words before the answer; the answer.

    ``example`` shows the task first; like the question, the example is no part of the context.
    """

    context: Sequence[Piece]
    answer: str
    question: str = ""
    opening: str = ""
    example: str = ""
    between: str = " "

    def instance(self, id: str, template: str, chat: bool = False) -> Instance:
        """Return the prompt, whose context alone is eligible; of a chat, the text is the user's message."""
        parts = [self.question] if chat else [self.question, self.opening]
        asked = [Piece(self.between + part) for part in parts if part]
        eligible = Span(len(self.example), len(self.example) + sum(len(piece.text) for piece in self.context))
        pieces = [Piece(self.example), *self.context, *asked]
        made = composed(id, pieces, f" {self.answer}", template=template, eligible=[eligible])
        found = [span for within in made.support for span in occurrences(self.answer, made.text, within)]
        said = {"user": made.text, "assistant": self.opening} if chat else {}
        messages = [{"role": role, "content": content} for role, content in said.items()]
        return replace(made, gold=found or made.support, messages=messages)


class Made(NamedTuple):
    """A prompt as a function of the word that its evidence tells; two such words; and the wording."""

    asked: Callable[[str], Asked]
    answer: str
    other: str
    template: str


def in_lines(lines: Iterable[tuple[str, bool]], between: str = " ") -> list[Piece]:
    """Return lines as pieces, of which each is support or not."""
    pieces = list[Piece]()
    for line, own in lines:
        pieces += [Piece(between)] if pieces else []
        pieces.append(Piece(line, "support" if own else "distractor"))
    return pieces


def with_answer(told: Sequence[str], at: int, answer: str) -> list[str]:
    return [*told[:at], answer, *told[at + 1 :]]


# ---------------------------------------------------------------------------------------------- questions and answers
def key_value(draw: Draw, forms: Sequence[Wording], pairs: int = 5) -> Made:
    """Make key–value pairs, a line each; the value of a key is asked for."""
    return _facts(draw, draw.one(forms), WORDS, pairs, "\n")


def in_context_qa(draw: Draw, forms: Sequence[Wording], facts: int = 4) -> Made:
    """Make facts about people and places; the place of a person is asked for."""
    return _facts(draw, draw.one(forms), PLACES, facts)


def _facts(draw: Draw, form: Wording, words: Sequence[str], count: int, between: str = " ") -> Made:
    keys, (other, *values), at = draw.some(NAMES, count), draw.some(words, count + 1), draw.below(count)

    def asked(answer: str) -> Asked:
        told = zip(keys, with_answer(values, at, answer), strict=True)
        lines = [(form["line"].format(key=key, value=value), value == answer) for key, value in told]
        question, opening = (form.get(part, "").format(key=keys[at]) for part in ("question", "opening"))
        return Asked(in_lines(lines, between), answer, question, opening, between=between)

    return Made(asked, values[at], other, form["line"])


def needle(draw: Draw, forms: Sequence[Wording], needles: int = 3, words: int = 60) -> Made:
    """Hide facts among about so many ``words`` of noise; the word of one is asked for."""
    facts, noise = _facts(draw, draw.one(forms), WORDS, needles), list[str]()
    while sum(len(line.split()) for line in noise) < words:
        noise.append(draw.one(FORMS["noise"]))
    places = sorted(draw.below(len(noise) + 1) for _ in range(needles))

    def asked(answer: str) -> Asked:
        bare, pieces = facts.asked(answer), [Piece(line) for line in noise]
        hidden = [piece for piece in bare.context if piece.name]
        for place, piece in zip(reversed(places), reversed(hidden), strict=True):
            pieces.insert(place, piece)
        spaced = [part for number, piece in enumerate(pieces) for part in (Piece(" " * bool(number)), piece)]
        return replace(bare, context=spaced)

    return facts._replace(asked=asked)


def two_hop(draw: Draw, forms: Sequence[Wording], people: int = 2) -> Made:
    """Make facts about things of people, and about their places; the place of a thing is asked for."""
    form, names, things = draw.one(forms), draw.some(NAMES, people), draw.some(THINGS, people)
    (other, *places), at, order = draw.some(PLACES, people + 1), draw.below(people), draw.shuffled(range(people))

    def asked(answer: str) -> Asked:
        told = with_answer(places, at, answer)
        lines = [
            (form[part].format(who=names[one], key=things[one], value=told[one]), one == at)
            for one in order
            for part in ("line", "second")
        ]
        question, opening = (form[part].format(key=things[at]) for part in ("question", "opening"))
        return Asked(in_lines(lines), answer, question, opening)

    return Made(asked, places[at], other, form["line"])


def variable_tracking(draw: Draw, forms: Sequence[Wording], hops: int = 1, chains: int = 2) -> Made:
    """Make chains of assignments after an example; the value of a chain's last variable is asked for."""
    form = draw.one(forms)
    letters, (other, *values) = draw.some(LETTERS, chains * (hops + 1)), draw.some(WORDS, chains + 1)
    names = [letters[chain * (hops + 1) : (chain + 1) * (hops + 1)] for chain in range(chains)]
    at, order = draw.below(chains), draw.shuffled(range(chains))
    alias, between = form.get("alias", "{name}"), form.get("between", " ")

    def asked(answer: str) -> Asked:
        told, lines = with_answer(values, at, answer), list[tuple[str, bool]]()
        for step in range(hops + 1):
            for chain in order:
                value = alias.format(name=names[chain][step - 1]) if step else told[chain]
                lines.append((form["line"].format(to=names[chain][step], value=value), chain == at))
        opening = form["opening"].format(key=names[at][-1])
        return Asked(in_lines(lines, between), answer, "", opening, form["example"], between)

    return Made(asked, values[at], other, form["line"])


# -------------------------------------------------------------------------------------- continuations with a known cue
def ioi(draw: Draw, forms: Sequence[str]) -> Made:
    """Make prompts whose next word is the person who is named once: the indirect object."""
    (name, other, rival), shape = draw.some(NAMES, 3), draw.one(forms)
    words = {"place": draw.one(PLACES), "thing": draw.one(THINGS)}

    def asked(answer: str) -> Asked:
        parts = re.split(r"(\{a\}|\{b\})", shape.format(a="{a}", b="{b}", **words))
        named = {"{a}": Piece(answer, "support"), "{b}": Piece(rival, "distractor")}
        return Asked([named.get(part, Piece(part)) for part in parts], answer)

    return Made(asked, name, other, shape)


def agreement(draw: Draw, forms: Sequence[Sequence[str]]) -> Made:
    """Make beginnings of sentences whose verb agrees with a subject, before an attractor of either number."""
    noun, relation, attractor = draw.one(NOUNS), draw.one(RELATIONS), draw.one(ATTRACTORS)
    verbs, plural = draw.one(forms), draw.below(2)
    rest = f" {relation} the {attractor}" + "s" * draw.below(2)

    def asked(answer: str) -> Asked:
        subject = noun + "s" * verbs.index(answer)
        return Asked([Piece("The "), Piece(subject, "support"), Piece(rest)], answer)

    return Made(asked, verbs[plural], verbs[1 - plural], noun)


FAMILIES: Mapping[str, Callable[..., Made]] = {
    made.__name__: made for made in (key_value, in_context_qa, needle, two_hop, variable_tracking, ioi, agreement)
}


def family(
    name: str, split: Split = "test", *, seed: int = 0, count: int, chat: bool = False, **options: int
) -> Iterator[Instance]:
    """Yield ``count`` prompts of a family; ``options`` are the family's own, such as the ``words`` around a needle."""
    check_choice("split", split, get_args(Split))
    for number in range(count):
        try:
            made = FAMILIES[name](Draw(f"{name} {split} {seed} {number}"), FORMS[name][split], **options)
            own, other = (made.asked(answer) for answer in (made.answer, made.other))
        except (IndexError, ValueError, TypeError):  # a list of words is too short
            raise ValueError(f"{name} has no words for {options}: give smaller whole numbers, from 1 on") from None
        id, template = f"{name}-{split}-{number}", f"{name}: {made.template}"
        if chat and not own.opening:
            raise ValueError(f"{name} asks no question: leave out chat=")
        counterfactual = other.instance(f"{id}-other", template, chat)
        yield replace(own.instance(id, template, chat), counterfactual=counterfactual)
