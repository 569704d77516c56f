"""Nothing of the caller's is changed by an attribution or an intervention, whether it succeeds or is broken off."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.entry_points import Subject
from helpers.faults import differences, fail_from, state
from helpers.odd_models import OWN_KINDS, TWO_KINDS, Failure, N
from heta_lens import attribute, causal
from heta_lens.model.adapter import ModelAdapter

pytestmark = pytest.mark.usefixtures("unchecked")

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
@pytest.mark.parametrize("call", [1, 2, 4])
@pytest.mark.parametrize(
    ("name", "way"), [("hook_embed", "fwd"), ("blocks.0.hook_resid_post", "fwd"), ("blocks.0.hook_resid_post", "bwd")]
)
@pytest.mark.parametrize("kind", TWO_KINDS)
def test_a_failure_within_a_callers_hook_leaves_everything_as_it_was(
    kind: str, name: str, way: Any, call: int, error: BaseException
) -> None:
    model, calls = OWN_KINDS[kind](), []
    ids = zoo.prompt(model, N)
    _, cache = model.run_with_cache(ids)

    def failing(passing: Tensor, hook: Any) -> None:  # noqa: ARG001
        calls.append(passing.shape)
        if len(calls) == call:
            raise error

    model.add_hook(name, failing, dir=way)
    before = state(model, cache, ids)
    with pytest.raises(type(error)), torch.no_grad():
        attribute(cache, TARGET, tokens=ids, probes=2)
    assert len(calls) == call
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


INTERVENTIONS = ["edges", "edges, recomputed", "edges, counterfactual", "stream", "input", "validate", "patch",
                 "patch heads", "trace", "trace what is added", "ablate heads", "swap values",
                 "what if", "components"]  # fmt: skip


def test_every_intervention_is_tried() -> None:
    others = {"Component", "Components", "Grid", "Head", "Heads", "Patch", "Validation"}
    calls = {"effects", "validate", "patch", "trace", "ablate_heads", "swap_values", "what_if", "components"}
    assert {*causal.__all__} - others == calls


@pytest.mark.sample(quick=2, test=6)
@pytest.mark.parametrize("name", INTERVENTIONS)
@pytest.mark.parametrize("kind", TWO_KINDS)
def test_an_intervention_leaves_everything_as_it_was_wherever_it_ends(
    used: Any, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _, _ = used(kind)
    subject, endless = Subject(model, N), 10**9
    act = subject.interventions()[name]
    with monkeypatch.context() as watched:
        ran = fail_from(watched, model.blocks[1].ln1, endless, Failure())
        expected = act()
        calls = len(ran)
    assert differences(subject.before, subject.state()) == []
    for call in sorted({1, 2, 3, 4, 5, calls // 2, calls - 1, calls} & {*range(1, calls + 1)}):
        error = [Failure("stop"), KeyboardInterrupt()][call % 2]
        with monkeypatch.context() as broken:
            fail_from(broken, model.blocks[1].ln1, call, error)
            with pytest.raises(type(error)):
                act()
        assert differences(subject.before, subject.state()) == [], f"after call {call} of {calls} failed"
    assert torch.equal(model(subject.ids), subject.said)
    assert torch.equal(act(), expected)
