"""HETA: Hessian-Enhanced Token Attribution (ICLR 2026).

    Attr(x_i → x_T) = M_T[i] · (β · S_i + γ · I_i)                                                         (Eq. 4)

M, the gate         attention-weighted value flow from token i to the prediction                       gate.py
S, the curvature    how strongly log P(x_T) bends with token i's embedding                   (Eq. 2)   curvature.py
I, the information  how far the predicted distribution moves when token i is masked   (Eq. 3)   prediction/masking.py
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.numerics import DIVERGENCES
from heta_lens._util.options import check_choice, check_names
from heta_lens._util.target_kinds import Activation
from heta_lens._util.work import Work, counting, step
from heta_lens.diagnostics import Cost
from heta_lens.methods.base import Method, Scores
from heta_lens.methods.heta.cost import longest_run, product_batches, work_and_positions
from heta_lens.methods.heta.curvature import SquaredGradient, Task, estimated_curvature
from heta_lens.methods.heta.diagnostics import score_facts
from heta_lens.methods.heta.gate import gate, value_norms
from heta_lens.methods.heta.hessian import check_function, check_twice_differentiable
from heta_lens.methods.heta.options import PUBLISHED, HetaOptions
from heta_lens.methods.heta.probes import rademacher
from heta_lens.methods.heta.score import Parts
from heta_lens.methods.heta.windows import Window, averaged, window_gate
from heta_lens.prediction.cache import Rules, no_rules
from heta_lens.prediction.gradients import margin_of
from heta_lens.prediction.masking import MaskedEffects, depends_on_context, mask_vector, masked_effects, whole_drops
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.search import TokenEffects, check_forwards, effects_of_tokens


@dataclass(frozen=True, eq=False)
class Heta(HetaOptions, Method):
    """HETA: Hessian-Enhanced Token Attribution (ICLR 2026).

    HETA with these options: ``Heta(beta=1.0)(prediction)`` gives an `Attribution`, by default with scores ≥ 0.

    The curvature costs ``groups · probes`` Hessian–vector products, however long the context is, the information one
    masked forward per token, and the gate arithmetic on the cache (a run for what the cache lacks). A part whose weight
    is 0 is not computed. An option without effect raises a warning, and is listed in
    ``diagnostics["unused_options"]``.

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
    - ``probes``, ``seed``: the number of random sign vectors per token, and the seed that draws them
    - ``groups``: the number of groups of tokens that share HVPs; the cross-talk between tokens of a group is removed
      from the curvature, and ``diagnostics["cross_talk"]`` is the removed amount; None probes every token alone
    - ``support``: a token's own block of H (``block``), or its whole row of blocks (``row``, an upper bound)
    - ``norm``: ``hutchinson`` (Eq. 2), or ``entrywise`` (the appendix's norm)
    - ``rank``: eigenvectors that ``lr`` keeps; it costs 2 (rank + 8) + probes HVPs in all (per window)
    - ``layers``: the number of last layers that ``ls`` differentiates; token i is then the residual stream that enters
      these layers at position i
    - ``window``, ``overlap``: the number of tokens in a window, and the share that the next window repeats
    - ``window_mode``: ``frozen`` (the window and the last 16 tokens react, all else keeps its keys and values; a token
      is scored where it lies most central),
      ``restrict`` (nothing is frozen: only the gate knows windows), ``chunk`` (the window is a prompt of its own)
    - ``window_gate``: one gate (``global``), or the average of a gate per window (``per_window``)
    - ``flow``, ``value_norm``: the definition of value flow to the prediction; the order of the values' norm
    - ``mask``, ``kl``: the replacement of a masked token's embedding; the divergence and its direction
    - ``forwards``: the largest number of masked runs, as in leave_one_out; None masks every token alone
    - ``interactions``: also return ``attribution.interactions``, the curvature of every pair of tokens; with
      ``groups``, small pairs are within their standard errors of 0
    - ``checkpoint``: hold the gradient graph of one block at a time instead of all blocks'; in return, every batch of
      products runs the blocks twice more, so that a large ``batch`` saves time
    - ``batch``: the number of copies of the context that run at once; fewer copies need less memory
    - ``progress``: show a progress bar; None shows it on a terminal or in a notebook
    """

    name: ClassVar[str] = "heta"
    paper: ClassVar[str] = (
        "Pramanik et al., Hessian-Enhanced Token Attribution (HETA): interpreting autoregressive LLMs, ICLR 2026"
    )
    family: ClassVar[str] = "heta"
    cost: ClassVar[str] = "groups · probes HVPs (about 2 F each) + N F, or as many as ``forwards`` allows"
    scaled_by: ClassVar = ("probes", "groups", "forwards")
    signed: ClassVar[bool] = False
    fixed: ClassVar = "the weights and the other tokens; a gate, where there is one, takes the attention in the cache"

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "Heta":
        """Options for the ``paper``'s reading (the default), or for that of the authors' ``released`` code."""
        check_choice("preset", name, PUBLISHED)
        check_names(cls, changes)
        return cls(**PUBLISHED[name] | changes)

    @property
    def rules(self) -> Rules | None:
        return no_rules if isinstance(self.estimator, SquaredGradient) and not self.recipe.windowed else None

    def sharing_runs(self, predictions: Sequence[Prediction]) -> list[list[Prediction]]:
        """Group all predictions, which share masked forwards, unless windows or masks depend on the context."""
        alone = self.recipe.windowed or depends_on_context(self.mask)
        return super().sharing_runs(predictions) if alone else [[*predictions]]

    def check(self, prediction: Prediction) -> None:
        """Refuse, before any work, a prediction that the options cannot explain."""
        super().check(prediction)
        if self.estimator is not None:
            self.estimator.check(prediction, len(self.windows(prediction)[0].span))
        if self.recipe.windowed and self.window_mode == "chunk" and prediction.user_hooks:
            raise ValueError(
                "window_mode='chunk' runs parts of the prompt alone, where hooks on the model would find other "
                "positions: use 'frozen' or 'restrict'"
            )
        if self.checkpoint and self.probed and (why := prediction.prompt.why_not_alone()):
            raise ValueError(f"checkpoint=True runs blocks one at a time, but {why}: leave it out")
        mask_vector(prediction, self.mask)
        if isinstance(prediction.target, Activation) and "kl" in self.chosen:
            raise ValueError("kl= compares predictions, and the target is an activation: leave it out")
        if self.weights[1]:
            check_forwards(prediction, self.forwards, floor=self.combine == "geometric")
        if callable(prediction.target) and self.estimator is not None:
            prediction.check_differentiable()
            if self.probed:
                logits = prediction.logits
                check_function(prediction.target, logits, rademacher(self.seed, 0, 1, len(logits))[0].to(logits))

    def work(self, prediction: Prediction) -> Work:
        return self.work_together([prediction])

    def work_together(self, predictions: Sequence[Prediction]) -> Work:
        return work_and_positions(self, predictions)[0]

    def explain_together(self, predictions: Sequence[Prediction]) -> list[Scores]:
        """Explain predictions that share masked forwards, but not the gate and the curvature."""
        windows = [self.windows(prediction) for prediction in predictions]
        with step() as shared:
            if self.probed and windows[-1][0].layer is None:
                run = longest_run(windows[-1])
                windows[-1][0].prediction.check_graph_fits(run, checkpoint=self.checkpoint, twice=True)
            elif self.rules and predictions[-1].prompt.clean_run is None:  # a gradient after the masked forwards
                predictions[-1].check_graph_fits(checkpoint=predictions[-1].holds_one_block(None))
            checks = _check_derivatives(self, windows[0][-1])
            drops = whole_drops(predictions, self.mask)
            effects = _masked_effects(self, predictions, windows[-1])
        cost, together = shared.cost(), len(predictions) > 1
        by = {"forwards_shared": cost["forwards"], "forwards_shared_by": len(predictions)} if together else {}
        results = []
        for prediction, own_windows, masked, drop in zip(predictions, windows, effects, drops, strict=True):
            with step() as own:
                result = _scored(self, prediction, own_windows, masked, drop)
            whole_cost = Counter(cost)
            whole_cost.update(own.cost())
            facts = replace(result.facts, cost=Cost(**whole_cost, **by), checks=checks)
            results.append(replace(result, diagnostics=facts))
        return results


def _scored(
    method: Heta, prediction: Prediction, windows: Sequence[Window], found: TokenEffects | None, drop: float
) -> Scores:
    """Compute the gate, estimate the curvature, and combine both with the information."""
    masked = None if found is None else found.effects
    information = None if masked is None else masked.divergence
    if masked is not None and method.information == "target":  # whose sign only a product keeps
        information = masked.drop if method.directed else masked.drop.abs()
    mass, gate_facts = gate_of(method, prediction, windows)
    parts, curvature = Parts(mass, None, information, *method.weights, method.combine), None
    if method.estimator is not None:
        at_once = product_batches(method, windows)
        tasks = [Task(window, at_once, parts.where_curvature_decides) for window in windows]
        curvature = estimated_curvature(method.estimator, tasks, len(prediction))
        parts = replace(parts, curvature=curvature.samples)
    facts = score_facts(method, prediction, parts, curvature, masked, drop, gate_facts)
    facts = replace(facts, masked_together=None if found is None else found.together)
    interactions = None if curvature is None or curvature.pairs is None else curvature.pairs.sizes
    return Scores(parts.score(method.balance), facts, parts.values, interactions)


def _check_derivatives(method: Heta, window: Window) -> dict[str, Counter[str]]:
    """Refuse a model without the derivatives that HVPs need, by one probe on the last token."""
    if not method.probed:
        return {}
    prediction, adapter = window.prediction, window.prediction.adapter
    place, states = len(prediction) - 1, window.states[-1:]  # whose run the curvature needs anyway
    margin = margin_of(prediction, prediction.rerun(place, layer=window.layer))
    # Half precision and rounded activations cannot tell the steps apart; and hooks may change gradients.
    compare = adapter.dtype.itemsize >= 4 and not adapter.quantised and not prediction.user_hooks
    signs = rademacher(method.seed, place, 1, states.shape[1]).to(states)
    with counting(Counter()) as ran:
        check_twice_differentiable(margin, states, signs, compare, prediction.batches(method.batch, 1))
    return {"second_derivative": ran}


def _masked_effects(
    method: Heta, predictions: Sequence[Prediction], windows: Sequence[Window]
) -> Sequence[TokenEffects | None]:
    """Mask every token for every prediction, and average over the windows that score the token."""
    if not method.weights[1]:
        return [None] * len(predictions)
    longest, found = predictions[-1], []
    batches = longest.batches(method.batch, longest_run(windows), read=len(predictions))
    divergence, floor = DIVERGENCES[method.kl], method.combine == "geometric"
    if len(windows) == 1:
        return effects_of_tokens(predictions, method.mask, divergence, batches, method.forwards, floor=floor)
    for window in windows:
        moved = window.start - window.span.start
        effects = masked_effects(
            [window.prediction],
            method.mask,
            divergence,
            batches=batches,
            start=window.start,
            stop=window.stop,
            parts=[range(place, place + 1) for place in range(window.scored.start + moved, window.scored.stop + moved)],
            floor=floor,
        )
        found.append(torch.cat(effects))
    return [TokenEffects(MaskedEffects(*averaged(found, [window.scored for window in windows], len(longest))), None)]


def gate_of(
    method: HetaOptions, prediction: Prediction, windows: Sequence[Window]
) -> tuple[Float[Tensor, "pos"], dict[str, Any]]:
    """Return the gate M that the options ask for, with its total flow and the change that windows make."""
    if method.recipe.gate != "flow":
        ones = torch.ones_like(prediction.embeddings[:, 0])
        return (ones / len(ones) if method.recipe.gate == "uniform" else ones), {}
    whole, total = flow_gate(method, prediction)
    if not method.recipe.windowed:
        return whole, {"gate_total": total}
    spans, windowed = method.spans(prediction), whole
    if method.window_gate == "per_window":
        if method.window_mode == "chunk":
            parts = [flow_gate(method, window.prediction)[0] for window in windows]
        else:
            parts = [whole[span.start : span.stop] for span in spans]
        windowed = window_gate(parts, spans, len(whole))
    gap = (whole - windowed).abs()  # the largest change of a token, and the mass moved
    leakage = {"largest": float(gap.max()), "total": float(gap.sum()) / 2}
    return windowed, {"gate_total": total, "windows": len(spans), "window_leakage": leakage}


def flow_gate(method: HetaOptions, prediction: Prediction) -> tuple[Float[Tensor, "pos"], float]:
    norms = value_norms(prediction.values, prediction.output_weights, method.value_norm)
    return gate(prediction.patterns, norms, method.flow)
