"""The study of docs/study.md: the setting of HETA that agrees best with interventions.

All candidates are measured on the dev split, and the winners and the literal formula on the test split. A candidate is
``M^power · (β S + γ I)``. Its gates, informations and curvatures are measured once a prompt, so that hundreds of
candidates cost no more runs than a few dozen.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from scipy.stats import rankdata
from torch import Tensor

import heta_lens
from benchmarks import pages
from benchmarks.interventions import MEASURES, evaluated
from benchmarks.outcomes import Outcomes
from benchmarks.pages import Table, average, proportion
from benchmarks.prompts import DEV, FAMILIES, Case, measure_family
from heta_lens._util.numerics import DIVERGENCES
from heta_lens.data.recall import Split
from heta_lens.evaluation.statistics import Difference, corrected, difference
from heta_lens.methods.heta.heta import flow_gate
from heta_lens.methods.heta.score import Balance, scaled
from heta_lens.methods.reagent import replaced, unigram
from heta_lens.model.hooks import values_name
from heta_lens.prediction.masking import masked_copies
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import log_softmax

FLOWS = ("suffix", "suffix_input", "prefix_head", "rollout", "direct")
NORMS = (1, 2)
MASKS = ("zero", "mean", "vocab_mean", "pad", "space", "other")
DRAWS = 4  # tokens that stand in for each with mask "other"
COPIES = 32  # of a context at once
CURVATURES: Mapping[str, Mapping[str, Any]] = {
    "block": {},
    "row": {"support": "row"},
    "row, 3 probes": {"support": "row", "probes": 3},
    "lr": {"variant": "lr", "rank": 16},
    "ls": {"variant": "ls", "layers": 2},
    "win": {"variant": "win", "window": 32},
    "gs": {"variant": "gs"},
    "gn": {"variant": "gn"},
    "contrast": {},
}


class Part(NamedTuple):
    values: Float[Tensor, "pos"]
    runs: float  # the cost in plain forwards


Parts = Mapping[str, Part]


class Measured(NamedTuple):
    """The parts of every candidate, measured once a prompt: a candidate only combines them."""

    gates: Parts
    informations: Parts  # under ``mask/divergence``
    curvatures: Parts

    @classmethod
    def of(cls, prediction: Prediction, masks: Collection[Any], kinds: Collection[str]) -> "Measured":
        return cls(gates(prediction), informations(prediction, masks), curvatures(prediction, kinds))


def gates(prediction: Prediction) -> Parts:
    flows = {
        f"{flow}{norm}": Part(flow_gate(heta_lens.Heta(flow=flow, value_norm=norm), prediction)[0], 0)
        for flow in FLOWS
        for norm in NORMS
    }
    even = torch.full_like(prediction.embeddings[:, 0], 1 / len(prediction))
    return flows | {"uniform": Part(even, 0), "gradient": Part(gradient_gate(prediction), 3)}


def gradient_gate(prediction: Prediction) -> Float[Tensor, "pos"]:
    """Return ``Σ |v · ∂g/∂v|`` over layers and heads, sum 1: the first-order loss of g without a token's values."""
    values: dict[int, Tensor] = {}

    def kept(layer: int, live: Tensor) -> Tensor:
        """Note and return a copy: a bridge may show a view that no result is computed from."""
        values[layer] = live.clone()
        return values[layer]

    hooks = [(values_name(layer), partial(kept, layer)) for layer in range(prediction.adapter.layers)]
    with prediction.running(), torch.enable_grad(), prediction.adapter.hooked(hooks):
        leaf = prediction.embeddings.detach().clone().requires_grad_()
        g = prediction.rerun().g(leaf[None])[0]
        slopes = torch.autograd.grad(g, list(values.values()))
    flowing = [
        einsum(value[0], slope[0], "pos head d, pos head d -> head pos").abs().sum(0)
        for value, slope in zip(values.values(), slopes, strict=True)
    ]
    total = torch.stack(flowing).sum(0).detach().to(prediction.embeddings)
    return total / total.sum()


