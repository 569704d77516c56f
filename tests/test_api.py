"""Methods as `attribute` and `attribute_span` take them: by name with options, ready, or as a preset."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import cache_of, relative
from helpers.attributions import N, alone
from heta_lens import attribute, attribute_span

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*has no effect with:UserWarning"),
]


@pytest.mark.parametrize("build", zoo.models("bridge-llama|hooked-gpt2"))
def test_float32_changes_little(build: Any) -> None:
    model = build(torch.float32)
    ids = zoo.prompt(model, 18)
    cache = cache_of(model, ids)
    span = attribute_span(cache, 16, tokens=ids, probes=1)
    for step, expected in zip(span.steps, alone(cache, ids, (16, 17), probes=1), strict=True):
        assert relative(step.scores, expected.scores) < 3e-5


def test_the_model_itself_runs_once_for_all_targets(model: Any, cache: Any, ids: Tensor, forwards: Any) -> None:
    runs = forwards(model)
    attribute(cache, position=N - 1, tokens=ids, variant="kl_only")
    last = len(runs)
    attribute_span(cache, 2, tokens=ids, variant="kl_only")
    assert len(runs) == 2 * last


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("place", ["3", [3], 2.5])
def test_a_place_that_is_no_whole_number_is_named(place: Any) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)
    cache = cache_of(model, ids)
    with pytest.raises(TypeError, match="must be a whole number, a place in the cached prompt"):
        attribute(cache, tokens=ids, position=place)
    with pytest.raises(TypeError, match=r"the span .* must have whole numbers"):
        attribute_span(cache, place, tokens=ids)
    with pytest.raises(TypeError, match=r"the span .* must have whole numbers"):
        attribute_span(cache, 2, place, tokens=ids)
