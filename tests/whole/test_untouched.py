"""Nothing of the caller's is changed by an attribution, whether it succeeds or is broken off half-way."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.faults import differences, fail_from, state
from helpers.models_in_use import OWN_KINDS, TWO_KINDS, Failure, N
from heta_lens import attribute
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
    "exact": {"norm": "exact", "mask": 5, "probes": 10},
    "kl_only": {"variant": "kl_only", "target": None, "probes": 10},
    "lr": {"variant": "lr", "rank": 2, "audit": True},
    "ls": {"variant": "ls", "layers": 1, "interactions": True},
    "frozen": {"variant": "win", "window": 3},
    "chunk": {"variant": "lr+win", "window": 3, "window_mode": "chunk", "window_gate": "per_window"},
    "gn": {"variant": "gn"},
    "gs": {"variant": "gs", "probes": 10},
}


@pytest.mark.sample(quick=3)
@pytest.mark.parametrize(
    ("kind", "name"),
    [*(("gpt2", name) for name in OPTIONS), *((kind, "default") for kind in OWN_KINDS if kind != "gpt2")],
)
@pytest.mark.filterwarnings("ignore:probes=10 has no effect with")
def test_an_attribution_leaves_everything_as_it_was(used: Any, kind: str, name: str) -> None:
    model, cache, ids = used(kind)
    options = {"target": TARGET, "tokens": ids, "probes": 2, **OPTIONS[name]}
    if name == "chunk" and ModelAdapter(model).user_hooks():
        options["window_mode"] = "restrict"  # a part of the prompt alone is refused under hooks
    before = state(model, cache, ids)
    attribution = attribute(cache, **options)
    assert differences(before, state(model, cache, ids)) == []
    assert not any(tensor.requires_grad for tensor in (attribution.scores, *attribution.parts.values()))


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference_mode": torch.inference_mode,
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
}


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", OWN_KINDS)
def test_the_gradient_mode_is_the_callers_again(used: Any, kind: str, mode: str) -> None:
    model, cache, ids = used(kind)
    with MODES[mode]():
        before = state(model, cache, ids)
        attribute(cache, TARGET, tokens=ids, probes=2)
        assert differences(before, state(model, cache, ids)) == []


@pytest.mark.parametrize("kind", OWN_KINDS)
def test_flags_of_a_model_made_in_inference_mode_come_back(kind: str) -> None:
    with torch.inference_mode():
        model = OWN_KINDS[kind]()
        ids = zoo.prompt(model, N)
        _, cache = model.run_with_cache(ids)
        before = state(model, cache, ids)
        attribute_or_refuse(cache, ids)
        assert differences(before, state(model, cache, ids)) == []


def attribute_or_refuse(cache: Any, ids: Tensor) -> None:
    """Such a model has no gradients, which may be refused, by heta_lens itself."""
    try:
        attribute(cache, TARGET, tokens=ids, probes=2)
    except ValueError as refusal:
        assert "inference" in str(refusal)  # noqa: PT017


def test_gradients_of_what_the_callers_hooks_compute_with_stay_as_they_were() -> None:
    model, ids = zoo.bridge.__wrapped__("gpt2"), zoo.prompt(zoo.bridge("gpt2"), N)
    steering = torch.nn.Parameter(torch.linspace(-0.2, 0.2, 8, dtype=torch.float64))
    model.add_hook("blocks.0.hook_resid_post", lambda activation, hook: activation + steering)  # noqa: ARG005
    _, cache = model.run_with_cache(ids)
    attribution = attribute(cache, TARGET, tokens=ids, probes=2)
    assert steering.grad is None
    assert steering.requires_grad
    assert not any(tensor.requires_grad for tensor in (attribution.scores, *attribution.parts.values()))


def test_the_random_state_has_no_influence() -> None:
    model, ids = zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), 6)
    _, cache = model.run_with_cache(ids)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        one = attribute(cache, TARGET, tokens=ids)
        torch.manual_seed(2)
        other = attribute(cache, TARGET, tokens=ids)
    assert torch.equal(one.scores, other.scores)


def test_padding_and_truncation_set_on_the_tokenizer_stay_set() -> None:
    model, ids = zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), 6)
    _, cache = model.run_with_cache(ids)
    rust = model.tokenizer.backend_tokenizer
    try:
        rust.enable_padding(length=5)
        rust.enable_truncation(4)
        before = rust.to_str()
        attribute(cache, " cat", tokens=ids, variant="kl_only")
        assert rust.to_str() == before
    finally:
        rust.no_padding()
        rust.no_truncation()


def test_what_is_on_the_screen_stays_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    model, ids = zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), 6)
    attribute(model.run_with_cache(ids)[1], TARGET, tokens=ids, probes=2)
    assert capfd.readouterr() == ("", "")


@pytest.mark.sample(quick=5)
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


@pytest.mark.sample(quick=3)
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
        {"norm": "exact", "support": "row", "probes": 10},
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


def test_after_a_failure_the_model_can_be_explained_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = OWN_KINDS["gpt2"](), zoo.prompt(zoo.bridge("gpt2"), N)
    _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
    expected = attribute(cache, TARGET, tokens=ids)
    with monkeypatch.context() as broken:
        fail_from(broken, model.blocks[1].ln1, 3, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            attribute(cache, TARGET, tokens=ids)
    assert torch.equal(attribute(cache, TARGET, tokens=ids).scores, expected.scores)
