"""A HookedTransformer is recognised, and its keys and values are kept with positions on the second axis."""

import pytest

from helpers import zoo
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooked_transformer import HookedTransformerReuse, is_hooked_transformer


def test_a_bridge_is_not_taken_for_one() -> None:
    assert not is_hooked_transformer(zoo.bridge("gpt2"))


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
def test_positions_are_on_the_axis_that_it_says() -> None:
    adapter = ModelAdapter(zoo.hooked("gpt2"))
    assert isinstance(adapter.reuse, HookedTransformerReuse)
    for keys, values in adapter.keys_values(zoo.prompt(adapter.model, 5)):
        assert keys.shape[adapter.reuse.position_axis] == values.shape[adapter.reuse.position_axis] == 5
