"""What captum does in this process, given the model's embeddings; and the naive implementation of HETA."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import captum.attr
import torch
from captum._utils.models.linear_model import SkLearnRidge
from torch import Tensor

import heta_lens
from benchmarks.peak_memory import peak
from benchmarks.peers.work import Asked, Ran, Side, Work
from benchmarks.reference import naive_curvature, naive_information


class Embedded:
    """The target's log-probability as a function of a batch of embeddings, and how many rows it has run."""

    def __init__(self, asked: Asked) -> None:
        self.asked, self.rows = asked, 0
        self.embeddings = asked.cache["hook_embed"].detach()
        self.baseline = torch.zeros_like(self.embeddings)
        self.baseline[:, 0] = self.embeddings[:, 0]  # the token that begins the text stays, as in ours
        self.tokens = torch.arange(asked.ids.shape[1])[None, :, None].expand_as(self.embeddings)  # of each entry

    def __call__(self, batch: Tensor) -> Tensor:
        self.rows += len(batch)
        ids = self.asked.ids.expand(len(batch), -1)
        replace = [("hook_embed", lambda live, hook: batch.to(live.dtype))]  # noqa: ARG005
        logits = self.asked.model.run_with_hooks(ids, fwd_hooks=replace)[:, -1]
        return logits.log_softmax(-1)[:, self.asked.target]


def integrated_gradients(g: Embedded, batch: int) -> Tensor:
    method: Any = captum.attr.IntegratedGradients(g)
    embeddings = g.embeddings.clone().requires_grad_()
    return method.attribute(embeddings, g.baseline, n_steps=50, internal_batch_size=batch)[0].sum(-1).detach()


@torch.no_grad()
def ablation(g: Embedded, batch: int) -> Tensor:
    method: Any = captum.attr.FeatureAblation(g)
    return method.attribute(g.embeddings, 0.0, feature_mask=g.tokens, perturbations_per_eval=batch)[0, :, 0]


@torch.no_grad()
def lime(g: Embedded, batch: int) -> Tensor:
    method: Any = captum.attr.Lime(g, interpretable_model=SkLearnRidge(alpha=1.0))
    return method.attribute(
        g.embeddings, g.baseline, feature_mask=g.tokens, n_samples=200, perturbations_per_eval=batch
    )[0, :, 0]


@torch.no_grad()
def kernel_shap(g: Embedded, batch: int) -> Tensor:
    method: Any = captum.attr.KernelShap(g)
    return method.attribute(
        g.embeddings, g.baseline, feature_mask=g.tokens, n_samples=500, perturbations_per_eval=batch
    )[0, :, 0]


def by_captum(asked: Asked) -> list[Work]:
    peer = partial(_embedded, asked)
    return [
        Work(
            "integrated gradients, 50 steps",
            peer(integrated_gradients),
            "integrated_gradients",
            {"steps": 50, "mask": "zero"},
            True,
        ),
        Work("leave one out", peer(ablation), "leave_one_out", {"effect": "log_prob"}, True),
        Work("LIME, 200 samples", peer(lime), "lime", {"samples": 200}, False),
        Work("KernelSHAP, 500 samples", peer(kernel_shap), "kernel_shap", {"samples": 498}, False),  # and both ends
    ]


def _embedded(asked: Asked, explain: Callable[[Embedded, int], Tensor]) -> Side:
    g = Embedded(asked)

    def run(batch: int) -> Ran:
        before, begun = g.rows, time.perf_counter()
        scores = explain(g, batch)
        return Ran(scores, time.perf_counter() - begun, g.rows - before)

    return Side(run, lambda batch: peak(partial(explain, g, batch)))


@dataclass(frozen=True, eq=False)
class NaiveImplementation:
    """Equation 4 as it is written: a product for every token and probe, a run of the whole prompt for every token."""

    asked: Asked
    gate: Tensor
    probes: int = 10
    seed: int = 0

    def __call__(self) -> Tensor:
        asked, every = self.asked, range(self.asked.ids.shape[1])
        curvature = naive_curvature(asked.model, asked.ids, asked.target, every, self.probes, self.seed)
        return self.gate * (curvature + naive_information(asked.model, asked.ids, every)) / 2

    def side(self) -> Side:
        n = self.asked.ids.shape[1]

        def run(_: int) -> Ran:
            begun = time.perf_counter()
            scores = self()
            return Ran(scores, time.perf_counter() - begun, n + 2)

        return Side(run, lambda _: peak(self))


def by_hand(asked: Asked) -> list[Work]:
    """The gate is taken from us: it needs no run."""
    gate = heta_lens.attribute(asked.cache, asked.target, tokens=asked.ids, variant="transition_only").scores
    loop = NaiveImplementation(asked, gate).side()
    return [
        Work("HETA", loop, "heta", {}, False, batches=(1,)),
        Work("HETA, groups=None", loop, "heta", {"groups": None}, True, batches=(1,)),
    ]
