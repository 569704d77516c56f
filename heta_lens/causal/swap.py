"""Value swaps between two prompts: under one, any method explains what the patched model says."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from heta_lens.cached import Activations, Tokens
from heta_lens.causal.pair import shared_lens
from heta_lens.interventions import values_put
from heta_lens.lens import EMBED, pattern_name, values_name
from heta_lens.options import chosen_positions
from heta_lens.prediction import Prediction
from heta_lens.turns import changing


@contextmanager
def swap_values(
    cache_a: Any, cache_b: Any, layer: int, positions: Sequence[int], *, tokens: Tokens = None
) -> Iterator[Any]:
    """While this lasts, the model has the values of prompt A at these positions of a layer, in every run.

    Gives the cache of prompt B under the swap, to be explained: ``attribute(cache, target, tokens=...)``. Runs begin
    with their first token: one that continues kept keys and values, as ``generate`` does unless told otherwise, is
    refused.

    Args:
        cache_a: where the values come from, taken as they are there.
        cache_b: of the prompt that is to be run under the swap, by the same model.
        layer: whose value vectors are swapped, of all heads.
        positions: the same in both prompts; runs that do not reach them are as they were.
        tokens: the ids of prompt B; without them they are read off its cached embeddings.
    """
    lens = shared_lens(cache_a, cache_b)
    lens.check_layer("layer", layer)
    with changing(lens.model):
        asked, given = Prediction.from_cache(cache_b, tokens=tokens), Activations.of(cache_a)
        pattern = pattern_name(layer)
        if pattern in given and given[pattern].shape[-1] != len(given[EMBED]):
            raise ValueError("cache_a holds a part of its prompt: take it of the whole, without pos_slice")
        shorter = min(len(asked), len(given[EMBED]))
        places = chosen_positions("positions", positions, shorter, "that both prompts have")
        with values_put(asked, places, given[values_name(layer)][places], layer):
            yield asked.lens.cache(asked.ids[None])
