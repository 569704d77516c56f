"""Every entry point that runs a model, asked about the same prompts."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.faults import state
from heta_lens import Prediction, attribute, causal

TARGET = 7
METHODS = ["leave_one_out", "integrated_gradients", "attn_lrp", "value_zeroing", "attention_rollout", "lime"]


class Subject:
    """A model, its caches of two prompts and of both, and all calls that run it."""

    def __init__(self, model: Any, n: int = 6) -> None:
        self.model, self.ids = model, zoo.prompt(model, n)
        self.other_ids = self.ids.roll(3, -1)
        self.both_ids = torch.cat([self.ids, self.other_ids])
        caches = [model.run_with_cache(ids)[1] for ids in (self.ids, self.other_ids, self.both_ids)]
        self.cache, self.other, self.both = caches
        self.asked, self.reference = (
            self._prediction(self.cache, self.ids),
            self._prediction(self.other, self.other_ids),
        )
        self.given = attribute(self.cache, TARGET, tokens=self.ids, method="recency")
        self.said, self.before = model(self.ids).detach(), self.state()

    def state(self) -> dict[str, Any]:
        return state(self.model, self.cache, self.ids)

    def interventions(self) -> dict[str, Callable[[], Tensor]]:
        one: dict[str, Any] = {"target": TARGET, "tokens": self.ids}
        two: dict[str, Any] = {**one, "corrupted_tokens": self.other_ids}
        effects, patch = self._effects, partial(causal.patch, self.cache, self.other, batch=4)
        return {
            "edges": effects,
            "edges, recomputed": partial(effects, patterns="recomputed"),
            "edges, counterfactual": partial(effects, counterfactual=True),
            "stream": partial(effects, how="resid_patch", layer=1),
            "input": partial(effects, how="input"),
            "validate": lambda: causal.validate(self.cache, self.given, tokens=self.ids, how="input").effects,
            "patch": lambda: patch(**two, layers=[1]).values,
            "patch heads": lambda: patch(**two, what="head_out").values,
            "trace": lambda: causal.trace(self.cache, **one, samples=1).values,
            "trace what is added": lambda: causal.trace(self.cache, **one, samples=1, what="attn_out", window=2).values,
            "ablate heads": lambda: causal.ablate_heads(self.cache, **one).values,
            "swap values": self._swapped,
            "what if": lambda: torch.tensor(causal.what_if(self.cache, [2], **one)["after"].tolist()),
            "components": lambda: causal.components(self.cache, [2], **one, verify=4).effects,
        }

    def attributions(self) -> dict[str, Callable[[], Tensor]]:
        method = partial(attribute, self.cache, TARGET, tokens=self.ids)
        span = partial(heta_lens.attribute_span, self.cache, len(self.ids[0]) - 2, tokens=self.ids)
        return {
            "heta": lambda: method(probes=1).scores,
            "low rank": lambda: method(variant="lr", rank=2, probes=2).scores,
            **{name: lambda name=name: method(method=name).scores for name in METHODS},
            "span": lambda: span(probes=1).total,
            "span of gradients": lambda: span(method="input_x_gradient").total,
            "batch": self._batch,
            "with a prediction": lambda: heta_lens.METHODS["leave_one_out"]()(self.asked).scores,
            "lazy": self._lazy,
            "estimate": lambda: torch.tensor(heta_lens.estimate(self.cache, TARGET, tokens=self.ids).forwards),
        }

    def calls(self) -> dict[str, Callable[[], Tensor]]:
        return self.attributions() | self.interventions()

    def _prediction(self, cache: Any, ids: Tensor) -> Prediction:
        return Prediction.from_cache(cache, TARGET, tokens=ids)

    def _effects(self, *, counterfactual: bool = False, **way: Any) -> Tensor:
        """With new predictions, which keep nothing of earlier runs."""
        other = self._prediction(self.other, self.other_ids) if counterfactual else None
        return causal.effects(self._prediction(self.cache, self.ids), reference=other, **way)

    def _batch(self) -> Tensor:
        found = heta_lens.attribute_batch(self.both, TARGET, tokens=self.both_ids, method="leave_one_out")
        return torch.stack([one.scores for one in found])

    def _lazy(self) -> Tensor:
        """What a prediction computes when it is asked for."""
        fresh = self._prediction(self.cache, self.ids)
        return torch.cat([fresh.states(1).flatten(), fresh.rerun(2).log_probs(fresh.embeddings[None, 2:]).flatten()])

    def _swapped(self) -> Tensor:
        with causal.swap_values(self.other, self.cache, 0, [2], tokens=self.ids) as cache:
            return attribute(cache, TARGET, tokens=self.ids, method="leave_one_out").scores
