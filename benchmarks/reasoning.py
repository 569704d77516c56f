"""Does following an answer through the model's own reasoning find the evidence of both hops?

    python -m benchmarks.reasoning train    train the model again, which is stored with the code: some minutes
    python -m benchmarks.reasoning run      measure; an interrupted run resumes
    python -m benchmarks.reasoning write    write REASONING.md from what was measured

Stories say who put what where, and in which room each place is; the question asks for the room of somebody's thing. The
model writes `The key of Nina is in the drawer. The drawer is in the attic`. Which sentences this came from is known:
one says where the thing is (hop 1), one in which room that is (hop 2). Prompts are of the test split.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from jaxtyping import Float, Int
from torch import Tensor

import heta_lens
from benchmarks import report
from benchmarks.outcomes import FOLDER, Folder, Key, Outcomes
from benchmarks.reasoning_model import REASONING, WEIGHTS, load, train
from benchmarks.report import average, intervals_over, proportion
from heta_lens.data.recall import Sentence, Split, Story, stories
from heta_lens.metrics import evidence_mass

RESULTS = Path(__file__).with_name("REASONING.md")
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
WAYS = {
    "direct": "the answer's own scores",
    "all written": "the sum of the scores of all tokens that the model wrote, the answer included",
    "all written, in shares": "the same, each token's scores first divided by the sum of their sizes",
    "passed on": "the part of *through* that came by way of the reasoning",
    "through": "followed through the reasoning",
}
OTHERS = ("direct", "all written", "all written, in shares")
MEASURES = {
    "hop 1, rank": (1, SENTENCES),
    "hop 2, rank": (1, SENTENCES),
    "both on top": (0, 1),
    "hop 1, share": (0, 1),
    "hop 2, share": (0, 1),
}
app = typer.Typer(add_completion=False)


class Written(NamedTuple):
    """A prompt with what the model wrote after it, up to the answer; and whether that is right."""

    ids: Int[Tensor, "1 pos"]
    start: int
    """Where the model began to write."""
    place: bool
    room: bool

    @property
    def answer(self) -> int:
        return self.ids.shape[1] - 1


class Found(NamedTuple):
    """What one way of scoring finds of one prompt: the measures, in their order."""

    rank_1: float
    rank_2: float
    on_top: bool
    share_1: float
    share_2: float


# ------------------------------------------------------------------------------------------------ what the model writes
def asked(split: Split, count: int) -> list[Story]:
    return list(islice(stories(split, hops=2, facts=FACTS), count))


def prompt_pieces(story: Story) -> list[str]:
    """Up to ``Answer:``; in the story, the model only had to write the room."""
    assert story.tokens[-2:] == [" in", " the"]
    return story.tokens[:-2]


def facts(story: Story) -> Mapping[str, str]:
    """Owner, thing, place and room that the question is about."""
    slots: dict[str, str] = {}
    for at in story.evidence_at:
        slots |= story.sentences[at].slots
    return slots


@torch.no_grad()
def written(model: Any, story: Story) -> Written:
    """What the model writes of its own accord, token by token."""
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
    """Whether the answer is another place's room, once that place stands in the reasoning."""
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


def found(scores: Float[Tensor, "pos"], story: Story) -> Found:
    """Shares are of all prompt tokens but the one that begins the text, where attention with nowhere to go collects."""
    places = sentences(story)
    of_each = torch.stack([scores[place.start : place.stop].sum() for place in places])
    hops = by_hop(story)
    rank_1, rank_2 = (rank(of_each, hop) for hop in hops)
    share_1, share_2 = (evidence_mass(scores, {*places[hop]}, candidates=range(1, len(scores))) for hop in hops)
    return Found(rank_1, rank_2, rank_1 + rank_2 == 3, share_1, share_2)


def rank(scores: Float[Tensor, "sentence"], which: int) -> float:
    """1 is the highest; equal scores share their ranks."""
    higher, equal = (scores > scores[which]).sum(), (scores == scores[which]).sum()
    return float(higher + (equal + 1) / 2)


def sentences(story: Story) -> list[range]:
    """The tokens of each sentence, after the one that begins the text."""
    ends = accumulate((len(one.pieces) for one in story.sentences), initial=1)
    return [range(start, stop) for start, stop in pairwise(ends)]


