"""A bridge's keys and values are kept with positions on the third axis."""

from helpers import zoo
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.bridge import BridgeReuse


def test_positions_are_on_the_axis_that_it_says() -> None:
    adapter = ModelAdapter(zoo.bridge("gpt2"))
    assert isinstance(adapter.reuse, BridgeReuse)
    for keys, values in adapter.keys_values(zoo.prompt(adapter.model, 5)):
        assert keys.shape[adapter.reuse.position_axis] == values.shape[adapter.reuse.position_axis] == 5
