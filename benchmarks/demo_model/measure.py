"""What the demo model can do, and where methods see it do it: ``python -m benchmarks.demo_model.measure``.

All prompts are of the test split, which neither training nor any choice has seen; ``--split dev`` is for choosing.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import heta_lens
from benchmarks.report import average, markdown, proportion, show
from heta_lens import faithfulness
from heta_lens.data.recall import Split, stories
from heta_lens.data.story import Story, Stretch
from heta_lens.metrics import dsa, evidence_mass, f1
from heta_lens.models import load_model

RESULTS = Path(__file__).with_name("RESULTS.md")
BATCH = 25
T = TypeVar("T")
Table = tuple[str, list[str], list[list[str]]]

KINDS: dict[str, dict[str, Any]] = {
    "one hop": {},
    "one hop, 2 facts": {"facts": 2},
    "one hop, 12 facts, 3 rivals": {"facts": 12, "rivals": 3},
    "one hop, all 6 are rivals": {"rivals": 5},
    "one hop, 40 facts": {"facts": 40},
    "one hop, 24 facts, 80 idle sentences": {"facts": 24, "filler": 80},
    "one hop, distractors before": {"distractors": "before"},
    "one hop, distractors after": {"distractors": "after"},
    "one hop, distractors around": {"distractors": "around"},
    "one hop, all passive": {"voice": "passive"},
    "two hops": {"hops": 2},
    "two hops, 4 facts": {"hops": 2, "facts": 4},
    "two hops, 12 facts, 3 rivals": {"hops": 2, "facts": 12, "rivals": 3},
    "two hops, 12 facts, 60 idle sentences": {"hops": 2, "facts": 12, "filler": 60},
    "claims": {"claim": True},
    "claims, 12 facts, 3 rivals": {"claim": True, "facts": 12, "rivals": 3},
}
EXPLAINED: dict[str, dict[str, Any]] = {
    "one hop": {},
    "two hops": {"hops": 2, "facts": 4},
    "true claims": {"claim": True},  # false ones can be told from another sentence as well
}


def main(
    split: Annotated[Split, typer.Option(help="test, or dev for a look that chooses nothing on test.")] = "test",
    answered: Annotated[int, typer.Option(help="Prompts of each kind that the model answers.")] = 1000,
    explained: Annotated[int, typer.Option(help="Prompts of each kind that are masked and explained.")] = 100,
    folder: Annotated[Path | None, typer.Option(help="A model other than the packaged one.")] = None,
) -> None:
    model = heta_lens.load_demo_model() if folder is None else load_model(str(folder))
    tables = [answers(model, split, answered), masking(model, split, explained)]
    tables += [attributions(model, kind, told) for kind, told in explained_of(split, explained).items()]
    for table in tables:
        show(*table)
    if (split, answered, explained, folder) == ("test", 1000, 100, None):
        sections = [f"## {title}\n\n{markdown(columns, rows)}" for title, columns, rows in tables]
        RESULTS.write_text("\n\n".join(["Written by `make bench`; intervals are of 95 %.", *sections]) + "\n")


def answers(model: Any, split: Split, count: int) -> Table:
    """Is the answer the most likely of all tokens, and the twin's when the evidence names another?"""
    rows = []
    for kind, knobs in _watched(KINDS.items(), len(KINDS), "answering"):
        told = list(islice(stories(split, **knobs), count))
        twins = [story.twin for story in told]
        right, moved = (said(model, some) == [one.answer for one in some] for some in (told, twins))
        tokens = np.mean([1 + len(story.pieces) for story in told])
        guessed = [f"{np.mean([guess(story, by) for story in told]):.0%}" for by in ((), ("who",), ("what",))]
        rows.append([kind, f"{tokens:.0f}", proportion(right, 1), proportion(moved[right], 1), *guessed])
    columns = ["prompts", "tokens", "answered", "of these, moved with the evidence"]
    return (
        f"Answers, {count} prompts of each kind",
        [*columns, "chance", "knowing the owner", "knowing the thing"],
        rows,
    )


def guess(story: Story, by: tuple[str, ...]) -> float:
    """How often guessing is right among the facts that agree with the question in these words."""
    if "place" in story.asking.slots:
        return 1 / len(story.choices)  # of a claim
    facts = [one.slots for one in story.sentences if {"who", "place"} <= one.slots.keys()]
    return 1 / sum(all(fact[word] == story.asking.slots[word] for word in by) for fact in facts)


@torch.no_grad()
def said(model: Any, told: Sequence[Story]) -> np.ndarray:
    """The most likely token after each prompt."""
    found: list[str] = []
    for some in (told[start : start + BATCH] for start in range(0, len(told), BATCH)):
        ids = [_ids(model, story)[0] for story in some]
        logits = model(pad_sequence(ids, batch_first=True))  # what is read never sees what follows it
        found += [model.tokenizer.decode(int(row[len(one) - 1].argmax())) for row, one in zip(logits, ids, strict=True)]
    return np.array(found)


