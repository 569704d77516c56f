"""Causal tracing (Meng 2022): the context is drowned in noise, and one clean state of one token is put back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens.baselines.baseline import Baseline, Found
from heta_lens.baselines.reading import full_ids, streams
from heta_lens.batches import Batches
from heta_lens.lens import EMBED, put
from heta_lens.likelihood import likelihood
from heta_lens.masking import masked_copies
from heta_lens.options import COUNT, AtLeast, Batch, Seed
from heta_lens.prediction import Prediction
from heta_lens.progress import Done, Work
from heta_lens.scales import Scale


@dataclass(frozen=True, eq=False, kw_only=True)
class CausalTracing(Baseline):
    """``a_i = max_l g(noise, but token i clean after layer l) - g(noise)``: above 0 speaks for the target.

    Noise falls on the embedding of every token, but for one that only says that the text begins; g is a mean over
    several draws. ``diagnostics["effects"]`` is the table of layers and tokens before the maximum,
    ``diagnostics["layers"]`` its rows' layers.

    - ``mode``: ``restore`` does that; ``noise_one`` is cheaper: ``a_i = g(clean) - g(noise on token i alone)``
    - ``samples``, ``noise``, ``seed``: how often noise is drawn, how strong, in standard deviations of the context's
      embeddings, and where from
    - ``layers``: after how many of the layers states are put back, in turn: evenly spaced ones from the first up
    - ``reduce``: ``max`` or ``mean`` over these layers
    - ``scale``: what g is, the target's ``prob``, ``log_prob``, ``logit`` or ``log_odds``
    - ``batch``: copies of the context run at once
    """

    mode: Literal["restore", "noise_one"] = "restore"
    samples: Annotated[int, COUNT] = 10
    noise: Annotated[float | int, AtLeast(0)] = 3.0
    layers: Annotated[int, AtLeast(1, whole=True)] = 5
    reduce: Literal["max", "mean"] = "max"
    scale: Scale = "prob"
    seed: Seed = 0
    batch: Batch = "auto"

    name: ClassVar = "causal_tracing"
    cost: ClassVar = "samples · (layers · N + 2) F + F; noise_one: (samples · N + 1) F"
    adapted: ClassVar = "no subject is known: every token is drowned in noise, and a token's best layer is its score"

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
        layers = len(evenly(self.layers, prediction.lens.layers))
        return {"forwards": self.samples * (layers * len(prediction) + 2) + 1}

    def explain(self, asked: Prediction, work: Work) -> Found:
        done, batches = partial(work.add, "forwards"), asked.prompt.batches(self.batch, len(asked))
        if self.mode == "noise_one":
            clean = likelihood(asked, asked.embeddings[None], self.scale, done)
            return clean - self._each_drowned(asked, batches, done), {}
        effects = self._each_restored(asked, batches, done)
        scores = effects.amax(0) if self.reduce == "max" else effects.mean(0)
        return scores, {"effects": effects, "layers": evenly(self.layers, asked.lens.layers)}

    def _each_drowned(self, asked: Prediction, batches: Batches, done: Done) -> Float[Tensor, "pos"]:
        """What is left of the target where one token at a time is drowned."""
        found = torch.zeros_like(asked.embeddings[:, 0])
        for sample in range(self.samples):
            noisy = self._drowned(asked, sample)
            found += each_put_in(asked, asked.embeddings, noisy, batches, self.scale, done) / self.samples
        return found

    def _each_restored(self, asked: Prediction, batches: Batches, done: Done) -> Float[Tensor, "layer pos"]:
        """What a clean state of one token brings back of the target, after each layer."""
        after = [layer + 1 for layer in evenly(self.layers, asked.lens.layers)]
        clean = entering(asked, asked.embeddings, after, done)
        found = asked.embeddings.new_zeros(len(after), len(asked))
        for sample in range(self.samples):
            embeddings = self._drowned(asked, sample)
            noisy = entering(asked, embeddings, after, done)
            restored = [
                each_put_in(asked, noisy[layer], clean[layer], batches, self.scale, done, layer) for layer in after
            ]
            low = likelihood(asked, embeddings[None], self.scale, done)
            found += (torch.stack(restored) - low) / self.samples
        return found

    def _drowned(self, asked: Prediction, sample: int) -> Float[Tensor, "pos d"]:
        return drowned(asked, spoken(asked), self.noise, self.seed, sample)


def evenly(count: int, layers: int) -> list[int]:
    """So many layers from the first up; the last only among all, since after it but one position is read."""
    count = min(count, layers)
    return [place * layers // count for place in range(count)]


def entering(
    asked: Prediction, embeddings: Float[Tensor, "pos d"], layers: Sequence[int], done: Done
) -> dict[int, Float[Tensor, "pos d"]]:
    """The context's states at these layers, with other embeddings."""
    ids, n = full_ids(asked), len(asked)
    every = torch.cat([embeddings, asked.prompt.embeddings[n : len(ids)]])
    seen = streams(asked, ids[None], layers, {EMBED: put(every[None])})
    done(1)
    return {layer: states[0, :n] for layer, states in seen.items()}


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


def each_put_in(
    asked: Prediction,
    around: Float[Tensor, "pos d"],
    states: Float[Tensor, "pos d"],
    batches: Batches,
    scale: Scale,
    done: Done,
    layer: int | None = None,
) -> Float[Tensor, "pos"]:
    """How likely the target is with each position's state in turn put among those around it."""

    def run(positions: Int[Tensor, "copy"]) -> Float[Tensor, "copy"]:
        return likelihood(asked, masked_copies(around, positions, states[positions]), scale, done, layer=layer)

    return batches.map(run, torch.arange(len(asked), device=around.device), len(asked))
