"""Causal tracing (Meng 2022): corrupt the context with noise, then restore one clean state of one token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens._util.options import COUNT, AtLeast
from heta_lens._util.work import Done, Work
from heta_lens.methods.base import Scores
from heta_lens.methods.options import WithBatch, WithSeed, full_ids, streams
from heta_lens.model.batching import Batches
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

    - ``mode``: ``restore`` does that; ``noise_one`` is cheaper: ``a_i = g(clean) - g(noise on token i alone)``
    - ``samples``, ``noise``, ``seed``: the number of draws, the noise level in standard deviations of the context's
      embeddings, and the seed
    - ``layers``: after how many of the layers states are restored, in turn: evenly spaced from the first up
    - ``reduce``: ``max`` or ``mean`` over these layers
    - ``scale``: what g is: the target's ``prob``, ``log_prob``, ``logit`` or ``log_odds``
    """

    mode: Literal["restore", "noise_one"] = "restore"
    samples: Annotated[int, COUNT] = 10
    noise: Annotated[float | int, AtLeast(0)] = 3.0
    layers: Annotated[int, AtLeast(1, whole=True)] = 5
    reduce: Literal["max", "mean"] = "max"
    scale: Scale = "prob"

    name: ClassVar = "causal_tracing"
    paper: ClassVar[str] = (
        "Meng et al., Locating and editing factual associations in GPT, NeurIPS 2022, arXiv:2202.05262"
    )
    family: ClassVar = "perturbation"
    cost: ClassVar = "samples · (layers · N + 2) F + F; noise_one: (samples · N + 1) F"
    scaled_by: ClassVar = ("samples", "layers")
    adapted: ClassVar = "no subject is known: every token is corrupted, and a token's best layer is its score"

    @property
    def random(self) -> bool:
        return self.noise > 0

    @property
    def without_effect(self) -> Mapping[str, str]:
        if self.mode == "restore":
            return {}
        return dict.fromkeys(("layers", "reduce"), "mode='noise_one' (which puts no layer's state back)")

    def work(self, prediction: Prediction) -> dict[str, int]:
        if self.mode == "noise_one":
            return {"forwards": self.samples * len(prediction) + 1}
        layers = len(evenly(self.layers, prediction.adapter.layers))
        return {"forwards": self.samples * (layers * len(prediction) + 2) + 1}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        done, batches = partial(progress.add, "forwards"), prediction.prompt.batches(self.batch, len(prediction))
        if self.mode == "noise_one":
            clean = likelihood(prediction, prediction.embeddings[None], self.scale, done)
            return Scores(clean - self._each_corrupted(prediction, batches, done))
        effects = self._each_restored(prediction, batches, done)
        scores = effects.amax(0) if self.reduce == "max" else effects.mean(0)
        return Scores(scores, {"effects": effects, "layers": evenly(self.layers, prediction.adapter.layers)})

    def _each_corrupted(self, prediction: Prediction, batches: Batches, done: Done) -> Float[Tensor, "pos"]:
        """How likely the target is where one token at a time is corrupted."""
        likelihoods = torch.zeros_like(prediction.embeddings[:, 0])
        for sample in range(self.samples):
            noisy = self._corrupted(prediction, sample)
            likelihoods += (
                each_put_in(prediction, prediction.embeddings, noisy, batches, self.scale, done) / self.samples
            )
        return likelihoods

    def _each_restored(self, prediction: Prediction, batches: Batches, done: Done) -> Float[Tensor, "layer pos"]:
        """How much restoring one token's clean state raises the target, after each layer."""
        after = [layer + 1 for layer in evenly(self.layers, prediction.adapter.layers)]
        clean = entering(prediction, prediction.embeddings, after, done)
        effects = prediction.embeddings.new_zeros(len(after), len(prediction))
        for sample in range(self.samples):
            embeddings = self._corrupted(prediction, sample)
            noisy = entering(prediction, embeddings, after, done)
            restored = [
                each_put_in(prediction, noisy[layer], clean[layer], batches, self.scale, done, layer) for layer in after
            ]
            low = likelihood(prediction, embeddings[None], self.scale, done)
            effects += (torch.stack(restored) - low) / self.samples
        return effects

    def _corrupted(self, prediction: Prediction, sample: int) -> Float[Tensor, "pos d"]:
        return with_noise(prediction, all_but_bos(prediction), self.noise, self.seed, sample)


def evenly(count: int, layers: int) -> list[int]:
    """Evenly spaced layers from the first up; the last only if all are wanted: after it, one position is read."""
    count = min(count, layers)
    return [place * layers // count for place in range(count)]


def entering(
    prediction: Prediction, embeddings: Float[Tensor, "pos d"], layers: Sequence[int], done: Done
) -> dict[int, Float[Tensor, "pos d"]]:
    """The states that enter these layers, given other embeddings."""
    ids, n = full_ids(prediction), len(prediction)
    every = torch.cat([embeddings, prediction.prompt.embeddings[n : len(ids)]])
    states_by_layer = streams(prediction, ids[None], layers, {EMBED: put(every[None])})
    done(1)
    return {layer: states[0, :n] for layer, states in states_by_layer.items()}


def all_but_bos(prediction: Prediction) -> Bool[Tensor, "pos"]:
    """Every token except a beginning-of-text token."""
    places = torch.ones(len(prediction), dtype=torch.bool)
    places[0] = not prediction.begins
    return places


def with_noise(
    prediction: Prediction, subject: Bool[Tensor, "pos"], amount: float | int, seed: int, sample: int
) -> Float[Tensor, "pos d"]:
    """The embeddings, with noise of so many standard deviations added to the subject.

    Noise is drawn for every token, so that a token's noise does not depend on which others are corrupted.
    """
    drawn = prompt_generator(seed, prediction.ids, sample).standard_normal(prediction.embeddings.shape)
    noise = amount * prediction.embeddings.std(correction=0) * torch.from_numpy(drawn).to(prediction.embeddings)
    noise[~subject.to(noise.device)] = 0
    return prediction.embeddings + noise


def each_put_in(
    prediction: Prediction,
    around: Float[Tensor, "pos d"],
    states: Float[Tensor, "pos d"],
    batches: Batches,
    scale: Scale,
    done: Done,
    layer: int | None = None,
) -> Float[Tensor, "pos"]:
    """How likely the target is with one position's state at a time replaced in those around it."""

    def run(positions: Int[Tensor, "copy"]) -> Float[Tensor, "copy"]:
        return likelihood(prediction, masked_copies(around, positions, states[positions]), scale, done, layer=layer)

    return batches.map(run, torch.arange(len(prediction), device=around.device), len(prediction))
