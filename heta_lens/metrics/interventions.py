"""Additivity: whether scores sum to the effect of removing their tokens, in nats; of any set of tokens, or of all."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens._util.options import check_at_least
from heta_lens._util.text import short_repr
from heta_lens.diagnostics import rank_correlation
from heta_lens.methods.heta import diagnostics
from heta_lens.metrics.evidence import highest
from heta_lens.metrics.scores import Positions, check_number, finite_scores, places
from heta_lens.model.lock import one_at_a_time
from heta_lens.model.mask import Mask
from heta_lens.prediction.prediction import Prediction, prompt_generator


@dataclass(frozen=True, eq=False)
class Drops:
    """The target's loss, in nats, when each of some sets of tokens is masked, and when all tokens are.

    It does not depend on scores: measured once, it serves to evaluate many.
    """

    def __repr__(self) -> str:
        return short_repr(self)

    sets: Bool[Tensor, "subset pos"]
    each: Float[Tensor, "subset"]
    whole: float
    order: Int[Tensor, "subset"]

    @classmethod
    @one_at_a_time("prediction")
    def of(cls, prediction: Prediction, *, mask: Mask = "zero", seed: int = 0) -> "Drops":
        """Every single token and 32 random sets."""
        check_at_least("seed", seed, 0, whole=True)
        generator = prompt_generator(seed, prediction.ids)
        sets = diagnostics.subsets(generator, len(prediction))
        with prediction.running():
            each = diagnostics.drops(prediction, mask, sets, "auto", lambda _: None)
            (whole,) = diagnostics.whole_drops([prediction], mask, lambda _: None)
        return cls(sets, each.cpu().double(), whole, diagnostics.shuffled(generator, sets))


def faithfulness_error(drops: Drops, scores: Float[Tensor, "pos"]) -> dict[str, Any]:
    """The mean of ``|g(X) - g(X without R) - Σ_R scores|`` over sets R; less is better.

    ``raw``, of the scores as they are; ``calibrated``, with one common factor, at least 0, that fits half of the sets
    best, evaluated on the other half; and ``nothing``, the error of scores that are all 0.
    """
    scores = finite_scores(scores, drops.sets.shape[1]).detach().cpu().double()
    return diagnostics.faithfulness(drops.each, drops.sets.to(scores) @ scores, drops.order)


def additivity_gap(drops: Drops, scores: Float[Tensor, "pos"]) -> float:
    """``|Σ scores - (g(X) - g(X with everything masked))|``; at least 0, less is better."""
    return abs(float(finite_scores(scores, drops.sets.shape[1]).detach().double().sum()) - drops.whole)


# ---------------------------------------------------------------------------------------------- intervention agreement
# Agreement of scores with interventions: with the effects that patching each token has on the target.
#
# ``effects`` are those of `heta_lens.prediction.patching.effects`, one for each score. ``candidates`` are the
# positions that are evaluated (all of them).


def patch_correlation(
    scores: Float[Tensor, "pos"], effects: Float[Tensor, "pos"], *, candidates: Positions | None = None
) -> float:
    """Spearman's correlation, from -1 to 1, higher is better; NaN where scores or effects are all equal."""
    scores, effects = _checked(scores, effects)
    positions = places(candidates, len(scores))
    return rank_correlation(scores[positions], effects[positions])


def mean_effect(
    scores: Float[Tensor, "pos"], effects: Float[Tensor, "pos"], k: int = 5, *, candidates: Positions | None = None
) -> float:
    """The mean effect of the ``k`` tokens with the highest scores, each patched alone; higher is better."""
    return float(_of_highest(scores, effects, k, candidates).mean())


def misattribution(
    scores: Float[Tensor, "pos"],
    effects: Float[Tensor, "pos"],
    k: int = 10,
    least: float = 0.01,
    *,
    candidates: Positions | None = None,
) -> float:
    """The share of the ``k`` tokens with the highest scores whose effect is below ``least``; lower is better."""
    check_number("least", least)
    return float((_of_highest(scores, effects, k, candidates) < least).double().mean())


def _of_highest(
    scores: Float[Tensor, "pos"], effects: Float[Tensor, "pos"], k: int, candidates: Positions | None
) -> Float[Tensor, "k"]:
    check_at_least("k", k, 1, whole=True)
    scores, effects = _checked(scores, effects)
    return effects[highest(scores, k, candidates)]


def _checked(scores: Tensor, effects: Tensor) -> tuple[Float[Tensor, "pos"], Float[Tensor, "pos"]]:
    scores, effects = finite_scores(scores), finite_scores(effects, name="effects")
    if len(scores) != len(effects):
        raise ValueError(f"there are {len(effects)} effects for {len(scores)} scores")
    return scores, effects