@torch.no_grad()
def informations(prediction: Prediction, masks: Collection[Any]) -> Parts:
    found: dict[str, Part] = {}
    for mask in masks:
        if mask == "other":
            vectors = others(prediction)
        else:
            vectors = prediction.mask_vector(mask).expand_as(prediction.embeddings)[None]
        each = [divergences(prediction, drawn) for drawn in vectors]
        for name in DIVERGENCES:
            values = torch.stack([own[name] for own in each]).mean(0)
            found[f"{mask}/{name}"] = Part(values, len(each) * len(prediction))
    return found


def others(prediction: Prediction) -> Float[Tensor, "draw pos d"]:
    """Return the embeddings of random tokens of the same kind, for each token."""
    generator, every = np.random.default_rng(0), torch.arange(len(prediction))
    replacer = unigram(prediction)
    drawn = [replaced(prediction.ids, every, replacer, generator) for _ in range(DRAWS)]
    return torch.stack([prediction.adapter.embedding_table(ids.tolist()) for ids in drawn]).to(prediction.embeddings)


def divergences(prediction: Prediction, vectors: Float[Tensor, "pos d"]) -> dict[str, Float[Tensor, "pos"]]:
    """Return the divergences of the prediction as each token's embedding is replaced."""
    moved = log_softmax(masked_logits(prediction, vectors))
    return {name: divergence(prediction.log_probs, moved) for name, divergence in DIVERGENCES.items()}


@torch.no_grad()
def masked_logits(prediction: Prediction, vectors: Float[Tensor, "pos d"]) -> Float[Tensor, "pos vocab"]:
    """Return the logits as each token's embedding is replaced."""
    logits_of, rows = prediction.rerun().logits, []
    with prediction.running():
        for some in torch.arange(len(prediction)).split(COPIES):
            rows.append(logits_of(masked_copies(prediction.embeddings, some, vectors[some])))
    return torch.cat(rows)


def curvatures(prediction: Prediction, kinds: Collection[str]) -> Parts:
    found: dict[str, Part] = {}
    for name in kinds:
        method = heta_lens.Heta(**CURVATURES[name], beta=1.0, gamma=0.0, progress=False)
        about = contrasted(prediction) if name == "contrast" else prediction
        if name == "gn" and isinstance(prediction.target, tuple):  # which is about a probability
            about = replace(prediction, target=prediction.target[0])
        found[name] = Part(method(about).parts["curvature"], method.work(about).worth)
    return found


def contrasted(prediction: Prediction) -> Prediction:
    """Return the contrast of the target with the strongest rival token."""
    if isinstance(prediction.target, tuple):
        return prediction
    first, second = prediction.log_probs.topk(2).indices.tolist()
    other = second if first == prediction.target else first
    return replace(prediction, target=(prediction.target, other))


# ---------------------------------------------------------------------------------------------------------- candidates
GATES = (*(f"{flow}{norm}" for flow in FLOWS for norm in NORMS), "uniform", "gradient")
POWERS = (0.25, 0.5, 2.0)
WEIGHTS = ((1.0, 0.0), (0.8, 0.2), (0.5, 0.5), (0.2, 0.8), (0.0, 1.0))


class Candidate(NamedTuple):
    gate: str = "suffix1"
    power: float = 1.0
    curvature: str = "block"
    information: str = "zero/orig_masked"
    beta: float = 0.5
    gamma: float = 0.5
    balance: Balance = "none"

    @property
    def name(self) -> str:
        gate = self.gate if self.power == 1 else f"{self.gate}^{self.power:g}"
        terms = [
            f"{weight:g} {part}"
            for weight, part in ((self.beta, self.curvature), (self.gamma, self.information))
            if weight
        ]
        inside = " + ".join(terms) or "nothing else"
        return f"{gate} · ({inside})" + (f", balanced by {self.balance}" if self.balance != "none" else "")

    @property
    def simple(self) -> "Candidate":
        """Return the candidate without options that leave the order of scores unchanged."""
        one = self
        if one.gate == "uniform":
            one = one._replace(power=1.0)
        if not one.beta or not one.gamma:
            one = one._replace(balance="none", beta=float(one.beta > 0), gamma=float(one.gamma > 0))
        if not one.beta:
            one = one._replace(curvature="")
        if not one.gamma:
            one = one._replace(information="")
        if not one.beta and not one.gamma:
            one = one._replace(power=1.0)
        return one

    def score(self, parts: Measured) -> Float[Tensor, "pos"]:
        gate = parts.gates[self.gate].values ** self.power
        terms = [
            weight * scaled(of[name].values, self.balance)
            for weight, of, name in (
                (self.beta, parts.curvatures, self.curvature),
                (self.gamma, parts.informations, self.information),
            )
            if weight
        ]
        return gate * torch.stack(terms).sum(0) if terms else gate

    def runs(self, parts: Measured) -> float:
        """Return the cost in plain forwards."""
        used = [parts.gates[self.gate]]
        used += [parts.curvatures[self.curvature]] if self.beta else []
        used += [parts.informations[self.information]] if self.gamma else []
        return sum(part.runs for part in used)