def by_hop(story: Story) -> tuple[int, int]:
    """Which sentence says where the thing is, and which in which room that place is."""
    first, second = sorted(story.evidence_at, key=lambda at: "{room}" in story.sentences[at].shape)
    return first, second


def explained(model: Any, story: Story, method: str) -> dict[str, Any]:
    """What every way finds, and how much of the answer's score is on the reasoning."""
    wrote = written(model, story)
    _, cache = model.run_with_cache(wrote.ids, names_filter=heta_lens.names_filter)
    how = {"through": (wrote.start, wrote.answer), "tokens": wrote.ids, "progress": False}
    span = heta_lens.attribute_span(cache, wrote.answer, **how, **{"method": method, **METHODS[method]})
    on_reasoning = float(span.total[wrote.start :].abs().sum() / span.total.abs().sum())
    return {name: found(scores, story) for name, scores in ways(span, wrote.start).items()} | {"on": on_reasoning}


# ------------------------------------------------------------------------------------------------------------ measuring
@app.command("train")
def train_model(weights: Annotated[Path, typer.Option(help="Where they go.")] = WEIGHTS) -> None:
    """Train the demo model's attention further: some minutes on two cores."""
    train(weights)


@app.command()
def run(
    weights: Annotated[Path, typer.Option(help="Those that were trained.")] = WEIGHTS,
    split: Annotated[Split, typer.Option(help="test, or dev for a look that chooses nothing on test.")] = "test",
    prompts: Annotated[int, typer.Option(help="Fewer, for a quick look, with --outcomes.")] = PROMPTS,
    method: Annotated[list[str] | None, typer.Option(help="Only these.")] = None,
    folder: Folder = FOLDER,
) -> None:
    """Measure what the model writes, and every method on the prompts that it answers rightly."""
    if (split, prompts) != ("test", PROMPTS) and folder == FOLDER:
        raise typer.BadParameter("the tables are of the test split: give a folder of its own with --outcomes")
    torch.set_num_threads(1)  # more only slow down a model of this size
    loaded, some = load(weights), asked(split, prompts)
    Outcomes("reasoning_written", folder).measure([(at,) for at in range(prompts)], partial(answered, loaded, some))
    right = [at for at, one in written_outcomes(folder).items() if one["place"] and one["room"]]
    for name in method or METHODS:
        keys: list[Key] = [(name, at) for at in right[: FEW.get(name)]]
        Outcomes("reasoning_found", folder).measure(keys, lambda key: explained(loaded, some[int(key[1])], str(key[0])))


def answered(model: Any, some: Sequence[Story], key: Key) -> dict[str, Any]:
    story = some[int(key[0])]
    wrote = written(model, story)
    facts_of = {"template": story.template, "place": wrote.place, "room": wrote.room}
    return facts_of | {"tokens": wrote.ids.shape[1], "follows": follows(model, story)}


def written_outcomes(folder: Path) -> dict[int, dict[str, Any]]:
    return {int(at): one for (at,), one in Outcomes("reasoning_written", folder).read().items()}


# -------------------------------------------------------------------------------------------------------------- writing
@app.command()
def write(folder: Folder = FOLDER) -> None:
    """Write REASONING.md from what was measured."""
    tables = [*writing(folder), *finding(folder)]
    for table in tables:
        report.show(table.title, table.columns, table.rows)
    if folder == FOLDER:
        report.write(RESULTS, LEGEND, tables, level=3)


def writing(folder: Path) -> Iterator[report.Table]:
    outcomes, missing = Outcomes("reasoning_written", folder).of([(at,) for at in range(PROMPTS)])
    some = list(outcomes.values())
    templates = [one["template"] for one in some]
    right = [one for one in some if one["place"] and one["room"]]
    rows = [
        ["writes the fact as it should, place included", proportion([one["place"] for one in some], templates)],
        ["and after it the right room", proportion([one["place"] and one["room"] for one in some], templates)],
        [
            "of these: with another place in the reasoning, that place's room",
            proportion([one["follows"] for one in right], [one["template"] for one in right]),
        ],
    ]
    note = (
        f"{len(some)} stories, {np.mean([one['tokens'] for one in some]):.0f} tokens on average with what was written."
    )
    yield report.Table("What the model writes", ["", "share"], rows if some else [], missing, note if some else "")


