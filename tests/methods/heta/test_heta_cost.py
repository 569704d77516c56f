"""What HETA takes: what is foreseen, reported and really run is the same."""

import functools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import HALF, QUICK, cache_of, predict
from heta_lens import Heta
from heta_lens._util.python import quietly
from heta_lens.methods.heta.gate import Flow
from heta_lens.methods.heta.options import VARIANTS
from heta_lens.methods.registry import METHODS
from heta_lens.model.adapter import ModelAdapter

N = 24


def test_blocks_at_a_time_cost_nothing_where_nothing_is_probed() -> None:
    model = zoo.bridge("gpt2")
    asked = predict(model, zoo.prompt(model, N), 7)
    for options in ({"variant": "gs"}, {"variant": "kl_only"}, {"beta": 0}):
        unused = quietly(lambda options=options: Heta(**options, checkpoint=True))
        assert unused.work(asked) == Heta(**options).work(asked)


@dataclass
class Meter:
    """What a model really does: rows of its calls, and passes of autograd that reach its logits.

    With ``products``, a pass with a direction is a Hessian-vector product. Blocks that run alone are a forward
    together, until one of them runs again.
    """

    forwards: int = 0
    backwards: int = 0
    hvps: int = 0

    def watch(self, model: Any, monkeypatch: pytest.MonkeyPatch, products: bool) -> None:
        forward, grad, passes = type(model).forward, torch.autograd.grad, []
        adapter_run, alone = ModelAdapter.run, defaultdict[torch.Size, set[int]](set)

        @functools.wraps(adapter_run)
        def run_alone(own: ModelAdapter, ids: Tensor, *args: Any, only: int | None = None, **kwargs: Any) -> Tensor:
            if only is not None:
                blocks = alone[ids.shape]
                if only in blocks:
                    blocks.clear()
                self.forwards -= bool(blocks)  # `run` counts each
                blocks.add(only)
            return adapter_run(own, ids, *args, only=only, **kwargs)

        @functools.wraps(forward)
        def run(own: Any, ids: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.forwards += len(ids)
            logits = forward(own, ids, *args, **kwargs)
            if logits.requires_grad:
                logits.register_hook(lambda gradient: passes.append(len(gradient)))
            return logits

        @functools.wraps(grad)
        def pull(outputs: Tensor, inputs: Any, directions: Any = None, **options: Any) -> Any:
            before, passes[:] = [*passes], []
            found = grad(outputs, inputs, directions, **options)
            times = len(directions) if options.get("is_grads_batched") else 1
            if passes and (directions is None or options.get("create_graph") or not products):
                self.backwards += times * sum(passes)
            elif passes:
                self.hvps += times
            passes[:] = before
            return found

        monkeypatch.setattr(type(model), "forward", run)
        monkeypatch.setattr(ModelAdapter, "run", run_alone)
        monkeypatch.setattr(torch.autograd, "grad", pull)


def reported(facts: Mapping[str, Any]) -> Meter:
    """All that an attribution says it ran, whatever for."""
    parts = [facts, *facts["checks"].values()]
    return Meter(*(sum(part.get(kind, 0) for part in parts) for kind in ("forwards", "backwards", "hvps")))


LONG = {"variant": "win", "window": 5, "overlap": 0.4}  # of 24 tokens: between most windows and the tail some stay
HETA: list[dict[str, Any]] = [
    *({"variant": name, "window": 5, "layers": 1, "rank": 3} for name in VARIANTS),
    *({"support": "row", **more} for more in ({}, LONG, {"norm": "entrywise"})),
    *({"flow": flow, "variant": "transition_only"} for flow in get_args(Flow)),
    {"norm": "entrywise", "gamma": 0},
    {"beta": 0.0},
    {"interactions": True},
    {**LONG, "window_mode": "chunk"},
    {**LONG, "window_mode": "chunk", "window_gate": "per_window"},
    {**LONG, "window_mode": "restrict"},
    {**LONG, "variant": "ls+win", "layers": 1, "window_mode": "chunk"},
    *({"combine": "geometric", "gate": "none", **more} for more in ({}, LONG, {"variant": "gs"})),
]
SEVERAL: dict[str, list[dict[str, Any]]] = {
    "attention_norm": [{}, {"reduce": "rollout"}],
    "context_cite": [{"samples": 5, "held_out": 3}, {"source": "token", "samples": 9, "ablate": "mask"}],
    "progressive_inference": [{}, {"passes": "multi", "samples": 4}],
    "reagent": [{"max_steps": 3, "probes": 2}],
    "flash_trace": [{}, {"answer": (7, 9), "reasoning": (4, 7), "hops": 3}],
    "gilot": [{}, {"length": 3, "beams": 2}],
    "tdd": [{}, {"direction": "bidirectional"}],
    "jacobian_scope": [],  # pulls a state back through the model, and not the logits that the meter watches
    "sea_cot": [{"explanations": 2, "length": 4, "entail": HALF}],
}
ASKED = [
    *(("heta", {"probes": 3, **options} if "probes" not in options else options) for options in HETA),
    *((name, options) for name in METHODS if name != "heta" for options in SEVERAL.get(name, [QUICK.get(name, {})])),
]


@pytest.mark.sample(quick=2, test=12)
@pytest.mark.parametrize(("method", "options"), ASKED, ids=str)
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|native)$"))
@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_costs_reported_are_costs_paid(
    build: Any, method: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if method == "gim" and zoo.hides_softmax(build):
        pytest.skip("refuses this model")
    model = build()
    ids = zoo.prompt(model, 24 if method == "heta" and "win" in options.get("variant", "") else 9)
    lean = model.run_with_cache(ids, names_filter=["hook_embed"])[1]
    for cache in (cache_of(model, ids), lean):
        meter = Meter()
        with monkeypatch.context() as patched:
            meter.watch(model, patched, products=method == "heta" and options.get("variant") != "gs")
            found = heta_lens.attribute(cache, tokens=ids, method=METHODS[method](**options))
        # The check's product is of a difference of logits, whose derivatives do not depend on the logits.
        meter.hvps += "second_derivative" in found.diagnostics["checks"]
        assert reported(found.diagnostics) == meter
    expected = heta_lens.estimate(lean, tokens=ids, method=METHODS[method](**options))
    for kind in ("forwards", "backwards", "hvps"):
        assert getattr(expected, kind) >= found.diagnostics[kind], kind
    if method == "heta" and not {"combine", "overlap"} & options.keys():
        spare = "win" in options.get("variant", "")  # a run that windows need on some models
        assert expected.hvps == found.diagnostics["hvps"]
        assert expected.forwards <= found.diagnostics["forwards"] + spare
