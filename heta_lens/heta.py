"""HETA: Hessian-Enhanced Token Attribution (ICLR 2026).

    Attr(x_i → x_T) = M_T[i] · (β · S_i + γ · I_i)                                                         (Eq. 4)

M, the gate         how much attention-weighted value flows from token i to the prediction             gate.py
S, the curvature    how strongly log P(x_T) bends with token i's embedding                   (Eq. 2)   curvature.py
I, the information  how far the predicted distribution moves when token i is masked          (Eq. 3)   information.py
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens.attribution import Attribution
from heta_lens.curvature import Curvature, Norm, Support, check_enumerable
from heta_lens.diagnostics import agreement, warn
from heta_lens.divergence import DIVERGENCES, Direction
from heta_lens.faithfulness import SUBSETS, drops, envelope, faithfulness, subsets, whole_drops
from heta_lens.gate import Flow, gate, norms_by_layer
from heta_lens.hessian import OVERSAMPLING
from heta_lens.information import Information
from heta_lens.masking import Masking
from heta_lens.options import (
    COUNT,
    AtLeast,
    Batch,
    Options,
    Seed,
    check_choice,
    check_names,
    check_options,
    chosen,
    settings,
)
from heta_lens.parts import Balance, Parts
from heta_lens.pieces import Piece, WindowMode, masked_information, pieces
from heta_lens.prediction import Prediction
from heta_lens.probing import Probing
from heta_lens.progress import Work, counting, working
from heta_lens.prompt import TAIL
from heta_lens.sure import LEAST
from heta_lens.turns import one_at_a_time
from heta_lens.variants import PRESETS, VARIANTS, Recipe, Variant
from heta_lens.windows import Window, averaged, edge_gap, leakage, most_central, window_gate, windows

WHY = {"squared_gradient": "which uses one gradient", "none": "which has no curvature"}
IN_TITLE = {"variant", "balance", "support", "norm", "flow"}  # what makes it another score, if not the default


class Gated(NamedTuple):
    """The gate M, what there is to say about it, and what it cost."""

    flow: Float[Tensor, "pos"]
    facts: dict[str, Any]
    cost: dict[str, int | float]


@dataclass(frozen=True, eq=False)
class Heta(Options):
    """HETA with these options: ``Heta(beta=1.0)(prediction)`` gives an `Attribution` with scores ≥ 0.

    The curvature costs ``probes`` Hessian–vector products a token (``support="row"``: in all), the information one
    masked forward a token, the gate arithmetic on the cache only. A part whose weight is 0 is not computed. An option
    that has no effect with the others is warned of, and named in ``diagnostics["unused_options"]``.

    - ``variant``: ``full``; cheaper: ``lr`` (low rank), ``ls`` (last layers), ``win`` (windows), ``lr+win``,
      ``ls+win``, ``gs`` (squared gradient for S), ``gn`` (Gauss–Newton for H); ablated: ``transition_only`` (the gate
      alone), ``hessian_only`` and ``kl_only`` (one part, gated), ``no_gate``, ``uniform_gate``
    - ``beta``, ``gamma``: weights of curvature and information
    - ``balance``: divide each part by its ``sum`` or ``max`` over the context first, or by nothing (``none``)
    - ``probes``, ``seed``: random sign vectors a token, and where they come from
    - ``support``: probe each token alone (``block``), or all tokens at once (``row``)
    - ``norm``: ``hutchinson`` (Eq. 2), ``exact`` (its expectation, tiny models), ``entrywise`` (the appendix's norm)
    - ``rank``: eigenvectors that ``lr`` keeps; it costs 2 (rank + 8) + probes products in all (a window)
    - ``layers``: how many of the last layers ``ls`` differentiates; token i is then its stream's state where they begin
    - ``window``, ``overlap``: tokens in a window, and the share of them that the next one sees again
    - ``window_mode``: ``frozen`` (the window and the last 16 tokens react, all else keeps its keys and values; a token
      is scored where it lies most central),
      ``restrict`` (nothing is frozen: only the gate knows windows), ``chunk`` (the window is a prompt of its own)
    - ``window_gate``: one gate (``global``), or each window's own, averaged (``per_window``)
    - ``flow``, ``value_norm``: how value flow reaches the prediction; the order of the values' norm
    - ``mask``, ``kl``: what a masked token becomes; the divergence and its direction
    - ``interactions``: also how strongly each pair of tokens bends log P together, ``attribution.interactions``
    - ``audit``: also measure what costs runs of its own: how well scores add up to the effect of masking sets of
      tokens; for a cheaper variant, its distance from ``full``
    - ``tolerance``: stop probing a token when the 95 % half-width of its score is within this share of the largest
      score; ``probes`` is then the most it gets
    - ``prune``: do not probe tokens whose curvature will not add more than this share of the largest score, by the 95 %
      end of the row form (``probes`` more products, a window), which is never below the block's; they keep an S of 0
    - ``batch``: copies of the context alive at once; a smaller one needs less memory and changes nothing else
    - ``progress``: show a progress bar; None shows it on a terminal or in a notebook
    """

    cost: ClassVar[str] = "probes · N products with H (2 F + 2 B each, over a token's suffix) + N F"
    signed: ClassVar[bool] = False

    variant: Variant = "full"
    beta: Annotated[float | int, AtLeast(0)] = 0.5
    gamma: Annotated[float | int, AtLeast(0)] = 0.5
    balance: Balance = "none"
    probes: Annotated[int, COUNT] = 10
    support: Support = "block"
    norm: Norm = "hutchinson"
    rank: Annotated[int, COUNT] = 64
    layers: Annotated[int | None, AtLeast(1, whole=True)] = None
    window: Annotated[int, AtLeast(2, whole=True)] = 512
    overlap: Annotated[float | int, AtLeast(0, below=1)] = 0.5
    window_mode: WindowMode = "frozen"
    window_gate: Literal["global", "per_window"] = "global"
    flow: Flow = "suffix"
    value_norm: Literal[1, 2] = 1
    mask: Masking = "zero"
    kl: Direction = "orig_masked"
    interactions: bool = False
    audit: bool = False
    tolerance: Annotated[float | int | None, AtLeast(0)] = None
    prune: Annotated[float | int, AtLeast(0)] = 0.0
    seed: Seed = 0
    batch: Batch = "auto"
    progress: bool | None = None

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "Heta":
        """The ``paper``'s reading (the default), or that of the authors' ``released`` code."""
        check_choice("preset", name, PRESETS)
        check_names(cls, changes)
        return cls(**PRESETS[name] | changes)

    def __post_init__(self) -> None:
        check_options(self)
        if self.tolerance == 0:
            raise ValueError("tolerance=0 is never reached; tolerance=None takes all the probes")
        self._check_together()
        if unused := self.told_unused():
            warn(unused)

    def _check_together(self) -> None:
        """Refuse options that contradict each other."""
        variant = f"variant={self.variant!r}"
        effective = self.chosen.keys() - self.without_effect.keys()
        if self.interactions and not self.probed:
            raise ValueError(f"interactions=True does not go with {self._without}: pairs are sizes of blocks of H")
        if self.recipe.curvature == "last_layers" and self.layers is None:
            raise ValueError(f"{variant} needs layers=, how many of the last layers to differentiate")
        if self.recipe.weights is not None and {"beta", "gamma"} & self.given.keys():
            raise ValueError(f"{variant} fixes beta and gamma: leave them out, or use variant='full'")
        if self.beta == self.gamma == 0:
            raise ValueError("beta=0 and gamma=0 leave nothing to score; for the gate alone, variant='transition_only'")
        if self.beta == 0 and self.recipe.curvature not in ("hessian", "none"):
            raise ValueError(f"{variant} is about the curvature, which beta=0 leaves out")
        if self.interactions and self.recipe.windowed:
            raise ValueError(f"interactions=True does not go with {variant}: tokens far apart share no window")
        if self.interactions and (self.support, self.norm) == ("row", "hutchinson"):
            raise ValueError("interactions=True does not go with support='row', whose probes cannot tell tokens apart")
        if "prune" in effective:
            self._check_stop("prune")
            if self.support == "row" or self.balance != "none":
                given = "support='row'" if self.support == "row" else f"balance={self.balance!r}"
                way = "which costs the same for all tokens" if self.support == "row" else "which needs every token's S"
                need = "support='block'" if self.support == "row" else "balance='none'"
                raise ValueError(f"prune={self.prune!r} does not go with {given}, {way}; it needs {need}")
        if "tolerance" in effective:
            self._check_stop("tolerance")

    def _check_stop(self, name: str) -> None:
        """Refuse what some tokens cannot have fewer probes with."""
        given = f"{name}={getattr(self, name)!r}"
        if self.interactions:
            raise ValueError(f"{given} does not go with interactions=True, which needs every token's probes")
        if self.recipe.windowed and self.window_mode == "chunk":
            raise ValueError(f"{given} does not go with window_mode='chunk', where windows score a token several times")
        if self.probes < LEAST:
            raise ValueError(f"{given} needs at least probes={LEAST}, to judge by; got {self.probes!r}")

    @property
    def recipe(self) -> Recipe:
        return VARIANTS[self.variant]

    @property
    def chosen(self) -> dict[str, Any]:
        """Options that are not the default."""
        return chosen(self)

    @property
    def probed(self) -> bool:
        """Whether products with H are taken."""
        return bool(self.weights[0]) and self.recipe.curvature not in ("none", "squared_gradient")

    @property
    def differentiated(self) -> int | None:
        """How many of the last layers the curvature is of; None for all of the model."""
        return self.layers if self.recipe.curvature == "last_layers" else None

    @property
    def stops(self) -> bool:
        """Whether some tokens may get fewer probes than others."""
        return "tolerance" not in self.without_effect and bool(self.prune or self.tolerance is not None)

    @property
    def _without(self) -> str:
        """What leaves out the products with H, or the whole of a part."""
        zero = [f"{weight}=0" for weight in ("beta", "gamma") if getattr(self, weight) == 0]
        why = WHY.get(self.recipe.curvature, "")
        return " and ".join([f"variant={self.variant!r}" + (f" ({why})" if why else ""), *zero])

    @property
    def without_effect(self) -> Mapping[str, str]:
        found = dict.fromkeys(self.recipe.unused(*self.weights) - {"interactions"}, self._without)
        if self.probed and self.norm != "hutchinson" and self.recipe.curvature != "low_rank":
            found |= dict.fromkeys(("probes", "tolerance", "prune"), f"norm={self.norm!r} (which is exact)")
        if not self.prune:  # which is off, and asks for nothing
            found.pop("prune", None)
        if not (self.audit or self.random):
            found["seed"] = f"norm={self.norm!r} (which is exact)" if self.probed else self._without
        if self.audit and self.recipe.cheaper:  # the full method, which this is compared with, may use them
            unused = Recipe().unused(*self.weights) | {"tolerance", "prune"}
            found = {name: reason for name, reason in found.items() if name in unused}
        return found

    @property
    def random(self) -> bool:
        """Whether the score depends on random directions."""
        return self.probed and (self.norm == "hutchinson" or self.recipe.curvature == "low_rank")

    @property
    def weights(self) -> tuple[float | int, float | int]:
        return self.recipe.weights or (self.beta, self.gamma)

    # ------------------------------------------------------------------------------------------------- explaining
    @one_at_a_time("prediction")
    def __call__(self, prediction: Prediction) -> Attribution:
        return self.each([prediction])[0]

    @one_at_a_time("predictions")
    def each(self, predictions: Sequence[Prediction]) -> list[Attribution]:
        """Explain predictions of one prompt, shorter contexts first; they share masked forwards where they can."""
        lengths = [len(prediction) for prediction in predictions]
        if len({id(prediction.prompt) for prediction in predictions}) != 1 or lengths != sorted(set(lengths)):
            raise ValueError("these predictions must be of one prompt, each of a longer context than the one before it")
        for prediction in predictions:
            self.check(prediction)
        alone = self.recipe.windowed or (isinstance(self.mask, str) and self.mask == "mean")
        groups = [[prediction] for prediction in predictions] if alone else [predictions]  # other windows, other masks
        with predictions[0].running(), working(self.work(groups), self.progress) as work:
            results = [result for group in groups for result in self._explain(group, work)]
        for name in sorted({name for result in results for name in result.diagnostics["weak_parts"]}):
            warn(
                f"{name} makes up less than 1 % of this score, which therefore says next to nothing about it; "
                "diagnostics['share'] has the figures, and balance='sum' gives every part the same total"
            )
        if unsure := sum(result.diagnostics.get("unsure", 0) for result in results):
            warn(
                f"probes={self.probes} were too few for {unsure} of {sum(map(len, results))} scores to be within "
                f"tolerance={self.tolerance} of the largest: interval() says how sure each is"
            )
        return results

    def check(self, prediction: Prediction) -> None:
        """Refuse, before any work, what cannot be done for this prediction."""
        layers = prediction.lens.layers
        if self.differentiated is not None and self.differentiated > layers:
            raise ValueError(f"layers={self.layers} is more than the {layers} layers this model has")
        if self.recipe.curvature == "gauss_newton" and isinstance(prediction.target, tuple):
            raise ValueError("variant='gn' cannot contrast: log p(a) - log p(b) is affine in the logits; use 'full'")
        if self.recipe.windowed and self.window_mode == "chunk" and prediction.prompt.user_hooks:
            raise ValueError(
                "window_mode='chunk' runs parts of the prompt alone, where hooks on the model would find other "
                "positions: use 'frozen' or 'restrict'"
            )
        if self.probed and self.norm == "exact":
            check_enumerable(len(self.spans(prediction)[0][0]), prediction.embeddings.shape[1], self.support)
        if self.audit and self.recipe.cheaper:
            self.full.check(prediction)
        prediction.mask_vector(self.mask)

    def _explain(self, targets: Sequence[Prediction], work: Work) -> list[Attribution]:
        """Explain predictions that share masked forwards."""
        beta, gamma = self.weights
        places = [self._pieces(target) for target in targets]
        gates = [self._gated(*both, work.step()) for both in zip(targets, places, strict=True)]
        shared = work.step()
        with shared.counting():
            checks = self._checked(places[0][-1])
            effects = whole_drops(targets, self.mask, partial(shared.add, "forwards"))
            seen = self._information(targets, places[-1], shared) if gamma else [None] * len(targets)
        spent, results = shared.cost(), []
        for target, place, (flow, facts, cost), effect, found in zip(
            targets, places, gates, effects, seen, strict=True
        ):
            own = work.step()
            parts = Parts(flow, None, found and found.divergence, beta, gamma)
            with own.counting():
                bent, known = self._curvature(target, place, parts, own)
                parts = replace(parts, curvature=bent and bent.samples)
                facts |= self._measured(target, parts, found, effect, own) | known | {"checks": checks}
            facts |= summed([cost, spent, own.cost()])
            facts |= {"forwards_shared": spent["forwards"], "forwards_shared_by": len(targets)}
            pairs = None
            if bent is not None and bent.pairs is not None:
                pairs, facts["standard_errors"]["interactions"] = bent.pairs
            score = parts.score(self.balance)
            results.append(target.attribution("heta", score, parts.means(), settings(self), facts, pairs))
        return results

    def _pieces(self, prediction: Prediction) -> Sequence[Piece]:
        layer = None if self.differentiated is None else prediction.lens.layers - self.differentiated
        return pieces(prediction, self._windows(prediction), self.window_mode, layer)

    def _windows(self, prediction: Prediction) -> list[Window]:
        return windows(len(prediction), self.window if self.recipe.windowed else len(prediction), self.overlap)

    def _checked(self, piece: Piece) -> dict[str, Counter[str]]:
        """Refuse a model that cannot be differentiated twice, where that matters; and what it took to find out."""
        if not self.weights[0] or self.recipe.curvature == "squared_gradient":
            return {}
        _ = piece.states  # which the curvature needs anyway
        with counting(Counter()) as ran:
            piece.check(self.seed)
        return {"second_derivative": ran}

    # ----------------------------------------------------------------------------------------------- the three parts
    def _gated(self, prediction: Prediction, place: Sequence[Piece], work: Work) -> Gated:
        with work.counting():
            flow, facts = self._gate(prediction, place)
        return Gated(flow, facts, work.cost())

    def _gate(self, prediction: Prediction, place: Sequence[Piece]) -> tuple[Float[Tensor, "pos"], dict[str, Any]]:
        """M, and what there is to say about its flow and about what windows make of it."""
        if self.recipe.gate != "flow":
            ones = torch.ones_like(prediction.embeddings[:, 0])
            return (ones / len(ones) if self.recipe.gate == "uniform" else ones), {}
        whole, total = self._flow(prediction)
        if not self.recipe.windowed:
            return whole, {"gate_total": total}
        spans, flow = self._windows(prediction), whole
        if self.window_gate == "per_window" and self.window_mode == "chunk":
            flow = window_gate([self._flow(piece.prediction)[0] for piece in place], spans, len(whole))
        elif self.window_gate == "per_window":
            flow = window_gate([whole[slice(*span)] for span in spans], spans, len(whole))
        return flow, {"gate_total": total, "windows": len(spans), "window_leakage": leakage(whole, flow)}

    def _flow(self, prediction: Prediction) -> tuple[Float[Tensor, "pos"], float]:
        norms = norms_by_layer(prediction.values, prediction.output_weights, self.value_norm)
        return gate(prediction.patterns, norms, self.flow)

    def _curvature(
        self, prediction: Prediction, place: Sequence[Piece], parts: Parts, work: Work
    ) -> tuple[Curvature | None, dict[str, Any]]:
        """S, and what there is to say about how it was found."""
        if not parts.beta:
            return None, {}
        batches = prediction.prompt.batches(self.batch, self.longest(prediction), products=True)
        probing = Probing(
            kind=self.recipe.curvature, support=self.support, norm=self.norm, probes=self.probes, seed=self.seed,
            rank=self.rank, pairs=self.interactions, batches=batches, done=partial(work.add, "hvps"),
        )  # fmt: skip
        if not self.stops:
            return probing.everywhere(place, len(parts.gate))
        return probing.until_sure(place, parts, self.balance, self.tolerance, self.prune)

    def _information(self, targets: Sequence[Prediction], place: Sequence[Piece], work: Work) -> list[Information]:
        """I and each masked token's effect on g, for every target: of windows there is only one."""
        batches = targets[-1].prompt.batches(self.batch, self.longest(targets[-1]), read=len(targets))
        how = partial(masked_information, mask=self.mask, divergence=DIVERGENCES[self.kl], batches=batches)
        seen = [(piece.scored, how(piece, targets, done=partial(work.add, "forwards"))) for piece in place]
        spans, found = zip(*seen, strict=True)
        divergences, effects = (averaged(parts, spans, len(targets[-1])) for parts in zip(*found, strict=True))
        rows = zip(targets, divergences, effects, strict=True)
        return [Information(divergence[: len(one)], effect[: len(one)]) for one, divergence, effect in rows]

    # ------------------------------------------------------------------------------------------- what it is worth
    def _measured(
        self, target: Prediction, parts: Parts, seen: Information | None, effect: float, work: Work
    ) -> dict[str, Any]:
        """What there is to say about a score: its parts, and how far it is from the effects of masking."""
        score = parts.score(self.balance)
        for name, part in {**parts.means(), "the score": score}.items():
            target.check_finite(name, part)
        facts = parts.diagnostics(self.balance)
        facts["probes"] = self.probes
        titled = IN_TITLE - self.without_effect.keys()
        facts["chosen"] = {name: value for name, value in self.chosen.items() if name in titled}
        facts["unused_options"] = self.unused_options
        facts["additivity_gap"] = abs(float(score.sum()) - effect)
        if seen is not None:
            gain, share = envelope(seen.divergence, seen.drop)
            facts |= {"drop": seen.drop, "envelope": parts.envelope(self.balance, gain)}
            if self.kl == "orig_masked":
                facts["envelope_share"] = share
        if isinstance(target.target, tuple) and seen is not None:
            facts["note"] = "information is about the whole next-token distribution, not about the contrast"
        return facts | (self._audit(target, score, work) if self.audit else {})

    def _audit(self, prediction: Prediction, score: Float[Tensor, "pos"], work: Work) -> dict[str, Any]:
        """How well scores add up; and, for a cheaper variant, how far they are from the full one's."""
        members = subsets(self.seed, len(prediction)).to(score.device)
        with counting(Counter()):  # each set is a row, and reported as audited
            dropped = drops(prediction, self.mask, members, self.batch, partial(work.add, "audit"))
        facts: dict[str, Any] = {"faithfulness": faithfulness(dropped, members.to(score) @ score, self.seed)}
        if self.recipe.cheaper:
            full = self.full._explain([prediction], work)[0]
            scores, cost = full.scores.to(score), ("forwards", "backwards", "hvps")
            facts["against_full"] = agreement(score, scores) | {name: full.diagnostics[name] for name in cost}
            facts["against_full"]["checks"] = {
                name: ran for name, ran in full.diagnostics["checks"].items() if name == "second_derivative"
            }
            if self.recipe.windowed:
                facts["against_full"]["near_edges"] = edge_gap(scores, score, self._seams(prediction))
        return facts

    def _seams(self, prediction: Prediction) -> list[Window]:
        """Windows at whose edges a part of the score may jump."""
        spans = self._windows(prediction)
        if self.window_mode != "frozen":
            return spans
        return most_central(spans) + (spans if self.window_gate == "per_window" else [])

    @property
    def full(self) -> "Heta":
        """What a cheaper variant stands for."""
        unused = Recipe().unused(*self.weights) | {"tolerance", "prune"}
        kept = {name: value for name, value in self.chosen.items() if name not in unused}
        if self.norm != "hutchinson":
            kept.pop("probes", None)  # which only a low rank has a use for then
            kept.pop("seed", None)
        return Heta(**kept | {"variant": "full", "interactions": False, "audit": False})

    def weighted(self, beta: float, gamma: float) -> "Heta":
        """The same with other weights, without options that have no effect with them."""
        kept = {name: value for name, value in self.chosen.items() if name not in self.without_effect}
        given: dict[str, Any] = kept | {"beta": beta, "gamma": gamma}
        if not beta:
            given["variant"] = "win" if self.recipe.windowed else "full"
            given = {name: value for name, value in given.items() if name not in ("seed", "interactions")}
        unused = VARIANTS[given.get("variant", "full")].unused(beta, gamma)
        return Heta(**{name: value for name, value in given.items() if name not in unused})

    def work(self, groups: Sequence[Sequence[Prediction]]) -> dict[str, int]:
        """What lies ahead, for the progress bar."""
        work = Counter[str]()
        for group in groups:
            scored = sum(len(own) for _, own in self.spans(group[-1]))
            work["forwards"] += 1 + scored * bool(self.weights[1])
            for prediction in group:
                work["hvps"] += sum(self.products(prediction, *span) for span in self.spans(prediction))
                work["audit"] += (len(prediction) + SUBSETS) * self.audit
                if self.audit and self.recipe.cheaper:
                    work.update(self.full.work([[prediction]]))
        return dict(work)

    def spans(self, prediction: Prediction) -> list[tuple[range, range]]:
        """What is explained at once, and what of it is scored there."""
        spans = [Window(0, len(prediction))] if self.window_mode == "restrict" else self._windows(prediction)
        scored = most_central(spans) if self.window_mode == "frozen" else spans
        return [(range(*span), range(*own)) for span, own in zip(spans, scored, strict=True)]

    def longest(self, prediction: Prediction) -> int:
        """How many positions the longest run has: a frozen window's, and the tail's, if it can be cut short."""
        span = max(len(span) for span, _ in self.spans(prediction))
        if not (self.recipe.windowed and self.window_mode == "frozen"):
            return span
        return len(prediction) if prediction.prompt.kept is None else min(span + TAIL, len(prediction))

    def held_between(self, prediction: Prediction, span: range) -> bool:
        """Whether positions between this window and the tail keep what they had."""
        frozen = self.recipe.windowed and self.window_mode == "frozen"
        return frozen and span.stop < len(prediction) - TAIL

    def in_two_calls(self, prediction: Prediction, span: range) -> bool:
        """Whether a run of this window is one of its own, and another of the tail."""
        return self.held_between(prediction, span) and prediction.prompt.kept is not None

    def products(self, prediction: Prediction, span: range, scored: range) -> int:
        """How many products with H a span takes, at most."""
        d = prediction.embeddings.shape[1]
        if not self.weights[0] or self.recipe.curvature == "squared_gradient":
            return 0
        if self.recipe.curvature == "low_rank":
            return 2 * min(self.rank + OVERSAMPLING, len(span) * d) + self.probes
        if self.norm != "hutchinson":
            return d * len(scored)
        return self.probes * (len(scored) + bool(self.stops and self.prune) if self.each_alone else 1)

    @property
    def each_alone(self) -> bool:
        """Whether every token has products of its own."""
        return self.recipe.curvature != "low_rank" and (self.support == "block" or self.norm != "hutchinson")


def summed(costs: Sequence[dict[str, int | float]]) -> dict[str, int | float]:
    total: Counter[str] = Counter()
    for cost in costs:
        total.update(cost)  # type: ignore[arg-type]  # seconds are floats
    return dict(total)
