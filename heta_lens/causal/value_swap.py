"""Value swaps between two prompts: under one, any method explains what the patched model says."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from heta_lens._util.caller_warnings import warn
from heta_lens._util.options import chosen_positions
from heta_lens.causal.prompt_pair import shared_adapter
from heta_lens.model.hook_sites import EMBED, pattern_name, values_name
from heta_lens.model.locking import changing
from heta_lens.prediction.cached_activations import Activations
from heta_lens.prediction.cached_tokens import Tokens
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.token_patching import values_put


class Swap(AbstractContextManager[Any]):
    """Values that are swapped inside ``with``, and nowhere else; a warning says so, if it never was begun."""

    def __init__(self, begin: Callable[[], AbstractContextManager[Any]]) -> None:
        self._begin = begin
        self._under_way: AbstractContextManager[Any] | None = None

    def __enter__(self) -> Any:
        if self._under_way is not None:
            raise RuntimeError("this swap was begun before: call swap_values again for another")
        self._under_way = self._begin()
        return self._under_way.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        assert self._under_way is not None
        return self._under_way.__exit__(*error)

    def __del__(self) -> None:
        if getattr(self, "_under_way", True) is None:
            warn(UNUSED)

    def __repr__(self) -> str:
        return UNUSED if self._under_way is None else "a swap of values that was begun"


UNUSED = "swap_values has changed nothing: it works inside `with swap_values(...) as cache:`"


def swap_values(cache_a: Any, cache_b: Any, layer: int, positions: Sequence[int], *, tokens: Tokens = None) -> Swap:
    """Inside ``with``, the model has the values of prompt A at these positions of a layer, in every run.

    Gives the cache of prompt B under the swap, to be explained: ``attribute(cache, target, tokens=...)``. Runs begin
    with their first token: one that continues kept keys and values, as ``generate`` does by default, is
    refused.

    Args:
        cache_a: where the values come from, taken as they are there.
        cache_b: of the prompt that is to be run under the swap, by the same model.
        layer: whose value vectors are swapped, of all heads.
        positions: the same in both prompts; runs that do not reach them are as they were.
        tokens: the ids of prompt B; without them they are read off its cached embeddings.
    """
    return Swap(lambda: _swapped(cache_a, cache_b, layer, positions, tokens))


@contextmanager
def _swapped(cache_a: Any, cache_b: Any, layer: int, positions: Sequence[int], tokens: Tokens) -> Iterator[Any]:
    adapter = shared_adapter(cache_a, cache_b)
    adapter.check_layer("layer", layer)
    with changing(adapter.model):
        prediction, given = Prediction.from_cache(cache_b, tokens=tokens), Activations.of(cache_a)
        pattern = pattern_name(layer)
        if pattern in given and given[pattern].shape[-1] != len(given[EMBED]):
            raise ValueError("cache_a holds a part of its prompt: take it of the whole, without pos_slice")
        shorter = min(len(prediction), len(given[EMBED]))
        places = chosen_positions("positions", positions, shorter, "that both prompts have")
        with values_put(prediction, places, given[values_name(layer)][places], layer):
            yield prediction.adapter.cache(prediction.ids[None])
