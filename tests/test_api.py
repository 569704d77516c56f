"""Methods as `attribute` and `attribute_span` take them: by name with options, ready, or as a preset."""

from typing import Any

import pytest
from torch import Tensor

from helpers import zoo
from helpers.asking import cache_of
from helpers.attributions import N
from heta_lens import attribute, attribute_span

pytestmark = pytest.mark.filterwarnings("ignore:.*has no effect with:UserWarning")


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
