"""Where the answer comes from: what masking the evidence does, and where scores lie."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import heta_lens
from benchmarks.outcomes import Key, Outcomes
from benchmarks.report import Table, average, intervals_over, proportion
from heta_lens.data.recall import Split, Story, Stretch, stories
from heta_lens.methods.heta import diagnostics
from heta_lens.metrics import dsa, evidence_mass, f1

EACH = 100  # prompts of each kind
BOUNDS = [(0, 1), (-1, 1), (0, 1)]  # of evidence mass, DSA and F1
EXPLAINED: dict[str, dict[str, Any]] = {
    "one hop": {},
    "two hops": {"hops": 2, "facts": 4},
    "true claims": {"claim": True},  # false ones can be told from another sentence as well
}


def explained_keys() -> list[Key]:
    return [(kind, at) for kind in EXPLAINED for at in range(EACH)]


def explained_of(split: Split, count: int) -> dict[str, list[Story]]:
    """The prompts that are masked and explained."""
    stories_by_kind = {kind: stories(split, **knobs) for kind, knobs in EXPLAINED.items()}
    return {
        kind: list(islice((one for one in some if one.answer != " false"), count))
        for kind, some in stories_by_kind.items()
    }


class Drops(NamedTuple):
    """Of log p(answer), without one sentence of the evidence and without other stretches as long."""

    evidence: float
    story: list[float]
    question: list[float]


def masked(model: Any, story: Story) -> list[Drops]:
    """For each sentence of the evidence; the other one, if there is one, stays untouched throughout."""
    prediction = _prediction(model, story)
    evidence = _positions(story.evidence)
    drops = []
    for stretch in story.evidence:
        length, begins = len(stretch.tokens), story.question.tokens.start
        inside = [range(at, at + length) for at in range(1, begins - length + 1)]
        in_question = [range(at, at + length) for at in range(begins, len(prediction) - length + 1)]
        others = [some for some in inside if not evidence & set(some)]
        members = torch.zeros(1 + len(others) + len(in_question), len(prediction), dtype=torch.bool)
        for row, some in zip(members, [stretch.tokens, *others, *in_question], strict=True):
            row[list(some)] = True
        values = diagnostics.drops(prediction, "mean", members, "auto", lambda _: None).tolist()
        drops.append(Drops(values[0], values[1 : 1 + len(others)], values[1 + len(others) :]))
    return drops


def masking(folder: Path) -> Table:
    """How much less likely the answer is without a sentence of the evidence, and without any other stretch as long."""
    outcomes, missing = Outcomes("demo_masking", folder).of(explained_keys())
    rows, templates = [], []
    for kind in EXPLAINED:
        prompts = [one for (name, _), one in outcomes.items() if name == kind]
        if prompts:
            rows += masking_rows(kind, prompts)
            templates.append([one["template"] for one in prompts])
    columns = ["prompts", "masked", "5 %", "25 %", "median", "75 %", "95 %", "drops more than all others of the story"]
    title = f"Drop of log p(answer) in nats when a stretch is masked, {EACH} prompts of each kind"
    return Table(title, columns, rows, missing, intervals_over(templates) if rows else "")


def masking_rows(kind: str, prompts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    drops = [[Drops(*hop) for hop in one["drops"]] for one in prompts]
    templates = [one["template"] for one in prompts]
    names = ["the evidence"] if len(drops[0]) == 1 else ["the evidence's first hop", "the evidence's second hop"]
    rows = []
    for name, hops in zip(names, zip(*drops, strict=True), strict=True):
        most = proportion([hop.evidence > max(hop.story) for hop in hops], templates)
        rows.append([kind, name, *_quantiles(hop.evidence for hop in hops), most])
    for name in ("story", "question"):
        values = [value for one in drops for hop in one for value in getattr(hop, name)]
        rows.append([kind, f"other stretches of the {name}", *_quantiles(values), ""])
    return rows


def _quantiles(values: Iterable[float]) -> list[str]:
    quantiles = np.quantile(np.fromiter(values, float), [0.05, 0.25, 0.5, 0.75, 0.95])
    return [f"{round(value, 2) + 0:.2f}" for value in quantiles]  # 0, not -0


class Evaluated(NamedTuple):
    """One score on one prompt."""

    in_five: bool
    mass: float
    dsa: float
    f1: float


def scored(model: Any, story: Story) -> dict[str, Tensor]:
    heta = heta_lens.Heta(progress=False)(_prediction(model, story))
    parts = {f"{name} alone": part for name, part in heta.parts.items()}
    return {"HETA": heta.scores, 'HETA, balance="sum"': heta.diagnostics["balanced"], **parts}


def random_scores(prompts: Sequence[Story]) -> list[Tensor]:
    """Of every prompt, whichever of them are still to be measured."""
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(1 + len(story.tokens), generator=generator) for story in prompts]


def verdict(scores: Tensor, story: Story) -> Evaluated:
    """Of all tokens but the one that begins the text, where attention with nowhere to go collects."""
    scores = scores.clone()
    scores[0] = 0
    evidence, gold, distractor = (_positions(some) for some in (story.evidence, story.gold, story.distractor))
    in_five = bool({1 + at for at in scores[1:].topk(5).indices.tolist()} & evidence)
    agreed = f1(scores, gold, candidates=range(1, len(scores)))
    return Evaluated(in_five, evidence_mass(scores, evidence), dsa(scores, evidence, distractor, gold), agreed)


def attributions(kind: str, folder: Path) -> Table:
    keys = [key for key in explained_keys() if key[0] == kind]
    outcomes, missing = Outcomes("demo_attributions", folder).of(keys)
    templates = [one["template"] for one in outcomes.values()]
    names = next(iter(outcomes.values()))["scores"] if outcomes else []
    rows = []
    for name in names:
        in_five, *values = zip(*(one["scores"][name] for one in outcomes.values()), strict=True)
        rows.append([name, proportion(in_five, templates), *map(average, values, repeat(templates), BOUNDS)])
    columns = ["scores", "evidence in the top five", "evidence mass", "DSA", "F1"]
    title = f"Where scores lie: {kind}, {EACH} prompts"
    return Table(title, columns, rows, missing, intervals_over([templates]))


def _prediction(model: Any, story: Story) -> heta_lens.Prediction:
    ids = model.to_tokens(story.text)
    _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
    return heta_lens.Prediction.from_cache(cache, story.answer, tokens=ids)


def _positions(stretches: Iterable[Stretch]) -> set[int]:
    return {at for stretch in stretches for at in stretch.tokens}
