"""Names of hook points: they exist on every kind of model."""

from typing import Any

import pytest

from helpers import zoo
from heta_lens.model.hooks import (
    EMBED,
    OUT,
    READ,
    added_names,
    attention_inputs,
    head_outputs_name,
    lean_names_filter,
    names_filter,
    pattern_name,
    queries_keys_names,
    stream_name,
    values_name,
)


@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
def test_every_name_is_a_hook_point_of_the_model(build: Any) -> None:
    model = build()
    layers = len(model.blocks)
    names = [EMBED, READ, OUT, *(stream_name(layer, layers) for layer in range(layers + 1))]
    for layer in range(layers):
        names += [pattern_name(layer), values_name(layer), head_outputs_name(layer)]
        names += [*queries_keys_names(layer), *attention_inputs(layer), *added_names(layer)]
    assert set(names) <= set(model.hook_dict)


def test_the_filter_keeps_what_is_read_and_nothing_else() -> None:
    assert all(map(names_filter, [EMBED, READ, pattern_name(0), values_name(11)]))
    assert all(map(lean_names_filter, [EMBED, READ, values_name(11)])) and not lean_names_filter(pattern_name(0))
    assert not any(map(lean_names_filter, [OUT, "blocks.0.attn.hook_q"]))
    assert not any(map(names_filter, [OUT, "blocks.0.attn.hook_q", "blocks.0.attn.hook_pattern2", stream_name(0, 1)]))
