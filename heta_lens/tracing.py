"""What causal tracing is made of (Meng 2022): a context under noise, and copies of it with states of another run."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens.batches import Batches
from heta_lens.prediction import Prediction


def spoken(asked: Prediction) -> Bool[Tensor, "pos"]:
    """Every token but one that only says that the text begins."""
    places = torch.ones(len(asked), dtype=torch.bool)
    places[0] = not asked.begins
    return places


def drowned(
    asked: Prediction, subject: Bool[Tensor, "pos"], amount: float | int, seed: int, sample: int
) -> Float[Tensor, "pos d"]:
    """The embeddings, under noise of so many standard deviations at the subject.

    Noise is drawn for every token, so that it is the same for a token whoever else is drowned.
    """
    drawn = np.random.default_rng([seed, sample]).standard_normal(asked.embeddings.shape)
    noise = amount * asked.embeddings.std(correction=0) * torch.from_numpy(drawn).to(asked.embeddings)
    noise[~subject.to(noise.device)] = 0
    return asked.embeddings + noise


def over_positions(
    run: Callable[[Int[Tensor, "copy"]], Float[Tensor, "copy"]], asked: Prediction, batches: Batches
) -> Float[Tensor, "pos"]:
    """What comes of a run for each position of the context, some at a time."""
    return batches.map(run, torch.arange(len(asked), device=asked.embeddings.device), len(asked))


def put_rows(
    states: Float[Tensor, "pos d"], positions: Int[Tensor, "copy"], live: Float[Tensor, "copy longer d"]
) -> Float[Tensor, "copy longer d"]:
    """In each copy, one position's state."""
    found = live.clone()
    found[torch.arange(len(positions), device=live.device), positions] = states[positions].to(live)
    return found
