"""Fits how much each attention head counts: what AT2 needs once for every model."""

from collections.abc import Callable, Iterable, Sized
from functools import partial
from typing import NamedTuple

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.options import AtLeast, check_at_least, check_count
from heta_lens._util.progress import working
from heta_lens._util.work_counting import Work
from heta_lens.methods.attention.at2 import attended
from heta_lens.methods.attention.head_weights import HeadWeights, equal_weights
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.locking import one_at_a_time
from heta_lens.prediction.coalitions import each_token, with_only, worths
from heta_lens.prediction.masking import Mask, check_mask
from heta_lens.prediction.prediction import Prediction

RATE, CLIP = 1e-3, 1.0  # of the optimiser; the longest gradient
TINY = 1e-8  # the least standard deviation
FOLDS = 5  # one of which is held out


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
    """Choose weights of heads so that weighted attention correlates with the target's log-odds after ablations.

    The loss is minus their correlation over the ablations of a prompt, averaged over prompts. How large it is, is in
    ``fitted``: ``correlation`` on these prompts, ``held_out`` on every fifth, of weights fitted to the others, and
    ``equal``, of weights that are not fitted.

    Args:
        predictions: of one model; a few hundred. They may be made one by one: none is held.
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
    AtLeast(0.01, below=1.0)("keep", keep)
    check_mask("mask", mask)
    adapter, measured = _measured(
        predictions, partial(ablations, mask=mask, samples=samples, keep=keep), seed, progress
    )
    features, log_odds = (torch.stack(values) for values in zip(*measured, strict=True))
    fit, start = partial(minimised, steps=steps, batch=batch, seed=seed), equal_weights(adapter)
    held = torch.arange(len(measured)) % FOLDS == min(FOLDS, len(measured)) - 1
    weights, apart = fit(features, log_odds, start), fit(features[~held], log_odds[~held], start)
    facts = {
        "correlation": float(correlation(weights, features, log_odds).mean()),
        "held_out": float(correlation(apart, features[held], log_odds[held]).mean()),
        "equal": float(correlation(start, features, log_odds).mean()),
        "prompts": len(measured),
        "samples": samples,
        "seed": seed,
    }
    return HeadWeights.of(adapter, weights, **facts)


def _measured(
    predictions: Iterable[Prediction], measure: Callable[..., Ablations], seed: int, progress: bool | None
) -> tuple[ModelAdapter, list[Ablations]]:
    """The model, and the ablations of each prediction, of which no more than one is held."""
    generator, adapter, measured = torch.Generator().manual_seed(seed), None, list[Ablations]()
    total = len(predictions) if isinstance(predictions, Sized) else 0
    with working({"predictions": total}, progress) as work:
        for prediction in predictions:
            if not isinstance(prediction, Prediction):
                raise TypeError(f"fit_at2 takes predictions, Prediction.from_cache(cache, target), not {prediction!r}")
            adapter = adapter or prediction.adapter
            if prediction.adapter.model is not adapter.model:
                raise ValueError("fit_at2 takes predictions of one model: weights of heads belong to it")
            measured.append(measure(prediction, generator=generator))
            work.add("predictions", 1)
    if adapter is None or len(measured) < 2:
        raise ValueError(f"weights cannot be fitted to {len(measured)} predictions: give at least two")
    return adapter, measured


@one_at_a_time("prediction")
def ablations(prediction: Prediction, mask: Mask, samples: int, keep: float, generator: torch.Generator) -> Ablations:
    """All tokens are masked at random, except one that begins the text."""
    tokens = each_token(prediction, keep_bos=True)
    there = torch.rand(samples, len(tokens), generator=generator) < keep
    with prediction.running():
        log_odds = worths(tokens, there.numpy(), with_only(prediction, mask, "log_odds", "auto", Work()))
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
    x, y = (values - values.mean(1, keepdim=True) for values in (predicted, log_odds))
    variances = (values.square().mean(1).clamp(min=TINY**2) for values in (x, y))  # of which a root has a slope
    return (x * y).mean(1) / (next(variances) * next(variances)).sqrt()


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
        drawn = torch.randperm(len(features), generator=generator)[:batch]
        optimiser.zero_grad()
        (-correlation(weights, features[drawn], log_odds[drawn]).mean()).backward()
        torch.nn.utils.clip_grad_norm_([weights], CLIP)
        optimiser.step()
        schedule.step()
    return (weights / weights.abs().sum()).detach()