LITERAL = Candidate()
KL_ONLY = Candidate(beta=0.0, gamma=1.0)


def changed(base: Candidate) -> Iterator[Candidate]:
    yield from (base._replace(gate=gate) for gate in GATES)
    yield from (base._replace(power=power) for power in POWERS)
    yield from (base._replace(information=f"{mask}/{name}") for mask in MASKS for name in DIVERGENCES)
    yield from (base._replace(curvature=name) for name in CURVATURES)
    yield from (base._replace(balance=balance) for balance in ("sum", "max"))
    yield from (base._replace(beta=beta, gamma=gamma) for beta, gamma in WEIGHTS)


def together() -> Iterator[Candidate]:
    gates, masks = ("suffix1", "rollout1", "uniform", "gradient"), ("zero", "mean", "space", "other")
    weightings: list[tuple[float, float, Balance]] = [(0.0, 1.0, "none"), (0.5, 0.5, "none"), (0.5, 0.5, "sum")]
    options = product(gates, (0.5, 1.0), masks, ("orig_masked", "js"), weightings)
    for gate, power, mask, name, (beta, gamma, balance) in options:
        yield Candidate(gate, power, "block", f"{mask}/{name}", beta, gamma, balance)


def cheap() -> Iterator[Candidate]:
    """Yield candidates that need no run for every token: gates alone, and cheap curvatures."""
    yield from (Candidate(gate, beta=0.0, gamma=0.0) for gate in GATES)
    for gate, curvature in product(("suffix1", "rollout1", "uniform", "gradient"), CURVATURES):
        yield Candidate(gate, curvature=curvature, beta=1.0, gamma=0.0)


CANDIDATES: tuple[Candidate, ...] = tuple(
    dict.fromkeys(one.simple for one in (LITERAL, KL_ONLY, *changed(LITERAL), *changed(KL_ONLY), *together(), *cheap()))
)


BUDGETS = (inf, 100.0, 30.0, 3.0)


class Standing(NamedTuple):
    candidate: Candidate
    rank: float
    runs: float


class Measures(NamedTuple):
    templates: list[str]
    candidates: list[str]
    runs: Float[np.ndarray, "candidate"]
    values: Float[np.ndarray, "prompt candidate measure"]
    evidence: Float[np.ndarray, "prompt candidate 2"]


def size(family: str, split: Split) -> int:
    return 48 if split == "dev" else 71 if family == "copied" else 96


def outcomes_of(family: str, split: Split) -> Outcomes:
    return Outcomes(f"study_{split}_{family.replace(' ', '_')}")


@cache
def measures_of(family: str, split: Split) -> Measures:
    outcomes = [*outcomes_of(family, split).read().values()]
    if len(outcomes) != size(family, split):
        raise SystemExit(
            f"{family} has {len(outcomes)} of {size(family, split)} prompts on {split}: make table-study_results"
        )
    (names,) = {tuple(one["candidates"]) for one in outcomes}
    if split == "dev" and names != tuple(candidate.name for candidate in CANDIDATES):
        raise SystemExit(
            f"{family} was measured on dev with other candidates: remove its outcomes, and measure it again"
        )
    stacked = {name: np.array([one[name] for one in outcomes]) for name in ("runs", "measures", "evidence")}
    runs, *rest = stacked.values()
    return Measures([one["template"] for one in outcomes], [*names], runs.mean(0), *rest)


