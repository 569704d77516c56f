"""Causal tracing (Meng 2022): corrupt the context with noise, then restore one clean state of one token."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.options import COUNT, AtLeast
from heta_lens._util.target_kinds import Activation
from heta_lens._util.work import Work
from heta_lens.methods.base import Scores, WithBatch, WithSeed
from heta_lens.model.batching import Batches
from heta_lens.prediction.patching import logits_with, noted, patched, site_name
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
        layers = evenly(self.layers, prediction.layers)
        rows = [[layer] for layer in layers]
        noisy = noisy_embeddings(prediction, all_but_bos(prediction), self.noise, self.samples, self.seed)
        batches = prediction.batches(self.batch)
        restored, low = traced(prediction, noisy, "resid_post", rows, self.scale, batches)
        effects = (restored.mean(0) - low.mean(0)).to(prediction.embeddings)
        return Scores(effects.amax(0), {"effects": effects, "layers": layers})


def evenly(count: int, layers: int) -> list[int]:
    """Return evenly spaced layers from the first up; after the last layer, only one position is read."""
    count = min(count, layers)
    return [place * layers // count for place in range(count)]


@torch.no_grad()
def traced(
    prediction: Prediction,
    noisy: Iterable[Float[Tensor, "pos d"]],
    site: Literal["resid_post", "attn_out", "mlp_out"],
    rows: Sequence[Sequence[int]],
    scale: Scale,
    batches: Batches,
) -> tuple[Float[Tensor, "sample row pos"], Float[Tensor, "sample"]]:
    """Return the likelihood of the target under noise, with clean states of each position put back, and without.

    A row puts back the states of its layers together.
    """
    adapter, read, cells = prediction.adapter, partial(prediction.read, scale=scale), torch.eye(len(prediction)).bool()
    names = [[site_name(adapter, site, layer) for layer in row] for row in rows]
    begins = [row[0] + (site == "resid_post") for row in rows]  # the first block that runs
    if isinstance(prediction.target, Activation):  # which may be read in this block, or below
        begins = [min(row[0], adapter.first_read) for row in rows]
    restored, low = list[Tensor](), list[Tensor]()
    clean = noted(prediction, {name for row in names for name in row})
    for embeddings in noisy:
        streams = noted(prediction, {*map(adapter.stream_name, begins)}, embeddings[None])
        for row, begin in zip(names, begins, strict=True):
            states = streams[adapter.stream_name(begin)][0].to(embeddings.device)
            put_back = dict.fromkeys(row, cells)
            restored.append(patched(prediction, put_back, clean, read, batches, states=states, layer=begin))
        low.append(read(logits_with(prediction, {}, embeddings[None])))
    return rearrange(torch.stack(restored), "(sample row) pos -> sample row pos", row=len(rows)), torch.cat(low)


def all_but_bos(prediction: Prediction) -> Bool[Tensor, "pos"]:
    places = torch.ones(len(prediction), dtype=torch.bool)
    places[0] = not prediction.begins
    return places


def noisy_embeddings(
    prediction: Prediction, subject: Bool[Tensor, "pos"], amount: float | int, samples: int, seed: int
) -> Iterator[Float[Tensor, "pos d"]]:
    """Yield draws of the embeddings with noise on the subject, of so many standard deviations.

    Noise is drawn for every token, so a token's noise does not depend on the other corrupted tokens.
    """
    embeddings = prediction.embeddings
    for sample in range(samples):
        drawn = prompt_generator(seed, prediction.ids, sample).standard_normal(embeddings.shape)
        noise = amount * embeddings.std(correction=0) * torch.from_numpy(drawn).to(embeddings)
        noise[~subject.to(noise.device)] = 0
        yield embeddings + noise
