"""Nothing of the caller's is changed by an intervention, wherever it ends."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.faults import differences, fail_from, state
from helpers.models_in_use import OWN_KINDS, TWO_KINDS, Failure, N
from heta_lens import Prediction, attribute, causal
from heta_lens._util.work import Work, working

pytestmark = [
    pytest.mark.usefixtures("unchecked"),
]
TARGET = 7


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


@pytest.mark.sample(quick=2, test=20)
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


SHOWN = {
    "validate": ("causal_validation", validated),
    "patch": ("activation_patching", partial(patched, what="head_k")),
    "trace": ("noise_tracing", traced),
    "ablate": ("attention_heads", ablated),
}


@pytest.mark.sample(quick=3)
@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("kind", TWO_KINDS)
def test_a_progress_bar_ends_when_an_intervention_does(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = OWN_KINDS[kind]()
    ids = zoo.prompt(model, N)
    other_ids, bars = ids.roll(3, -1), []
    module, act = SHOWN[name]

    @contextmanager
    def watched(expected: dict[str, int], show: bool | None) -> Iterator[Work]:
        with working(expected, show) as work:
            bars.append((expected, work, show))
            yield work

    monkeypatch.setattr(f"heta_lens.causal.{module}.working", watched)
    act(tuple(model.run_with_cache(some)[1] for some in (ids, other_ids)), (ids, other_ids))
    [(expected, work, show)] = bars
    assert work.done["forwards"] == expected["forwards"] > N // 4 and show is None


def test_a_swap_ends_with_what_is_done_under_it() -> None:
    model = OWN_KINDS["gpt2"]()
    ids = zoo.prompt(model, N)
    cache = model.run_with_cache(ids)[1]
    before, said = state(model, cache, ids), model(ids)
    with pytest.raises(Failure), causal.swap_values(cache, cache, 0, [2], tokens=ids):
        raise Failure
    assert differences(before, state(model, cache, ids)) == []
    assert torch.equal(model(ids), said)
