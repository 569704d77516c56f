"""Runs that continue kept keys and values equal full runs; the layout differs between kinds of models."""

from typing import Any

import pytest
import torch

from helpers import zoo
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.key_values import BridgeReuse, HookedTransformerReuse, KeyValueReuse, is_hooked_transformer


@torch.no_grad()
@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
def test_a_run_that_continues_equals_a_full_run(build: Any) -> None:
    adapter = ModelAdapter(build())
    ids = zoo.prompt(adapter.model, 6)
    kept = adapter.keys_values(ids)
    past = adapter.resume(kept, 4, 6, 2)
    continued = adapter.run(ids[:, 4:].expand(2, -1), past=past)
    torch.testing.assert_close(continued, adapter.run(ids).expand(2, -1, -1))
    grown = adapter.reuse.grown(past)
    joined = adapter.reuse.joined(
        [(k[:1], v[:1]) for k, v in adapter.reuse.grown(adapter.resume(kept, 4, 4, 1))], kept, 6
    )
    for (keys, values), (joined_keys, joined_values), (kept_keys, kept_values) in zip(grown, joined, kept, strict=True):
        torch.testing.assert_close(keys[:1], kept_keys)
        torch.testing.assert_close(values[:1], kept_values)
        assert torch.equal(joined_keys, kept_keys)
        assert torch.equal(joined_values, kept_values)


def test_a_bridge_is_not_taken_for_a_hooked_transformer() -> None:
    assert not is_hooked_transformer(zoo.bridge("gpt2"))


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (zoo.bridge, BridgeReuse),
        pytest.param(
            zoo.hooked,
            HookedTransformerReuse,
            marks=pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4"),
        ),
    ],
)
def test_positions_are_on_the_axis_that_a_kind_says(build: Any, kind: type[KeyValueReuse]) -> None:
    adapter = ModelAdapter(build("gpt2"))
    assert isinstance(adapter.reuse, kind)
    for keys, values in adapter.keys_values(zoo.prompt(adapter.model, 5)):
        assert keys.shape[adapter.reuse.position_axis] == values.shape[adapter.reuse.position_axis] == 5
