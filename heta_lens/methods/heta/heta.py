"""HETA: Hessian-Enhanced Token Attribution (ICLR 2026).

    Attr(x_i → x_T) = M_T[i] · (β · S_i + γ · I_i)                                                         (Eq. 4)

M, the gate         how much attention-weighted value flows from token i to the prediction             gate.py
S, the curvature    how strongly log P(x_T) bends with token i's embedding                   (Eq. 2)   curvature.py
I, the information  how far the predicted distribution moves when token i is masked          (Eq. 3)   information.py
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.numerics import DIVERGENCES, Samples
from heta_lens._util.options import check_choice, check_names, settings
from heta_lens._util.python import quietly
from heta_lens._util.work import Work, counting, working
from heta_lens.attribution import Attribution
from heta_lens.methods.base import Method, Scores, make_attribution
from heta_lens.methods.heta.cost import cheaper_way, longest_run, product_batches, work_ahead
from heta_lens.methods.heta.curvature import (
    Curvature,
    Estimator,
    ProbedHessian,
    Problem,
    Segment,
    estimate_until_sure,
    every_probe,
    masked_information,
    tail_energy,
)
from heta_lens.methods.heta.diagnostics import audited, score_facts, warn_of_doubts, whole_drops
from heta_lens.methods.heta.gate import gate, norms_by_layer
from heta_lens.methods.heta.hessian import check_function
from heta_lens.methods.heta.options import PRESETS, HetaOptions
from heta_lens.methods.heta.probes import rademacher
from heta_lens.methods.heta.score import Information, Parts
from heta_lens.methods.heta.windows import averaged, leakage, window_gate
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.prediction import Prediction, check_gradients

# ----------------------------------------------------------------------------------------------------- gate of variant
# The gate that a variant asks for: of the whole context, of each window, or none.


def gate_of_variant(
    options: HetaOptions, prediction: Prediction, segments: Sequence[Segment]
) -> tuple[Float[Tensor, "pos"], dict[str, Any]]:
    """M, and what there is to say about its flow and about how windows change it."""
    if options.recipe.gate != "flow":
        ones = torch.ones_like(prediction.embeddings[:, 0])
        return (ones / len(ones) if options.recipe.gate == "uniform" else ones), {}
    whole, total = flow_gate(options, prediction)
    if not options.recipe.windowed:
        return whole, {"gate_total": total}
    spans, windowed = options.windows_over(prediction), whole
    if options.window_gate == "per_window":
        if options.window_mode == "chunk":
            parts = [flow_gate(options, segment.prediction)[0] for segment in segments]
        else:
            parts = [whole[slice(*span)] for span in spans]
        windowed = window_gate(parts, spans, len(whole))
    return windowed, {"gate_total": total, "windows": len(spans), "window_leakage": leakage(whole, windowed)}


def flow_gate(options: HetaOptions, prediction: Prediction) -> tuple[Float[Tensor, "pos"], float]:
    """M of the whole context, and its normaliser."""
    norms = norms_by_layer(prediction.values, prediction.output_weights, options.value_norm)
    return gate(prediction.patterns, norms, options.flow)


@dataclass(frozen=True, eq=False)
class Heta(HetaOptions, Method):
    """HETA: Hessian-Enhanced Token Attribution (ICLR 2026).

    HETA with these options: ``Heta(beta=1.0)(prediction)`` gives an `Attribution`, by default with scores ≥ 0.

    The curvature costs ``groups · probes`` Hessian–vector products, however long the context is, the information one
    masked forward per token, the gate arithmetic on the cache only. A part whose weight is 0 is not computed. An option
    that has no effect with the others is warned of, and named in ``diagnostics["unused_options"]``.

    - ``variant``: ``full``; approximations: ``lr`` (low rank), ``ls`` (last layers), ``win`` (windows), ``lr+win``,
      ``ls+win``, ``gs`` (squared gradient for S), ``gn`` (Gauss–Newton for H); ablated: ``transition_only`` (the gate
      alone), ``hessian_only`` and ``kl_only`` (one part, gated), ``no_gate``, ``uniform_gate``
    - ``beta``, ``gamma``: weights of curvature and information
    - ``combine``: add the parts (``sum``, Eq. 4), or multiply them, ``M · S^w · I^(1-w)`` with w = β/(β+γ)
      (``geometric``): rescaling a part then changes no token's rank
    - ``balance``: divide each part by its ``sum`` or ``max`` over the context first, or by nothing (``none``)
    - ``gate``: value ``flow`` to the prediction, the same for all tokens (``uniform``, 1/N), or ``none`` (1)
    - ``information``: how far masking a token moves the whole prediction (``divergence``, Eq. 3), or the drop of the
      target's own log-probability (``target``): in a sum its size; in a product its sign too, so that scores are signed
    - ``probes``, ``seed``: random sign vectors per token, and where they come from
    - ``groups``: how many groups of tokens share HVPs; the cross-talk between tokens of a group is taken out of the
      curvature, and ``diagnostics["cross_talk"]`` is how much that was; None probes every token alone
    - ``support``: a token's own block of H (``block``), or what it has with all others (``row``, an upper bound)
    - ``norm``: ``hutchinson`` (Eq. 2), ``exact`` (its expectation, tiny models), ``entrywise`` (the appendix's norm)
    - ``rank``: eigenvectors that ``lr`` keeps; it costs 2 (rank + 8) + probes HVPs in all (per window)
    - ``layers``: how many of the last layers ``ls`` differentiates; token i is then its stream's state where they begin
    - ``window``, ``overlap``: tokens in a window, and the share of them that the next one sees again
    - ``window_mode``: ``frozen`` (the window and the last 16 tokens react, all else keeps its keys and values; a token
      is scored where it lies most central),
      ``restrict`` (nothing is frozen: only the gate knows windows), ``chunk`` (the window is a prompt of its own)
    - ``window_gate``: one gate (``global``), or each window's own, averaged (``per_window``)
    - ``flow``, ``value_norm``: how value flow reaches the prediction; the order of the values' norm
    - ``mask``, ``kl``: what a masked token becomes; the divergence and its direction
    - ``interactions``: also how strongly each pair of tokens bends log P together, ``attribution.interactions``; with
      ``groups``, small pairs are within their standard errors of 0
    - ``audit``: also measure what costs runs of its own: how well scores add up to the effect of masking sets of
      tokens; for an approximation, its distance from ``full``
    - ``tolerance``: stop probing a token when the 95 % half-width of its score is within this share of the largest
      score; ``probes`` is then the most it gets
    - ``prune``: do not probe tokens whose curvature will not add more than this share of the largest score, by the 95 %
      end of the row form (``probes`` more HVPs per window), which is never below the block's; they keep an S of 0
    - ``checkpoint``: hold the gradient graph of one block at a time instead of all blocks'; in return, every batch of
      products runs the blocks twice more, so that a large ``batch`` saves time
    - ``batch``: copies of the context alive at once; a smaller one needs less memory and changes nothing else
    - ``progress``: show a progress bar; None shows it on a terminal or in a notebook
    """

    name: ClassVar[str] = "heta"
    paper: ClassVar[str] = (
        "Pramanik et al., Hessian-Enhanced Token Attribution (HETA): interpreting autoregressive LLMs, ICLR 2026"
    )
    family: ClassVar[str] = "heta"
    cost: ClassVar[str] = "groups · probes HVPs (about 2 F each) + N F"
    scaled_by: ClassVar = ("probes", "groups")
    signed: ClassVar[bool] = False

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "Heta":
        """Options for the ``paper``'s reading (the default), or for that of the authors' ``released`` code."""
        check_choice("preset", name, PRESETS)
        check_names(cls, changes)
        return cls(**PRESETS[name] | changes)

    @one_at_a_time("prediction")
    def __call__(self, prediction: Prediction) -> Attribution:
        return self.each([prediction])[0]

    def sharing_runs(self, predictions: Sequence[Prediction]) -> list[list[Prediction]]:
        """All together, as they share masked forwards; each by itself where windows or masks differ by the context."""
        alone = self.recipe.windowed or (isinstance(self.mask, str) and self.mask == "mean")
        return super().sharing_runs(predictions) if alone else [[*predictions]]

    @one_at_a_time("predictions")
    def each(self, predictions: Sequence[Prediction]) -> list[Attribution]:
        """Explain predictions of one prompt, shorter contexts first; they share masked forwards where they can."""
        lengths = [len(prediction) for prediction in predictions]
        if len({id(prediction.prompt) for prediction in predictions}) != 1 or lengths != sorted(set(lengths)):
            raise ValueError("these predictions must be of one prompt, each of a longer context than the one before it")
        for prediction in predictions:
            self.check(prediction)
        groups = self.sharing_runs(predictions)
        expected = Counter[str]()
        for group in groups:
            expected.update(work_ahead(self, group))
        cheaper = partial(quietly, partial(cheaper_way, self, predictions[-1]))
        with predictions[0].running(), working(dict(expected), self.progress, cheaper) as work:
            results = [result for group in groups for result in self.explain_together(group, work)]
        warn_of_doubts(self, results)
        return results

    def check(self, prediction: Prediction) -> None:
        """Refuse, before any work, what cannot be done for this prediction."""
        super().check(prediction)
        if self.estimator is not None:
            self.estimator.check(prediction, len(self.segments(prediction)[0].window_range))
        if self.recipe.windowed and self.window_mode == "chunk" and prediction.prompt.user_hooks:
            raise ValueError(
                "window_mode='chunk' runs parts of the prompt alone, where hooks on the model would find other "
                "positions: use 'frozen' or 'restrict'"
            )
        if self.checkpoint and self.probed and not (alone := prediction.prompt.runner.alone).same:
            raise ValueError(f"checkpoint=True runs blocks one at a time, but {alone.why}: leave it out")
        if self.audit and self.recipe.approximate:
            self.full.check(prediction)
        prediction.mask_vector(self.mask)
        if callable(prediction.target) and self.estimator is not None:
            prediction.check_differentiable()
            if self.probed:
                logits = prediction.logits
                check_function(prediction.target, logits, rademacher(self.seed, 0, 1, len(logits))[0].to(logits))

    def work(self, prediction: Prediction) -> dict[str, int]:
        """How many forwards and HVPs lie ahead, at most."""
        return work_ahead(self, [prediction])

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        result = self.explain_together([prediction], progress)[0]
        return Scores(result.scores, result.diagnostics, result.parts, result.interactions)

    def explain_together(self, predictions: Sequence[Prediction], work: Work) -> list[Attribution]:
        """Explain predictions that share masked forwards.

        For every token i of a context whose last position T predicts the target:

        1. gate         M_i ∝ Σ_{l,h} Φ^{(l,h)}(i→T) · ‖v_i W_O‖, from the cache alone
        2. information  I_i = KL(P ‖ P with e_i masked), a forward per token that serves every prediction
        3. curvature    S_i = mean_k ‖Π_i H Π_i r_k‖₁, HVPs of each prediction's own g
        4. score        M_i · (β S_i + γ I_i)
        """
        gated = [Gated.of(self, prediction, work) for prediction in predictions]
        masked = _masked(self, gated, work)
        return [_scored(self, own_gate, own_masked, work) for own_gate, own_masked in zip(gated, masked, strict=True)]


class Gated(NamedTuple):
    """A prediction after step 1: its segments, its gate M, what is known of that, and what it cost."""

    prediction: Prediction
    segments: list[Segment]
    gate: Float[Tensor, "pos"]
    facts: dict[str, Any]
    cost: dict[str, int | float]

    @classmethod
    def of(cls, method: Heta, prediction: Prediction, work: Work) -> "Gated":
        segments = method.segments(prediction)
        with work.step() as step:
            gate, facts = gate_of_variant(method, prediction, segments)
        return cls(prediction, segments, gate, facts, step.cost())


class Masked(NamedTuple):
    """What step 2 says of a prediction: I, the drop of g with all tokens masked, and what all predictions shared."""

    information: Information | None
    whole_drop: float
    checks: dict[str, Counter[str]]
    cost: dict[str, int | float]
    shared_by: int


def _masked(method: Heta, gated: Sequence[Gated], work: Work) -> list[Masked]:
    """Step 2, for all predictions at once."""
    targets, shared_by = [each.prediction for each in gated], len(gated)
    with work.step() as step:
        checks = _check_derivatives(method, gated[0].segments[-1])
        drops = whole_drops(targets, method.mask, partial(step.add, "forwards"))
        moved = _information(method, targets, gated[-1].segments, step) if method.weights[1] else [None] * shared_by
    cost = step.cost()
    return [Masked(*both, checks, cost, shared_by) for both in zip(moved, drops, strict=True)]


def _check_derivatives(method: Heta, segment: Segment) -> dict[str, Counter[str]]:
    """Refuse a model that cannot be differentiated twice, where that matters; and what it took to find out."""
    if not method.probed:
        return {}
    check_gradients(segment.prediction)
    _ = segment.states  # which the curvature needs anyway
    with counting(Counter()) as ran:
        segment.check(method.seed, method.batch)
    return {"second_derivative": ran}


def _information(
    method: Heta, targets: Sequence[Prediction], segments: Sequence[Segment], work: Work
) -> list[Information]:
    """I and each masked token's effect on g, for every target, averaged over the segments that score a token."""
    longest, done = targets[-1], partial(work.add, "forwards")
    batches = longest.prompt.batches(method.batch, longest_run(method, segments), read=len(targets))
    mask, divergence, floor = method.mask, DIVERGENCES[method.kl], method.combine == "geometric"
    by_segment = [
        masked_information(segment, targets, mask=mask, divergence=divergence, batches=batches, done=done, floor=floor)
        for segment in segments
    ]
    spans = [segment.scored for segment in segments]
    divergences = averaged([own.divergence for own in by_segment], spans, len(longest))
    drops = averaged([own.drop for own in by_segment], spans, len(longest))
    rows = zip(targets, divergences, drops, strict=True)
    return [Information(moved[: len(target)], drop[: len(target)]) for target, moved, drop in rows]


def _scored(method: Heta, gated: Gated, masked: Masked, work: Work) -> Attribution:
    """Steps 3 and 4, and what is known beside the score."""
    prediction, information = gated.prediction, masked.information
    parts = Parts(gated.gate, None, method.information_of(information), *method.weights, method.combine)
    with work.step() as step:
        curvature, probing = _curvature(method, gated, parts, step)
        parts = replace(parts, curvature=curvature)
        score = parts.score(method.balance)
        facts = score_facts(method, prediction, parts, information, masked.whole_drop)
        if method.audit:
            facts |= audited(method, prediction, score, step, partial(_explain_fully, method, prediction, step))
    facts: dict[str, Any] = gated.facts | facts | probing | {"checks": masked.checks}
    facts |= _summed([gated.cost, masked.cost, step.cost()])
    facts |= {"forwards_shared": masked.cost["forwards"], "forwards_shared_by": masked.shared_by}
    sizes = None
    if curvature is not None and curvature.pairs is not None:
        sizes, facts["standard_errors"]["interactions"] = curvature.pairs
    return make_attribution(
        prediction, "heta", score, parts.means, settings(method), facts, sizes, signed=method.directed
    )


def _curvature(method: Heta, gated: Gated, parts: Parts, work: Work) -> tuple[Curvature | None, dict[str, Any]]:
    """Step 3: S, and how sure it is."""
    estimator = method.estimator
    if estimator is None:
        return None, {}
    batches = product_batches(method, gated.segments)
    problems = [
        Problem(segment, batches, partial(work.add, "hvps"), parts.where_curvature_decides)
        for segment in gated.segments
    ]
    if isinstance(estimator, ProbedHessian) and estimator.stops:
        curvature, facts = estimate_until_sure(estimator, problems, parts, method.balance)
    else:
        curvature, facts = _estimate_everywhere(estimator, problems, len(parts.gate))
    return curvature, facts | {"cross_talk": curvature.cross_talk}


def _estimate_everywhere(
    estimator: Estimator, problems: Sequence[Problem], length: int
) -> tuple[Curvature, dict[str, Any]]:
    """S with all probes, averaged over the segments that score a token; and what low ranks leave out of H."""
    estimates = [estimator.estimate(problem, every_probe(problem, estimator.draws)) for problem in problems]
    spans = [problem.segment.scored for problem in problems]
    samples = Samples.even(averaged([estimate.values for estimate in estimates], spans, length))
    energies = [estimate.energy for estimate in estimates if estimate.energy is not None]
    cross_talk = None
    if any(estimate.cross_talk is not None for estimate in estimates):
        taken = [torch.zeros_like(own.mean) if own.cross_talk is None else own.cross_talk for own in estimates]
        cross_talk = averaged(taken, spans, length)
    pairs = estimates[0].pairs
    return Curvature(samples.values, samples.counts, pairs, cross_talk=cross_talk), tail_energy(energies)


def _explain_fully(method: Heta, prediction: Prediction, work: Work) -> Attribution:
    return method.full.explain_together([prediction], work)[0]


def _summed(costs: Sequence[dict[str, int | float]]) -> dict[str, int | float]:
    total: Counter[str] = Counter()
    for cost in costs:
        total.update(cost)  # type: ignore[arg-type]  # seconds are floats
    return dict(total)
