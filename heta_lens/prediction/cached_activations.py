"""The activations that heta_lens reads from a cache, without a batch dimension."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from heta_lens._util.short_repr import short_repr
from heta_lens.model.hook_sites import EMBED, OUT, READ, pattern_names, values_names


@dataclass(frozen=True, eq=False)
class Activations:
    """What heta_lens reads from a cache about a single prompt, as it was when it was read."""

    def __repr__(self) -> str:
        return short_repr(self)

    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, cache: Any) -> "Activations":
        """From a cache of a single prompt; refused for several."""
        cached = _cached(cache)
        if cached.prompts > 1:
            raise ValueError(
                f"the cache holds {cached.prompts} prompts and this is about one: cache it alone, or explain all of "
                "them with heta_lens.attribute_batch"
            )
        return cls({name: activation[0] for name, activation in cached.tensors.items()})

    @classmethod
    def of_each(cls, cache: Any) -> "list[Activations]":
        """Of every prompt in a cache, padding included."""
        cached = _cached(cache)
        return [cls({name: batch[row] for name, batch in cached.tensors.items()}) for row in range(cached.prompts)]

    def part(self, positions: slice) -> "Activations":
        """The same activations at some positions only."""
        both = {name: (slice(None), positions, positions) for name in self.tensors if name.endswith("pattern")}
        return Activations({name: tensor[both.get(name, positions)] for name, tensor in self.tensors.items()})

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ValueError(
                f"the cache has no {name!r}; take it with "
                "model.run_with_cache(tokens, names_filter=heta_lens.names_filter), or without a filter"
            )
        return self.tensors[name]


class Cached(NamedTuple):
    """Activations by hook point, with a batch dimension; and how many prompts they belong to."""

    tensors: dict[str, Tensor]
    prompts: int


def _cached(cache: Any) -> Cached:
    """What there is in a cache. A bridge may have stored an activation under its own name for a hook point."""
    layers = len(cache.model.blocks)
    names = [EMBED, *pattern_names(layers), *values_names(layers), READ, OUT]
    points = cache.model.hook_dict
    keys = {name: {name, points[name].name} & cache.cache_dict.keys() for name in names}
    tensors = {name: cache.cache_dict[key] for name, stored in keys.items() for key in stored}
    if any(activation.is_meta for activation in tensors.values()):
        raise ValueError("the cache is on the meta device, which keeps no values: take it again, on cpu or cuda")
    if EMBED not in tensors:
        return Cached(tensors, 1)
    if tensors[EMBED].ndim < 3:
        tensors = {name: activation[None] for name, activation in tensors.items()}
    return Cached(tensors, len(tensors[EMBED]))
