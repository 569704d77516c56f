"""Agreement of scores with interventions: with the effects of masking sets of tokens, and of patching single tokens.

``effects`` come from `heta_lens.causal.effects`, an effect per score. ``candidates`` are the evaluated positions
(default: every position). Scores without signs say how much a token matters, and not in which direction: they are
compared with the sizes of effects. ``signed`` is that of the attribution.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens.diagnostics import rank_correlation
from heta_lens.metrics.evidence import highest
from heta_lens.metrics.scores import Positions, candidate_positions, finite_scores
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.masking import random_sets, set_drops, whole_drops
from heta_lens.prediction.prediction import Prediction, prompt_generator


@dataclass(frozen=True, eq=False)
class Drops:
    """The target's loss, in nats, under masks of sets of tokens (``each``) and of every token (``whole``).

    Drops do not depend on scores: measured once, they serve to evaluate many methods.
    """

    sets: Bool[Tensor, "subset pos"]
    each: Float[Tensor, "subset"]
    whole: float
    order: Int[Tensor, "subset"]

    @classmethod
    @one_at_a_time("prediction")
    def of(cls, prediction: Prediction, *, seed: int = 0) -> "Drops":
        """Measure the drops of every single token and of 32 random sets, with embeddings of 0 as masks."""
        generator = prompt_generator(seed, prediction.ids)
        sets = random_sets(generator, len(prediction))
        with prediction.running():
            each = set_drops(prediction, "zero", sets, "auto")
            (whole,) = whole_drops([prediction], "zero")
        return cls(sets, each.cpu().double(), whole, torch.from_numpy(generator.permutation(len(sets))))


def faithfulness_error(drops: Drops, scores: Float[Tensor, "pos"]) -> dict[str, Any]:
    """Return the mean of ``|g(X) - g(X without R) - Σ_R scores|`` over sets R; less is better.

    ``raw`` is the error of the scores as given; ``calibrated``, of scores times the factor (at least 0) that fits half
    of the sets best, on the other half; ``nothing``, of scores that are 0.
    """
    scores = finite_scores(scores, drops.sets.shape[1]).detach().cpu().double()
    sums, half = drops.sets.to(scores) @ scores, len(drops.order) // 2
    fitted, held_out = drops.order[:half], drops.order[half:]
    square = float(sums[fitted] @ sums[fitted])
    scale = max(0.0, float(drops.each[fitted] @ sums[fitted]) / square) if square else 0.0
    calibrated = (drops.each - scale * sums)[held_out].abs()
    return {
        "raw": float((drops.each - sums).abs().mean()),
        "calibrated": float(calibrated.mean()),
        "calibrated_standard_error": float(calibrated.std() / len(held_out) ** 0.5),
        "nothing": float(drops.each[held_out].abs().mean()),
        "scale": scale,
        "subsets": len(drops.each),
    }


def additivity_gap(drops: Drops, scores: Float[Tensor, "pos"]) -> float:
    """Return ``|Σ scores - (g(X) - g(X with everything masked))|``, at least 0; less is better."""
    return abs(float(finite_scores(scores, drops.sets.shape[1]).detach().double().sum()) - drops.whole)


def patch_correlation(
    scores: Float[Tensor, "pos"],
    effects: Float[Tensor, "pos"],
    *,
    signed: bool,
    candidates: Positions | None = None,
) -> float:
    """Spearman's correlation of scores and effects, higher is better; NaN if scores or effects are constant."""
    scores, effects = _checked(scores, effects, signed)
    positions = candidate_positions(candidates, len(scores))
    return rank_correlation(scores[positions], effects[positions])


def mean_effect(
    scores: Float[Tensor, "pos"], effects: Float[Tensor, "pos"], k: int = 5, *, candidates: Positions | None = None
) -> float:
    """Mean effect, with its sign, of single patches of the ``k`` highest scores; higher is better."""
    scores, effects = _checked(scores, effects, signed=True)
    return float(effects[highest(scores, k, candidates)].mean())


def misattribution(
    scores: Float[Tensor, "pos"],
    effects: Float[Tensor, "pos"],
    k: int = 10,
    least: float = 0.01,
    *,
    signed: bool,
    candidates: Positions | None = None,
) -> float:
    """Share of the ``k`` tokens with the highest scores but an effect below ``least``; lower is better."""
    scores, effects = _checked(scores, effects, signed)
    return mean_effect(scores, (effects < least).double(), k, candidates=candidates)


def _checked(scores: Tensor, effects: Tensor, signed: bool) -> tuple[Float[Tensor, "pos"], Float[Tensor, "pos"]]:
    """Return scores, and the effects that they are compared with."""
    scores, effects = finite_scores(scores), finite_scores(effects, name="effects")
    if len(scores) != len(effects):
        raise ValueError(f"there are {len(effects)} effects for {len(scores)} scores")
    return scores, effects if signed else effects.abs()
