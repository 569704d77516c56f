"""Following an answer through the model's own reasoning: the evidence of two hops that scores find.

Stories say who put what where, and in which room each place is; the question asks for the room of a thing. The model
writes `The key of Nina is in the drawer. The drawer is in the attic`. Its evidence is known: one sentence says where
the thing is (hop 1), another in which room that place is (hop 2). Prompts are of the test split.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice, pairwise, product
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

import heta_lens
from benchmarks import pages
from benchmarks.outcomes import Key, Outcomes
from benchmarks.pages import Table, average, intervals_over, proportion
from benchmarks.reasoning_model import REASONING, load
from heta_lens.data.recall import Sentence, Story, stories
from heta_lens.metrics import evidence_mass

PROMPTS = 110
FEW = {"heta": 70}  # stories of slow methods: half a minute each and more
FACTS = 4
SENTENCES = 2 * FACTS

METHODS: dict[str, dict[str, Any]] = {
    "attn_lrp": {},
    "input_x_gradient": {},
    "attention_rollout": {},
    "random": {},
    "leave_one_out": {},
    "heta, row": {"method": "heta", "support": "row"},
    "heta": {},
}
WAYS = ("direct", "all written", "all written, in shares", "passed on", "through")
OTHERS = ("direct", "all written", "all written, in shares")
MEASURES = {
    "hop 1, rank": (1, SENTENCES),
    "hop 2, rank": (1, SENTENCES),
    "both on top": (0, 1),
    "hop 1, share": (0, 1),
    "hop 2, share": (0, 1),
}


class Written(NamedTuple):
    """A prompt with the model's own text up to the answer, and its correctness."""

    ids: Int[Tensor, "1 pos"]
    start: int  # the first position that the model wrote
    place: bool
    room: bool

    @property
    def answer(self) -> int:
        return self.ids.shape[1] - 1


# ------------------------------------------------------------------------------------------------ what the model writes
def prompt_pieces(story: Story) -> list[str]:
    """Up to ``Answer:``; in the story, the model only had to write the room."""
    assert story.tokens[-2:] == [" in", " the"]
    return story.tokens[:-2]


def facts(story: Story) -> Mapping[str, str]:
    """Return owner, thing, place and room of the question."""
    slots: dict[str, str] = {}
    for at in story.evidence_at:
        slots |= story.sentences[at].slots
    return slots


@torch.no_grad()
def written(model: Any, story: Story) -> Written:
    ids = encoded(model, prompt_pieces(story))
    start, length = ids.shape[1], len(reasoning(story)) + 1
    for _ in range(length):
        ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], 1)
    wrote = [model.tokenizer.decode([token]) for token in ids[0, start:].tolist()]
    expected = [*reasoning(story), story.answer]
    return Written(ids, start, wrote[:-1] == expected[:-1], wrote[-1] == expected[-1])


def encoded(model: Any, pieces: Sequence[str]) -> Int[Tensor, "1 pos"]:
    return model.to_tokens("".join(pieces).removeprefix(" "))


def reasoning(story: Story) -> list[str]:
    return [piece for piece, _ in Sentence(REASONING, facts(story)).pieces]


@torch.no_grad()
def follows(model: Any, story: Story) -> bool:
    """Return True if the answer follows another place in the reasoning to the room of the place."""
    place = facts(story)["place"]
    located = [one.slots for one in story.sentences if "room" in one.slots and one.slots["place"] != place]
    pieces = [f" {located[0]['place']}" if piece == f" {place}" else piece for piece in reasoning(story)]
    logits = model(encoded(model, [*prompt_pieces(story), *pieces]))[0, -1]
    return model.tokenizer.decode([int(logits.argmax())]) == f" {located[0]['room']}"


# ---------------------------------------------------------------------------------------------------- where scores fall
def ways(span: heta_lens.SpanAttribution, start: int) -> dict[str, Float[Tensor, "pos"]]:
    """Scores of the prompt's tokens."""
    rows = torch.stack([step.scores[:start].double() for step in (*span.reasoning, *span.steps)])
    sizes = torch.stack([step.scores.double().abs().sum() for step in (*span.reasoning, *span.steps)])
    shares = rows / sizes.where(sizes > 0, 1)[:, None]
    direct, through = span.total[:start].double(), span.through[:start].double()
    return dict(zip(WAYS, (direct, rows.sum(0), shares.sum(0), through - direct, through), strict=True))


def found(scores: Float[Tensor, "pos"], story: Story) -> tuple[float, float, bool, float, float]:
    """Return the ``MEASURES`` on the prompt, without the first token, which collects idle attention."""
    places = sentences(story)
    of_each = torch.stack([scores[place.start : place.stop].sum() for place in places])
    hops = by_hop(story)
    rank_1, rank_2 = (rank(of_each, hop) for hop in hops)
    share_1, share_2 = (evidence_mass(scores, {*places[hop]}, candidates=range(1, len(scores))) for hop in hops)
    return rank_1, rank_2, rank_1 + rank_2 == 3, share_1, share_2


def rank(scores: Float[Tensor, "sentence"], which: int) -> float:
    """Return the rank, 1 for the highest; equal scores share their ranks."""
    higher, equal = (scores > scores[which]).sum(), (scores == scores[which]).sum()
    return float(higher + (equal + 1) / 2)


