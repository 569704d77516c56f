"""The parts of every candidate, measured once a prompt: gates, informations and curvatures.

A candidate only combines them, so that hundreds cost no more runs than a few dozen.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

import heta_lens
from heta_lens._util.numerics import DIVERGENCES
from heta_lens.methods.heta.heta import flow_gate
from heta_lens.methods.reagent import replaced, unigram
from heta_lens.model.hooks import values_name
from heta_lens.prediction.masking import masked_copies
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import log_softmax

FLOWS = ("suffix", "suffix_input", "prefix_head", "rollout", "direct")
NORMS = (1, 2)
MASKS = ("zero", "mean", "vocab_mean", "pad", "space", "other")
DRAWS = 4  # tokens that stand in for each with mask "other"
COPIES = 32  # of a context at once
CURVATURES: Mapping[str, Mapping[str, Any]] = {
    "block": {},
    "row": {"support": "row"},
    "row, 3 probes": {"support": "row", "probes": 3},
    "lr": {"variant": "lr", "rank": 16},
    "ls": {"variant": "ls", "layers": 2},
    "win": {"variant": "win", "window": 32},
    "gs": {"variant": "gs"},
    "gn": {"variant": "gn"},
    "contrast": {},
}


class Part(NamedTuple):
    values: Float[Tensor, "pos"]
    runs: float
    """The cost in plain forwards."""


Parts = Mapping[str, Part]


class Measured(NamedTuple):
    gates: Parts
    informations: Parts
    """Under ``mask/divergence``."""
    curvatures: Parts


def measured(
    prediction: Prediction, masks: Collection[Any] = MASKS, kinds: Collection[str] = tuple(CURVATURES)
) -> Measured:
    """Return all gates, and the informations and curvatures of the given kinds."""
    return Measured(gates(prediction), informations(prediction, masks), curvatures(prediction, kinds))


def gates(prediction: Prediction) -> Parts:
    flows = {
        f"{flow}{norm}": Part(flow_gate(heta_lens.Heta(flow=flow, value_norm=norm), prediction)[0], 0)
        for flow in FLOWS
        for norm in NORMS
    }
    even = torch.full_like(prediction.embeddings[:, 0], 1 / len(prediction))
    return flows | {"uniform": Part(even, 0), "gradient": Part(gradient_gate(prediction), 3)}


def gradient_gate(prediction: Prediction) -> Float[Tensor, "pos"]:
    """Return ``Σ |v · ∂g/∂v|`` over layers and heads, sum 1: the first-order loss of g without a token's values."""
    values: dict[int, Tensor] = {}

    def kept(layer: int, live: Tensor) -> Tensor:
        """Note and return a copy: a bridge may show a view that no result is computed from."""
        values[layer] = live.clone()
        return values[layer]

    hooks = [(values_name(layer), partial(kept, layer)) for layer in range(prediction.adapter.layers)]
    with prediction.running(), torch.enable_grad(), prediction.adapter.hooked(hooks):
        leaf = prediction.embeddings.detach().clone().requires_grad_()
        g = prediction.rerun().g(leaf[None])[0]
        slopes = torch.autograd.grad(g, list(values.values()))
    flowing = [
        einsum(value[0], slope[0], "pos head d, pos head d -> head pos").abs().sum(0)
        for value, slope in zip(values.values(), slopes, strict=True)
    ]
    total = torch.stack(flowing).sum(0).detach().to(prediction.embeddings)
    return total / total.sum()


@torch.no_grad()
def informations(prediction: Prediction, masks: Collection[Any]) -> Parts:
    found: dict[str, Part] = {}
    for mask in masks:
        vectors = (
            others(prediction)
            if mask == "other"
            else prediction.mask_vector(mask).expand_as(prediction.embeddings)[None]
        )
        each = [divergences(prediction, drawn) for drawn in vectors]
        for name in DIVERGENCES:
            values = torch.stack([own[name] for own in each]).mean(0)
            found[f"{mask}/{name}"] = Part(values, len(each) * len(prediction))
    return found


def others(prediction: Prediction) -> Float[Tensor, "draw pos d"]:
    """Return the embeddings of random tokens of the same kind, for each token."""
    generator, every = np.random.default_rng(0), torch.arange(len(prediction))
    replacer, size = unigram(prediction), prediction.adapter.vocabulary
    drawn = [replaced(prediction.ids, every, replacer, generator, size) for _ in range(DRAWS)]
    return torch.stack([prediction.adapter.embedding_table(ids.tolist()) for ids in drawn]).to(prediction.embeddings)


def divergences(prediction: Prediction, vectors: Float[Tensor, "pos d"]) -> dict[str, Float[Tensor, "pos"]]:
    """Return the divergences of the prediction as each token's embedding is replaced."""
    logits_of, rows = prediction.rerun().logits, []
    with prediction.running():
        for some in torch.arange(len(prediction)).split(COPIES):
            rows.append(log_softmax(logits_of(masked_copies(prediction.embeddings, some, vectors[some]))))
    moved = torch.cat(rows)
    return {name: divergence(prediction.log_probs, moved) for name, divergence in DIVERGENCES.items()}


def curvatures(prediction: Prediction, kinds: Collection[str]) -> Parts:
    found: dict[str, Part] = {}
    for name in kinds:
        method = heta_lens.Heta(**CURVATURES[name], beta=1.0, gamma=0.0, progress=False)
        about = contrasted(prediction) if name == "contrast" else prediction
        if name == "gn" and isinstance(prediction.target, tuple):  # which is about a probability
            about = replace(prediction, target=prediction.target[0])
        found[name] = Part(method(about).parts["curvature"], method.work(about).worth)
    return found


def contrasted(prediction: Prediction) -> Prediction:
    """Return the contrast of the target with the strongest rival token."""
    if isinstance(prediction.target, tuple):
        return prediction
    first, second = prediction.log_probs.topk(2).indices.tolist()
    other = second if first == prediction.target else first
    return replace(prediction, target=(prediction.target, other))
