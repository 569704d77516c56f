"""What is needed of a model: both kinds have it."""

from typing import Any

import pytest

from helpers import zoo
from heta_lens.model.hooks import Model, wrapped


@pytest.mark.parametrize("build", zoo.models("-gpt2$"))
def test_both_kinds_of_models_have_all_that_is_needed(build: Any) -> None:
    assert isinstance(build(), Model)


def test_a_bridge_wraps_a_model() -> None:
    bridge = zoo.bridge("gpt2")
    assert wrapped(bridge) is bridge.original_model
    assert wrapped(wrapped(bridge)) is bridge.original_model