def masking(model: Any, split: Split, count: int) -> Table:
    """How much less likely the answer is without a sentence of the evidence, and without any other stretch as long."""
    rows = []
    for kind, found in explained_of(split, count).items():
        drops = [masked(model, story) for story in _watched(found, count, f"masking: {kind}")]
        for hop in range(len(drops[0])):
            most = np.array([one[hop].evidence > max(one[hop].story) for one in drops])
            told = ["the evidence"] if len(drops[0]) == 1 else ["the evidence's first hop", "the evidence's second hop"]
            rows.append([kind, told[hop], *_quantiles(one[hop].evidence for one in drops), proportion(most)])
        stretches = [hop for one in drops for hop in one]
        for name, others in (("the story", "story"), ("the question", "question")):
            values = [value for one in stretches for value in getattr(one, others)]
            rows.append([kind, f"other stretches of {name}", *_quantiles(values), ""])
    columns = ["prompts", "masked", "5 %", "25 %", "median", "75 %", "95 %", "drops more than all others of the story"]
    return f"Drop of log p(answer) in nats when a stretch is masked, {count} prompts of each kind", columns, rows


class Drops(NamedTuple):
    """Of log p(answer), without one sentence of the evidence and without other stretches as long."""

    evidence: float
    story: list[float]
    question: list[float]


def masked(model: Any, story: Story) -> list[Drops]:
    """For each sentence of the evidence; the other one, if there is one, stays untouched throughout."""
    prediction = _prediction(model, story)
    told = _positions(story.evidence)
    found = []
    for stretch in story.evidence:
        length, begins = len(stretch.tokens), story.question.tokens.start
        inside = [range(at, at + length) for at in range(1, begins - length + 1)]
        asked = [range(at, at + length) for at in range(begins, len(prediction) - length + 1)]
        others = [some for some in inside if not told & set(some)]
        members = torch.zeros(1 + len(others) + len(asked), len(prediction), dtype=torch.bool)
        for row, some in zip(members, [stretch.tokens, *others, *asked], strict=True):
            row[list(some)] = True
        drops = faithfulness.drops(prediction, "mean", members, "auto", lambda _: None).tolist()
        found.append(Drops(drops[0], drops[1 : 1 + len(others)], drops[1 + len(others) :]))
    return found


def explained_of(split: Split, count: int) -> dict[str, list[Story]]:
    """The prompts that are masked and explained."""
    told = {kind: stories(split, **knobs) for kind, knobs in EXPLAINED.items()}
    return {kind: list(islice((one for one in some if one.answer != " false"), count)) for kind, some in told.items()}


class Judged(NamedTuple):
    """One score on one prompt."""

    in_five: bool
    mass: float
    dsa: float
    f1: float


def attributions(model: Any, kind: str, told: Sequence[Story]) -> Table:
    judged: dict[str, list[Judged]] = {}
    generator = torch.Generator().manual_seed(0)
    for story in _watched(told, len(told), f"explaining: {kind}"):
        for name, scores in scored(model, story, generator).items():
            judged.setdefault(name, []).append(verdict(scores, story))
    rows = []
    for name, verdicts in judged.items():
        in_five, *means = (np.array(column) for column in zip(*verdicts, strict=True))
        rows.append([name, proportion(in_five), *map(average, means)])
    columns = ["scores", "evidence in the top five", "evidence mass", "DSA", "F1"]
    return f"Where scores lie: {kind}, {len(told)} prompts", columns, rows


def scored(model: Any, story: Story, generator: torch.Generator) -> Mapping[str, Tensor]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*makes up.*of this score", UserWarning)
        heta = heta_lens.Heta(progress=False)(_prediction(model, story))
    return {
        "HETA": heta.scores,
        'HETA, balance="sum"': heta.diagnostics["balanced"],
        **{f"{name} alone": part for name, part in heta.parts.items()},
        "random": torch.rand(len(heta), generator=generator),
    }


def verdict(scores: Tensor, story: Story) -> Judged:
    """Of all tokens but the one that begins the text, where attention with nowhere to go collects."""
    scores = scores.clone()
    scores[0] = 0
    evidence, gold, distractor = (_positions(some) for some in (story.evidence, story.gold, story.distractor))
    in_five = bool({1 + at for at in scores[1:].topk(5).indices.tolist()} & evidence)
    agreed = f1(scores, gold, candidates=range(1, len(scores)))
    return Judged(in_five, evidence_mass(scores, evidence), dsa(scores, evidence, distractor, gold), agreed)


def _prediction(model: Any, story: Story) -> heta_lens.Prediction:
    ids = _ids(model, story)
    _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
    return heta_lens.Prediction.from_cache(cache, story.answer, tokens=ids)


def _ids(model: Any, story: Story) -> Tensor:
    return model.to_tokens(story.text)


def _positions(stretches: Iterable[Stretch]) -> set[int]:
    return {at for stretch in stretches for at in stretch.tokens}


def _quantiles(values: Iterable[float]) -> list[str]:
    found = np.quantile(np.fromiter(values, float), [0.05, 0.25, 0.5, 0.75, 0.95])
    return [f"{round(value, 2) + 0:.2f}" for value in found]  # 0, not -0


def _watched(items: Iterable[T], count: int, what: str) -> Iterable[T]:
    return track(items, what, total=count, console=Console(stderr=True), transient=True)


if __name__ == "__main__":
    typer.run(main)