def finding(folder: Path) -> Iterator[report.Table]:
    templates = {at: one["template"] for at, one in written_outcomes(folder).items() if one["place"] and one["room"]}
    keys: list[Key] = [(name, at) for name in METHODS for at in [*templates][: FEW.get(name)]]
    outcomes, missing = Outcomes("reasoning_found", folder).of(keys)
    by_method = {name: [one for (method, _), one in outcomes.items() if method == name] for name in METHODS}
    clusters = {name: [templates[int(at)] for method, at in outcomes if method == name] for name in METHODS}
    done = [name for name in METHODS if by_method[name]]
    note = intervals_over(clusters[name] for name in done)
    count = f"{len(templates)} stories whose reasoning and answer are right. "
    missing += not templates
    rows = [
        [name if way == "direct" else "", way, *values(by_method[name], way, clusters[name])]
        for name in done
        for way in WAYS
    ]
    yield report.Table("Evidence found", ["method", "scores", *MEASURES], rows, missing, count + note)
    for other in OTHERS:
        rows = [
            [name, f"{len(by_method[name])}", *differences(by_method[name], other, clusters[name])] for name in done
        ]
        yield report.Table(f"Through minus {other}", ["method", "stories", *MEASURES], rows, missing, count + note)
    rows = [[name, average([one["on"] for one in by_method[name]], clusters[name], (0, 1))] for name in done]
    columns = ["method", "share of the answer's score on the reasoning"]
    yield report.Table("How much there is to follow", columns, rows, missing, count + note)


def values(outcomes: Sequence[Mapping[str, Any]], way: str, clusters: Sequence[str]) -> list[str]:
    columns = zip(*(one[way] for one in outcomes), strict=True)
    return [average(column, clusters, bounds) for column, bounds in zip(columns, MEASURES.values(), strict=True)]


def differences(outcomes: Sequence[Mapping[str, Any]], other: str, clusters: Sequence[str]) -> list[str]:
    """Of each prompt with itself."""
    pairs = [np.subtract(one["through"], one[other], dtype=float) for one in outcomes]
    return [
        average(column.tolist(), clusters, (low - high, high - low))
        for column, (low, high) in zip(np.array(pairs).T, MEASURES.values(), strict=True)
    ]


LEGEND = f"""{report.TOY_MODELS}

Written by `python -m benchmarks.reasoning write`: two-hop stories with {FACTS} facts, of the demo model's
test split, answered by the demo model after its attention was trained further (`benchmarks/reasoning_model.py`) to
write the fact that it needs before it answers:

    Question: In which room is the key of Nina? Answer: The key of Nina is in the drawer. The drawer is in the attic

Everything after `Answer:` is written by the model, greedily. The answer is the last word, the reasoning what it wrote
before that. The evidence of hop 1 is the sentence of the story that says where the thing is, that of hop 2 the one that
says in which room the place is.

- *direct*: {WAYS["direct"]}, on the tokens of the prompt.
- *all written*: {WAYS["all written"]},
  which is what `attribute_span` gives for all that was written.
- *all written, in shares*: {WAYS["all written, in shares"]}.
- *passed on*: {WAYS["passed on"]}.
- *through*: {WAYS["through"]}, `attribute_span(..., through=)`.

All are compared on the tokens of the prompt alone: what lies on the written tokens counts neither for nor against.

- *rank*: of the evidence among the story's {SENTENCES} sentences, each scored by the sum over its tokens; 1 is best.
- *both on top*: how often the two sentences with evidence are the two highest.
- *share*: the part of the prompt's positive scores on the sentence, without the token that begins the text (so *direct*
  is renormalised over the prompt).

Methods have their default options. `heta` is measured on the first {FEW["heta"]} stories; `heta, row` has
`support="row"`, which is several times cheaper. `random` shows what chance is (longer sentences sum over more tokens).
In the differences, of each story with itself, a negative rank and a positive share say that *through* finds more."""


if __name__ == "__main__":
    app()