def ranking(budget: float) -> list[Standing]:
    """Return the candidates within a budget of forwards, averages over the families of dev, the best first."""
    runs = np.mean([measures_of(family, "dev").runs for family in DEV], axis=0)
    within = np.flatnonzero(runs <= budget)
    ranks = np.mean([ranks_of(measures_of(family, "dev").values[:, within].mean(0)) for family in DEV], axis=0)
    standings = [Standing(CANDIDATES[at], float(rank), float(runs[at])) for at, rank in zip(within, ranks, strict=True)]
    return sorted(standings, key=lambda one: (one.rank, one.runs))


def ranks_of(means: Float[np.ndarray, "candidate measure"]) -> Float[np.ndarray, "candidate"]:
    """Return each candidate's rank, 1 for the best, averaged over the measures."""
    return rankdata(-means, axis=0).mean(1)


def winners() -> dict[float, Candidate]:
    return {budget: ranking(budget)[0].candidate for budget in BUDGETS}


def confirmed() -> Sequence[Candidate]:
    return [*dict.fromkeys([LITERAL, *winners().values(), KL_ONLY.simple])]


def run(*families: str) -> None:
    torch.set_num_threads(1)  # more only slow down models of this size
    warnings.simplefilter("ignore", UserWarning)
    splits: dict[Split, list[str]] = {"dev": DEV, "test": [*FAMILIES]}
    for split, known in splits.items():
        for family in [name for name in families or known if name in known]:
            each = partial(outcome, candidates=CANDIDATES if split == "dev" else confirmed())
            measure_family(outcomes_of(family, split), family, split, size(family, split), each)


def outcome(case: Case, candidates: Sequence[Candidate]) -> dict[str, Any]:
    masks = {candidate.information.partition("/")[0] for candidate in candidates} - {""}
    parts = Measured.of(case.prediction, masks, {candidate.curvature for candidate in candidates} - {""})
    scores = torch.stack([candidate.score(parts) for candidate in candidates])
    return evaluated(case, scores) | {
        "candidates": [candidate.name for candidate in candidates],
        "runs": [round(candidate.runs(parts), 1) for candidate in candidates],
    }


APART = "contest"  # the family and the model that had no part in the choice
LEVEL = 0.05
SHOWN = 10


class Compared(NamedTuple):
    """A winner and the literal formula, by one measure in one family; ``p`` is Holm's."""

    family: str
    measure: str
    difference: Difference
    p: float

    @property
    def verdict(self) -> int:
        return 0 if self.p > LEVEL else int(np.sign(self.difference.value))

    @property
    def cell(self) -> str:
        mark, found = {1: "▲ ", -1: "▼ ", 0: ""}[self.verdict], self.difference
        interval = f" [{found.low:+.3f}, {found.high:+.3f}]" if isfinite(found.low) and isfinite(found.high) else ""
        return f"{mark}{found.value:+.3f}{interval}"


class Confirmation(NamedTuple):
    candidate: Candidate
    compared: list[Compared]

    def counts(self, family: str | None = None) -> tuple[int, int]:
        """Return the numbers of significantly better and worse comparisons with the literal formula."""
        verdicts = [one.verdict for one in self.compared if family in (None, one.family)]
        return verdicts.count(1), verdicts.count(-1)

    @property
    def recommended(self) -> bool:
        (better, worse), (better_apart, worse_apart) = self.counts(), self.counts(APART)
        return better > worse and better_apart >= worse_apart


def confirmations() -> list[Confirmation]:
    """Return every winner against the literal formula, corrected for all comparisons together."""
    of = {candidate: list[Compared]() for candidate in winners().values() if candidate != LITERAL}
    every = [*product(of, FAMILIES, MEASURES)]
    differences = [compared(*one) for one in every]
    p_values = corrected([found.p for found in differences])
    for (candidate, family, measure), found, p in zip(every, differences, p_values, strict=True):
        of[candidate].append(Compared(family, measure, found, p))
    return [Confirmation(candidate, found) for candidate, found in of.items()]


def compared(candidate: Candidate, family: str, measure: str) -> Difference:
    test, at = measures_of(family, "test"), MEASURES.index(measure)
    ours, theirs = (test.values[:, test.candidates.index(one.name), at].tolist() for one in (candidate, LITERAL))
    return difference(ours, theirs, test.templates)


