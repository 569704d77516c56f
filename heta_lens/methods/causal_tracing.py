"""Causal tracing (Meng 2022): corrupt the context with noise, then restore one clean state of one token."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens._util.options import COUNT, AtLeast
from heta_lens._util.work import Work
from heta_lens.methods.base import Scores, WithBatch, WithSeed
from heta_lens.model.hooks import EMBED, put
from heta_lens.prediction.gradients import likelihood
from heta_lens.prediction.masking import masked_copies
from heta_lens.prediction.prediction import Prediction, prompt_generator
from heta_lens.prediction.target import Scale


@dataclass(frozen=True, eq=False, kw_only=True)
class CausalTracing(WithSeed, WithBatch):
    """Causal tracing (Meng 2022): corrupt the context with noise, then restore one clean state of one token.

    ``a_i = max_l g(noise, but token i clean after layer l) - g(noise)``: above 0 speaks for the target.

    Noise is added to the embedding of every token except a beginning-of-text token; g is a mean over several draws.
    ``diagnostics["effects"]`` is the table of layers and tokens before the maximum, ``diagnostics["layers"]`` the
    layers of its rows.

    - ``samples``, ``noise``, ``seed``: the number of draws, the noise level in standard deviations of the context's
      embeddings, and the seed
    - ``layers``: after how many of the layers states are restored, in turn: evenly spaced from the first up
    - ``scale``: what g is: the target's ``prob``, ``log_prob``, ``logit`` or ``log_odds``
    """

    samples: Annotated[int, COUNT] = 10
    noise: Annotated[float | int, AtLeast(0)] = 3.0
    layers: Annotated[int, AtLeast(1, whole=True)] = 5
    scale: Scale = "prob"

    name: ClassVar = "causal_tracing"
    paper: ClassVar = "Meng et al., Locating and editing factual associations in GPT, NeurIPS 2022, arXiv:2202.05262"
    family: ClassVar = "perturbation"
    cost: ClassVar = "samples · (layers · N + 2) F + F"
    fixed: ClassVar = "the weights, and one token's clean state after a layer; all else follows from noisy embeddings"
    scaled_by: ClassVar = ("samples", "layers")
    adapted: ClassVar = "no subject is known: every token is corrupted, and a token's best layer is its score"

    def work(self, prediction: Prediction) -> Work:
        layers = len(evenly(self.layers, prediction.layers))
        return Work(forwards=self.samples * (layers * len(prediction) + 2) + 1)

    def explain(self, prediction: Prediction) -> Scores:
        batches = prediction.batches(self.batch)
        g = partial(likelihood, prediction, scale=self.scale)

        def restored(
            states: Float[Tensor, "pos d"], others: Float[Tensor, "pos d"], layer: int
        ) -> Float[Tensor, "pos"]:
            """Compute g with the state of a single position replaced, for every position."""

            def run(positions: Int[Tensor, "copy"]) -> Float[Tensor, "copy"]:
                return g(masked_copies(states, positions, others[positions]), layer=layer)

            return batches.map(run, torch.arange(len(states), device=states.device), len(states))

        subject, layers = all_but_bos(prediction), evenly(self.layers, prediction.layers)
        after = [layer + 1 for layer in layers]
        states = entering(prediction, prediction.embeddings, after)
        effects = prediction.embeddings.new_zeros(len(layers), len(prediction))
        for sample in range(self.samples):
            embeddings = with_noise(prediction, subject, self.noise, self.seed, sample)
            noisy = entering(prediction, embeddings, after)
            values = torch.stack([restored(noisy[layer], states[layer], layer) for layer in after])
            effects += (values - g(embeddings[None])) / self.samples
        return Scores(effects.amax(0), {"effects": effects, "layers": layers})


def evenly(count: int, layers: int) -> list[int]:
    """Return evenly spaced layers from the first up; after the last layer, only one position is read."""
    count = min(count, layers)
    return [place * layers // count for place in range(count)]


def entering(
    prediction: Prediction, embeddings: Float[Tensor, "pos d"], layers: Sequence[int]
) -> dict[int, Float[Tensor, "pos d"]]:
    """Return the inputs of these layers after changed embeddings."""
    ids, n = prediction.whole_ids, len(prediction)
    every = torch.cat([embeddings, prediction.prompt.embeddings[n : len(ids)]])
    states_by_layer = prediction.streams(ids[None], layers, {EMBED: put(every[None])})
    return {layer: states[0, :n] for layer, states in states_by_layer.items()}


def all_but_bos(prediction: Prediction) -> Bool[Tensor, "pos"]:
    places = torch.ones(len(prediction), dtype=torch.bool)
    places[0] = not prediction.begins
    return places


def with_noise(
    prediction: Prediction, subject: Bool[Tensor, "pos"], amount: float | int, seed: int, sample: int
) -> Float[Tensor, "pos d"]:
    """Add noise of so many standard deviations to the subject's embeddings.

    Noise is drawn for every token, so a token's noise does not depend on the other corrupted tokens.
    """
    drawn = prompt_generator(seed, prediction.ids, sample).standard_normal(prediction.embeddings.shape)
    noise = amount * prediction.embeddings.std(correction=0) * torch.from_numpy(drawn).to(prediction.embeddings)
    noise[~subject.to(noise.device)] = 0
    return prediction.embeddings + noise
