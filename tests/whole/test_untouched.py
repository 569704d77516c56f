"""Nothing of the caller's is changed by an attribution or an intervention, whether it succeeds or is broken off."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.faults import differences, fail_from, state
from helpers.odd_models import OWN_KINDS, TWO_KINDS, Failure, N
from heta_lens import Prediction, attribute, causal
from heta_lens.model.adapter import ModelAdapter

pytestmark = [
    pytest.mark.usefixtures("unchecked"),
]

TARGET = 7

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "position": {"position": -3},
    "pair": {"target": (7, " cat")},
    "text": {"target": " cat"},
    "row": {"support": "row", "mask": "vocab_mean"},
    "entrywise": {"norm": "entrywise", "mask": 5},
    "kl_only": {"variant": "kl_only", "target": None, "probes": 10},
    "lr": {"variant": "lr", "rank": 2},
    "ls": {"variant": "ls", "layers": 1, "interactions": True},
    "frozen": {"variant": "win", "window": 3},
    "chunk": {"variant": "lr+win", "window": 3, "window_mode": "chunk", "window_gate": "per_window"},
    "gn": {"variant": "gn"},
    "gs": {"variant": "gs", "probes": 10},
}


@pytest.mark.sample(quick=2, test=4)
@pytest.mark.parametrize(
    ("kind", "name"),
    [*(("gpt2", name) for name in OPTIONS), *((kind, "default") for kind in OWN_KINDS if kind != "gpt2")],
)
@pytest.mark.filterwarnings("ignore:probes=\\d+ has no effect with")
def test_an_attribution_leaves_everything_as_it_was(used: Any, kind: str, name: str) -> None:
    model, cache, ids = used(kind)
    options = {"target": TARGET, "tokens": ids, "probes": 2, **OPTIONS[name]}
    if name == "chunk" and ModelAdapter(model).user_hooks():
        options["window_mode"] = "restrict"  # a part of the prompt alone is refused under hooks
    before = state(model, cache, ids)
    attribution = attribute(cache, **options)
    assert differences(before, state(model, cache, ids)) == []
    assert not any(tensor.requires_grad for tensor in (attribution.scores, *attribution.parts.values()))


@pytest.mark.sample(quick=2, test=8)
@pytest.mark.parametrize("error", [Failure("stop"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("call", [1, 3, 6])
@pytest.mark.parametrize("kind", TWO_KINDS)
def test_a_failure_within_a_run_leaves_everything_as_it_was(
    used: Any, kind: str, call: int, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, cache, ids = used(kind)
    calls = fail_from(monkeypatch, model.blocks[1].ln1, call, error)
    before = state(model, cache, ids)
    with pytest.raises(type(error)):
        attribute(cache, TARGET, tokens=ids, probes=2)
    assert len(calls) >= call
    assert differences(before, state(model, cache, ids)) == []


@pytest.mark.sample(quick=2, test=8)
@pytest.mark.parametrize("error", [Failure("stop"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("call", [1, 2, 9])
@pytest.mark.parametrize("name", ["hook_embed", "blocks.0.hook_resid_post"])
@pytest.mark.parametrize("kind", TWO_KINDS)
def test_a_failure_within_a_callers_hook_leaves_everything_as_it_was(
    kind: str, name: str, call: int, error: BaseException
) -> None:
    model, calls = OWN_KINDS[kind](), []
    ids = zoo.prompt(model, N)
    _, cache = model.run_with_cache(ids)

    def failing(activation: Tensor, hook: Any) -> None:  # noqa: ARG001
        calls.append(activation.shape)
        if len(calls) == call:
            raise error

    model.add_hook(name, failing)
    before = state(model, cache, ids)
    with pytest.raises(type(error)), torch.no_grad():
        attribute(cache, TARGET, tokens=ids, probes=2)
    assert len(calls) == call
    assert differences(before, state(model, cache, ids)) == []


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("error", [Failure("stop"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("call", [1, 2, 4])
def test_a_failure_within_a_backward_pass_leaves_everything_as_it_was(call: int, error: BaseException) -> None:
    model, calls = OWN_KINDS["gpt2"](), []
    ids = zoo.prompt(model, N)
    _, cache = model.run_with_cache(ids)

    def failing(gradient: Tensor, hook: Any) -> None:  # noqa: ARG001
        calls.append(gradient.shape)
        if len(calls) == call:
            raise error

    model.add_hook("blocks.0.hook_resid_post", failing, dir="bwd")
    before = state(model, cache, ids)
    with pytest.raises(type(error)):
        attribute(cache, TARGET, tokens=ids, probes=2)
    assert differences(before, state(model, cache, ids)) == []


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(
    "wrong",
    [
        {"target": 10**6},
        {"position": 99},
        {"tokens": [5] * N},
        {"mask": 10**6},
    ],
)
@pytest.mark.filterwarnings("ignore:probes=10 has no effect with")
@pytest.mark.parametrize("kind", ["gpt2"])
def test_a_refusal_leaves_everything_as_it_was(used: Any, kind: str, wrong: dict[str, Any]) -> None:
    model, cache, ids = used(kind)
    before = state(model, cache, ids)
    with pytest.raises(ValueError, match=r"\w"):
        attribute(cache, **{"tokens": ids, "probes": 2, **wrong})
    assert differences(before, state(model, cache, ids)) == []


Two: TypeAlias = tuple[Any, Any]  # a prompt, and another of as many tokens

Intervention: TypeAlias = Callable[[Two, Two], Any]


def effects(caches: Two, prompts: Two, *, counterfactual: bool = False, **way: Any) -> Tensor:
    asked, other = (
        Prediction.from_cache(cache, TARGET, tokens=ids) for cache, ids in zip(caches, prompts, strict=True)
    )
    return causal.effects(asked, reference=other if counterfactual else None, **way)


def scored(caches: Two, prompts: Two) -> heta_lens.Attribution:
    return attribute(caches[0], TARGET, tokens=prompts[0], method="recency")


def validated(caches: Two, prompts: Two) -> Tensor:
    return causal.validate(caches[0], scored(caches, prompts), tokens=prompts[0]).effects


def patched(caches: Two, prompts: Two, **what: Any) -> Tensor:
    return causal.patch(*caches, TARGET, tokens=prompts[0], corrupted_tokens=prompts[1], batch=4, **what).values


def patched_in_order(caches: Two, prompts: Two) -> Tensor:
    told = {"tokens": prompts[0], "corrupted_tokens": prompts[1], "restore": 1, "layer": 1}
    return torch.tensor(causal.patch_in_order(*caches, scored(caches, prompts), TARGET, **told).restored)


def traced(caches: Two, prompts: Two, **what: Any) -> Tensor:
    return causal.trace(caches[0], TARGET, tokens=prompts[0], samples=1, **what).values


def ablated(caches: Two, prompts: Two) -> Tensor:
    return causal.ablate_heads(caches[0], TARGET, tokens=prompts[0], fill="mean").values


def gated(caches: Two, prompts: Two) -> Tensor:
    return causal.gate_heads(caches[0], tokens=prompts[0]).shares


def swapped(caches: Two, prompts: Two) -> Tensor:
    with causal.swap_values(caches[1], caches[0], 0, [2, 4], tokens=prompts[0]) as cache:
        return attribute(cache, TARGET, tokens=prompts[0], method="leave_one_out").scores


INTERVENTIONS: dict[str, Intervention] = {
    "edges": effects,
    "edges, recomputed": partial(effects, patterns="recomputed"),
    "edges, counterfactual": partial(effects, counterfactual=True),
    "stream": partial(effects, how="resid_patch", layer=1),
    "input": partial(effects, how="input"),
    "validate": validated,
    "patch positions": patched,
    "patch heads": partial(patched, what="head_out"),
    "patch in order": patched_in_order,
    "trace": traced,
    "trace what is added": partial(traced, what="attn_out", window=2),
    "heads ablated": ablated,
    "heads of the gate": gated,
    "values swapped": swapped,
}


def test_every_intervention_is_tried() -> None:
    others = {"GateHeads", "Grid", "Head", "Heads", "Patch", "Search", "Validation"}
    assert {*causal.__all__} - others == {
        *("effects", "validate", "patch", "patch_in_order", "trace", "ablate_heads", "gate_heads", "swap_values")
    }


@pytest.mark.sample(quick=2, test=6)
@pytest.mark.parametrize("name", INTERVENTIONS)
@pytest.mark.parametrize("kind", TWO_KINDS)
def test_an_intervention_leaves_everything_as_it_was_wherever_it_ends(
    used: Any, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, cache, ids = used(kind)
    other_ids = ids.roll(3, -1)
    act = partial(INTERVENTIONS[name], (cache, model.run_with_cache(other_ids)[1]), (ids, other_ids))
    before, said, endless = state(model, cache, ids), model(ids), 10**9
    with monkeypatch.context() as watched:
        ran = fail_from(watched, model.blocks[1].ln1, endless, Failure())
        expected = act()
        calls = len(ran)
    assert differences(before, state(model, cache, ids)) == []
    for call in sorted({1, 2, 3, 4, 5, calls // 2, calls - 1, calls} & {*range(1, calls + 1)}):
        error = [Failure("stop"), KeyboardInterrupt()][call % 2]
        with monkeypatch.context() as broken:
            fail_from(broken, model.blocks[1].ln1, call, error)
            with pytest.raises(type(error)):
                act()
        assert differences(before, state(model, cache, ids)) == [], f"after call {call} of {calls} failed"
    assert torch.equal(model(ids), said)
    assert torch.equal(act(), expected)
