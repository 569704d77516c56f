"""Fits how much each attention head counts: what AT2 needs once for every model."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.options import check_at_least, check_count
from heta_lens._util.progress import working
from heta_lens._util.work_counting import Work
from heta_lens.methods.attention.at2 import attended
from heta_lens.methods.attention.head_weights import HeadWeights, equal_weights
from heta_lens.model.locking import one_at_a_time
from heta_lens.prediction.coalitions import each_token, with_only, worths
from heta_lens.prediction.masking import Mask, check_mask
from heta_lens.prediction.prediction import Prediction

RATE, CLIP, TINY = 1e-3, 1.0, 1e-8  # of the optimiser; the longest gradient; added to standard deviations


class Ablations(NamedTuple):
    """Of one prompt: what heads attend to, summed over what is there less what is not, and the target's log-odds."""

    features: Float[Tensor, "ablation layer head"]
    log_odds: Float[Tensor, "ablation"]


def fit_at2(
    predictions: Iterable[Prediction],
    *,
    mask: Mask = "zero",
    samples: int = 32,
    keep: float = 0.5,
    steps: int = 1000,
    batch: int = 512,
    seed: int = 0,
    progress: bool | None = None,
) -> HeadWeights:
    """Choose weights of heads so that weighted attention goes with the target's log-odds after ablations.

    The loss is minus their correlation over the ablations of a prompt, averaged over prompts. How well that works is in
    ``fitted``: ``correlation`` on these prompts, ``held_out`` on every fifth, of weights fitted to the others, and
    ``equal``, of weights that are not fitted.

    Args:
        predictions: of one model; a few hundred.
        mask: what a masked token's embedding becomes.
        samples: how many ablations of each prompt, one forward each.
        keep: the probability that a token stays.
        steps: of the optimiser.
        batch: how many prompts each step uses.
        seed: of the ablations and of the batches.
        progress: show a progress bar; None shows it on a terminal or in a notebook.
    """
    for name, value, least in (("samples", samples, 2), ("steps", steps, 1), ("batch", batch, 1)):
        check_count(name, value, least)
    check_at_least("seed", seed, 0, whole=True)
    check_mask("mask", mask)
    if not 0 < keep < 1:
        raise ValueError(f"keep={keep!r} must be above 0 and below 1")
    predictions = [*predictions]
    if len(predictions) < 2:
        raise ValueError(f"weights cannot be fitted to {len(predictions)} predictions: give at least two")
    generator, measured = torch.Generator().manual_seed(seed), list[Ablations]()
    with working({"forwards": samples * len(predictions)}, progress) as work:
        for prediction in predictions:
            measured.append(ablations(prediction, mask, samples, keep, generator, work))
    adapter = predictions[0].adapter
    start = equal_weights(adapter)
    features = torch.stack([each.features for each in measured])
    log_odds = torch.stack([each.log_odds for each in measured])
    held = torch.arange(len(measured)) % 5 == 4 if len(measured) >= 5 else torch.arange(len(measured)) == 0
    apart = minimised(features[~held], log_odds[~held], start, steps, batch, seed)
    weights = minimised(features, log_odds, start, steps, batch, seed)
    facts = {
        "correlation": float(correlation(weights, features, log_odds).mean()),
        "held_out": float(correlation(apart, features[held], log_odds[held]).mean()),
        "equal": float(correlation(start, features, log_odds).mean()),
        "prompts": len(measured),
        "samples": samples,
        "seed": seed,
    }
    return HeadWeights.of(adapter, weights, **facts)


@one_at_a_time("prediction")
def ablations(
    prediction: Prediction, mask: Mask, samples: int, keep: float, generator: torch.Generator, work: Work
) -> Ablations:
    """All tokens are masked at random, except one that begins the text."""
    tokens = each_token(prediction, keep_bos=True)
    there = torch.rand(samples, len(tokens), generator=generator) < keep
    with prediction.running():
        log_odds = worths(tokens, there.numpy(), with_only(prediction, mask, "log_odds", "auto", work))
        attention = attended(prediction).double().cpu()
    signs = torch.where(there, 1.0, -1.0).double()
    own = attention[..., torch.from_numpy(tokens).double().argmax(1)]
    features = einsum(signs, own, "ablation token, layer head token -> ablation layer head")
    return Ablations(features, torch.from_numpy(log_odds))


def correlation(
    weights: Float[Tensor, "layer head"],
    features: Float[Tensor, "prompt ablation layer head"],
    log_odds: Float[Tensor, "prompt ablation"],
) -> Float[Tensor, "prompt"]:
    """Between what the weights predict and the log-odds, over each prompt's ablations; 0 where either is constant."""
    predicted = einsum(weights, features, "layer head, prompt ablation layer head -> prompt ablation")
    one, other = (values - values.mean(1, keepdim=True) for values in (predicted, log_odds))
    deviations = one.square().mean(1).sqrt() * other.square().mean(1).sqrt()
    return (one * other).mean(1) / (deviations + TINY)


def minimised(
    features: Float[Tensor, "prompt ablation layer head"],
    log_odds: Float[Tensor, "prompt ablation"],
    start: Float[Tensor, "layer head"],
    steps: int,
    batch: int,
    seed: int,
) -> Float[Tensor, "layer head"]:
    """Adam, with a rate that falls to 0 along a cosine; in the end absolute weights sum to 1."""
    weights, generator = start.clone().requires_grad_(), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam([weights], RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        some = torch.randperm(len(features), generator=generator)[:batch]
        optimiser.zero_grad()
        (-correlation(weights, features[some], log_odds[some]).mean()).backward()
        torch.nn.utils.clip_grad_norm_([weights], CLIP)
        optimiser.step()
        schedule.step()
    return (weights / weights.abs().sum()).detach()
