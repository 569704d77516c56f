"""Hard NC and NS: how a prediction changes without the tokens of the highest scores, and with nothing but them."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.options import check_at_least
from heta_lens._util.token_share import token_count
from heta_lens.metrics.candidate_tokens import Positions, places, rows_of
from heta_lens.metrics.distribution_distances import DISTANCES, Apart, ratios
from heta_lens.metrics.score_checks import check_number, finite_scores
from heta_lens.metrics.score_ranking import highest
from heta_lens.model.locking import one_at_a_time
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.readout import with_others_masked

RELEASED = (0.1, 0.2, 0.3)  # the shares of tokens that the authors' released code takes


def hard(
    prediction: Prediction,
    scores: Float[Tensor, "pos"],
    *,
    k: int | None = None,
    share: float = 0.2,
    as_reagent: bool = False,
    candidates: Positions | None = None,
) -> dict[str, float]:
    """NC and NS of the ``k`` tokens with the highest scores (None: that ``share`` of them, rounded down).

    Both are parts of the distance at which all ``candidates`` are 0, and more is better; NaN where that distance is 0.
    ``as_reagent`` takes another distance in the numerator of NC than in its denominator, as that code does.
    """
    if k is not None:
        check_at_least("k", k, 0, whole=True)
    check_number("share", share, 0, 1)
    scores = finite_scores(scores, len(prediction))
    positions = places(candidates, len(scores))
    first = highest(scores, token_count(share, len(positions)) if k is None else k, positions)
    gone = rows_of([first, {*positions} - {*first}, positions], len(scores))
    apart = distances(prediction, gone, DISTANCES["root"])
    nc, ns = ratios(apart[:1], apart[1:2], float(apart[2]))
    if as_reagent and apart[2] > 0:
        nc = distances(prediction, gone[:1], DISTANCES["hellinger"]) / apart[2]
    return {"nc": float(nc), "ns": float(ns)}


def released(
    prediction: Prediction,
    scores: Float[Tensor, "pos"],
    *,
    shares: Sequence[float] = RELEASED,
    candidates: Positions | None = None,
) -> dict[str, float]:
    """Soft-NC and Soft-NS of HETA's released code: mean divergences in nats over these shares of the tokens.

    ``KL(P ‖ P without the highest)``, more is better; and ``-KL(P ‖ P with nothing but them)``, at most 0.
    """
    scores = finite_scores(scores, len(prediction))
    if not len(shares):
        raise ValueError("shares is empty: give one at least, such as (0.1, 0.2)")
    for share in shares:
        check_number("shares", share, 0, 1)
    positions = places(candidates, len(scores))
    first = [highest(scores, token_count(share, len(positions), least=1), positions) for share in shares]
    gone = rows_of([*first, *({*positions} - {*kept} for kept in first)], len(scores))
    left_out, only = distances(prediction, gone, DISTANCES["kl"]).chunk(2)
    return {"nc": float(left_out.mean()), "ns": -float(only.mean())}


def distances(prediction: Prediction, gone: Bool[Tensor, "row pos"], apart: Apart) -> Float[Tensor, "row"]:
    """How far the prediction moves when these tokens are 0."""
    clean = prediction.log_probs.double()
    return without(prediction, gone, lambda log_probs: apart(log_probs.double(), clean, prediction.target))


@one_at_a_time("prediction")
@torch.no_grad()
def without(
    prediction: Prediction, gone: Bool[Tensor, "row pos"], read: Callable[[Float[Tensor, "some vocab"]], Tensor]
) -> Tensor:
    """A function of the log-probabilities when each row's tokens have embeddings of 0."""
    log_probs_from = prediction.log_probs_from(0)
    with prediction.running():
        batches = prediction.prompt.batches("auto", len(prediction))
        nothing = prediction.mask_vector("zero")
        return with_others_masked(
            prediction, ~gone, nothing, lambda states: read(log_probs_from(states)), batches
        ).cpu()
