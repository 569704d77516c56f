"""Agreement of scores with interventions: with the effects that patching each token has on the target.

``effects`` are those of `heta_lens.prediction.token_patching.effects`, one for each score. ``candidates`` are the
positions that are evaluated (all of them).
"""

from jaxtyping import Float
from torch import Tensor

from heta_lens._util.options import check_at_least
from heta_lens.diagnostics import rank_correlation
from heta_lens.metrics.candidate_tokens import Positions, places
from heta_lens.metrics.score_checks import check_number, finite_scores
from heta_lens.metrics.score_ranking import highest


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