def write() -> None:
    found = confirmations()
    pages.write("study_results", [winners_table(found), best_table()])
    pages.write("study_results", [*map(changes_table, (LITERAL, KL_ONLY.simple)), *map(test_table, found)], level=3)
    pages.write("study_results", [evidence_table()])


def winners_table(found: Sequence[Confirmation]) -> Table:
    columns = ["forwards allowed", "winner", "forwards taken", "mean rank", "better / worse on test", APART]
    verdicts = {LITERAL: ["the literal formula", "", ""]}
    for one in found:
        everywhere, apart = (" / ".join(map(str, one.counts(family))) for family in (None, APART))
        verdicts[one.candidate] = [everywhere, apart, "yes" if one.recommended else "no"]
    rows = []
    for budget in BUDGETS:
        best, *_ = ranking(budget)
        allowed = f"{budget:.0f}" if isfinite(budget) else "any"
        costs = [f"{best.runs:.0f}", f"{best.rank:.1f}"]
        rows.append([allowed, f"`{best.candidate.name}`", *costs, *verdicts[best.candidate]])
    note = "*mean rank*: among the candidates that are within a budget, so that the rows cannot be compared."
    return Table("The winners", [*columns, "kept by the protocol"], rows, note=note)


def ranks_by_family() -> list[Float[np.ndarray, "candidate"]]:
    return [ranks_of(measures_of(family, "dev").values.mean(0)) for family in DEV]


def best_table() -> Table:
    rows, by_family = [], ranks_by_family()
    for place, one in enumerate(ranking(BUDGETS[0]), 1):
        if place <= SHOWN or one.candidate in (LITERAL, KL_ONLY.simple):
            ranks = (f"{ranks[CANDIDATES.index(one.candidate)]:.0f}" for ranks in by_family)
            rows.append([str(place), f"`{one.candidate.name}`", f"{one.runs:.0f}", f"{one.rank:.1f}", *ranks])
    note = "Ranks among all candidates, averaged over the ten measures; 1 would be best by all of them."
    columns = ["place", "candidate", "forwards", "mean rank", *DEV]
    return Table("On dev: the best, the literal formula and `kl_only`", columns, rows, note=note)


def changes_table(base: Candidate) -> Table:
    whole = KL_ONLY if base == KL_ONLY.simple else base
    others = dict.fromkeys(one.simple for one in changed(whole))
    standing = {one.candidate: one for one in ranking(BUDGETS[0])}
    rows, by_family = [], ranks_by_family()
    for one in sorted((standing[other] for other in others), key=lambda one: one.rank):
        place, change = CANDIDATES.index(one.candidate), standing[base].rank - one.rank
        nearer = sum(ranks[place] < ranks[CANDIDATES.index(base)] for ranks in by_family)
        numbers = [f"{one.runs:.0f}", f"{one.rank:.1f}", f"{change:+.1f}", f"{nearer} of {len(DEV)}"]
        rows.append([f"`{one.candidate.name}`", *numbers])
    return Table(base.name, ["candidate", "forwards", "mean rank", "change", "families"], rows)


def test_table(found: Confirmation) -> Table:
    cells = {(one.family, one.measure): one.cell for one in found.compared}
    rows = [[measure, *(cells[family, measure] for family in FAMILIES)] for measure in MEASURES]
    columns = ["measure", *(f"{family}, n = {len(measures_of(family, 'test').values)}" for family in FAMILIES)]
    return Table(found.candidate.name, columns, rows)


def evidence_table() -> Table:
    rows = []
    for family in FAMILIES:
        test = measures_of(family, "test")
        for candidate in confirmed():
            first, mass = test.evidence[:, test.candidates.index(candidate.name)].T
            cells = [proportion(first.tolist(), test.templates), average(mass.tolist(), test.templates, (0, 1))]
            rows.append([family, f"`{candidate.name}`", *cells])
    note = (
        "No part of the choice. *first*: how often the highest score is on the evidence; *mass*: the evidence's share "
        "of the scores."
    )
    return Table("On test: known evidence", ["family", "candidate", "first", "mass"], rows, note=note)
