"""Value swaps between two prompts: under one, any method explains what the patched model says."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import index
from typing import Any

import torch

from heta_lens.cached import Activations, Tokens
from heta_lens.lens import EMBED, Lens, names_filter, values_name
from heta_lens.options import is_whole
from heta_lens.prediction import Prediction
from heta_lens.swapping import values_put


@contextmanager
def swap_values(
    cache_a: Any, cache_b: Any, layer: int, positions: Sequence[int], *, tokens: Tokens = None
) -> Iterator[Any]:
    """While this lasts, the model has the values of prompt A at these positions of a layer, in every run.

    Gives the cache of prompt B under the swap, to be explained: ``attribute(cache, target, tokens=...)``.

    Args:
        cache_a: where the values come from.
        cache_b: of the prompt that is to be run under the swap, by the same model.
        layer: whose value vectors are swapped, of all heads.
        positions: the same in both prompts; runs that do not reach them are as they were.
        tokens: the ids of prompt B; without them they are read off its cached embeddings.
    """
    asked, given = Prediction.from_cache(cache_b, tokens=tokens), Activations.of(cache_a)
    if Lens.of(cache_a).model is not asked.lens.model:
        raise ValueError(f"the two caches are of two models: swap values within one {type(asked.lens.model).__name__}")
    layers, shortest = asked.lens.layers, min(len(asked), len(given[EMBED]))
    if not (is_whole(layer) and 0 <= layer < layers):
        raise ValueError(f"layer={layer!r} is none of the layers 0 to {layers - 1} this model has")
    places = list(positions)
    if not places:
        raise ValueError("positions is empty: name the tokens whose values are to be swapped")
    for place in places:
        if not (is_whole(place) and 0 <= index(place) < shortest):
            raise ValueError(f"position {place!r} is not among the {shortest} that both prompts have")
    model: Any = asked.lens.model
    with values_put(asked, places, given[values_name(layer)][places], layer):
        with torch.no_grad():
            cache = model.run_with_cache(asked.ids[None], names_filter=names_filter)[1]
        yield cache