def sentences(story: Story) -> list[range]:
    """Return the tokens of each sentence, after the token that begins the text."""
    ends = accumulate((len(one.pieces) for one in story.sentences), initial=1)
    return [range(start, stop) for start, stop in pairwise(ends)]


def by_hop(story: Story) -> tuple[int, int]:
    """Return the sentence with the thing's place, and the sentence with the place's room."""
    first, second = sorted(story.evidence_at, key=lambda at: "{room}" in story.sentences[at].shape)
    return first, second


def explained(model: Any, story: Story, method: str) -> dict[str, Any]:
    """Return the measures of every way, and the share of the answer's score on the reasoning."""
    wrote = written(model, story)
    _, cache = model.run_with_cache(wrote.ids, names_filter=heta_lens.names_filter)
    how = {"through": (wrote.start, wrote.answer), "tokens": wrote.ids, "progress": False}
    span = heta_lens.attribute_span(cache, wrote.answer, **how, **{"method": method, **METHODS[method]})
    on_reasoning = float(span.total[wrote.start :].abs().sum() / span.total.abs().sum())
    return {name: found(scores, story) for name, scores in ways(span, wrote.start).items()} | {"on": on_reasoning}


# ------------------------------------------------------------------------------------------------------------ measuring
def run() -> None:
    torch.set_num_threads(1)  # more only slow down a model of this size
    model, some = load(), [*islice(stories("test", hops=2, facts=FACTS), PROMPTS)]

    def answered(at: int) -> dict[str, Any]:
        wrote = written(model, some[at])
        facts_of = {"template": some[at].template, "place": wrote.place, "room": wrote.room}
        return facts_of | {"tokens": wrote.ids.shape[1], "follows": follows(model, some[at])}

    Outcomes("reasoning_written").measure(product(range(PROMPTS)), answered)
    Outcomes("reasoning_found").measure(found_keys(), lambda name, at: explained(model, some[at], name))


def found_keys() -> list[Key]:
    return [(name, at) for name in METHODS for at in [*right_templates()][: FEW.get(name)]]


def right_templates() -> dict[int, str]:
    """Return the templates of the stories whose reasoning and answer are right, by number."""
    outcomes = Outcomes("reasoning_written").read()
    return {at: one["template"] for (at,), one in outcomes.items() if one["place"] and one["room"]}


# -------------------------------------------------------------------------------------------------------------- writing
def write() -> None:
    pages.write("reasoning", [*writing(), *finding()], level=3)


def writing() -> Iterator[Table]:
    outcomes, missing = Outcomes("reasoning_written").of(product(range(PROMPTS)))
    some = list(outcomes.values())
    templates = [one["template"] for one in some]
    right = [one for one in some if one["place"] and one["room"]]
    moved = proportion([one["follows"] for one in right], [one["template"] for one in right])
    rows = [
        ["writes the fact as it should, place included", proportion([one["place"] for one in some], templates)],
        ["and after it the right room", proportion([one["place"] and one["room"] for one in some], templates)],
        ["of these: with another place in the reasoning, that place's room", moved],
    ]
    tokens = np.mean([one["tokens"] for one in some])
    note = f"{len(some)} stories, {tokens:.0f} tokens on average with what was written."
    yield Table("What the model writes", ["", "share"], rows if some else [], missing, note if some else "")


def finding() -> Iterator[Table]:
    templates = right_templates()
    outcomes, missing = Outcomes("reasoning_found").of(found_keys())
    by_method = {name: [one for (method, _), one in outcomes.items() if method == name] for name in METHODS}
    clusters = {name: [templates[at] for method, at in outcomes if method == name] for name in METHODS}
    done = [name for name in METHODS if by_method[name]]
    note = intervals_over(clusters[name] for name in done)
    count = f"{len(templates)} stories whose reasoning and answer are right. "
    missing += not templates
    rows = [
        [name if way == "direct" else "", way, *values(by_method[name], way, clusters[name])]
        for name in done
        for way in WAYS
    ]
    yield Table("Evidence found", ["method", "scores", *MEASURES], rows, missing, count + note)
    for other in OTHERS:
        rows = [
            [name, f"{len(by_method[name])}", *differences(by_method[name], other, clusters[name])] for name in done
        ]
        yield Table(f"Through minus {other}", ["method", "stories", *MEASURES], rows, missing, count + note)
    rows = [[name, average([one["on"] for one in by_method[name]], clusters[name], (0, 1))] for name in done]
    columns = ["method", "share of the answer's score on the reasoning"]
    yield Table("How much there is to follow", columns, rows, missing, count + note)


def values(outcomes: Sequence[Mapping[str, Any]], way: str, clusters: Sequence[str]) -> list[str]:
    columns = zip(*(one[way] for one in outcomes), strict=True)
    return [average(column, clusters, bounds) for column, bounds in zip(columns, MEASURES.values(), strict=True)]


def differences(outcomes: Sequence[Mapping[str, Any]], other: str, clusters: Sequence[str]) -> list[str]:
    pairs = [np.subtract(one["through"], one[other], dtype=float) for one in outcomes]
    return [
        average(column.tolist(), clusters, (low - high, high - low))
        for column, (low, high) in zip(np.array(pairs).T, MEASURES.values(), strict=True)
    ]
