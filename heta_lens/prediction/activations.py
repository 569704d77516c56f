"""Activations of a prompt: read from a cache, or computed again by the live model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import EMBED, OUT, READ, note, pattern_names, values_names


@dataclass(frozen=True, eq=False, repr=False)
class Activations:
    """The activations of a single prompt by hook point, without a batch dimension."""

    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, cache: Any) -> "Activations":
        """Read a cache of a single prompt; refuse a cache of several prompts."""
        prompts = cls.of_each(cache)
        if len(prompts) > 1:
            raise ValueError(
                f"the cache holds {len(prompts)} prompts and this is about one: cache it alone, or explain all of "
                "them with heta_lens.attribute_batch"
            )
        return prompts[0]

    @classmethod
    def of_each(cls, cache: Any) -> "list[Activations]":
        """Read the activations of every prompt in a cache, padding included.

        A bridge may have stored an activation under the bridge's name of a hook point.
        """
        layers, points, tensors = len(cache.model.blocks), cache.model.hook_dict, dict[str, Tensor]()
        for name in (EMBED, *pattern_names(layers), *values_names(layers), READ, OUT):
            for key in {name, points[name].name} & cache.cache_dict.keys():
                tensors[name] = cache.cache_dict[key]
                if tensors[name].is_meta:
                    raise ValueError(
                        "the cache is on the meta device, which keeps no values: take it again, on cpu or cuda"
                    )
        if EMBED in tensors and tensors[EMBED].ndim < 3:
            tensors = {name: activation[None] for name, activation in tensors.items()}
        prompts = []
        for row in range(len(tensors[EMBED]) if EMBED in tensors else 1):
            prompts.append(cls({name: batch[row] for name, batch in tensors.items()}))
        return prompts

    def part(self, positions: slice) -> "Activations":
        """Return the activations at a range of positions."""
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


# --------------------------------------------------------------------------------------------------- live activations
def check_attends_back(adapter: ModelAdapter, layer: int, pattern: Float[Tensor, "head query key"]) -> None:
    """Refuse a model in which tokens attend to later tokens.

    Only the last two tokens are checked, because earlier padding may attend to everything.
    """
    if (pattern[:, -2:-1, -1] > 0).any():
        raise ValueError(
            f"{type(adapter.model).__name__} is not a decoder-only language model: "
            f"its layer {layer} attends to later tokens"
        )


@torch.no_grad()
def live(adapter: ModelAdapter, ids: Int[Tensor, "pos"], names: Sequence[str], *, hooked: bool) -> list[Tensor]:
    """Return activations of a prompt from a single run, with (``hooked``) or without hooks of the user."""
    batches: dict[str, Tensor] = {}
    adapter.run(ids[None], {name: note(batches, name) for name in names}, whole=hooked)
    return [batches[name][0] for name in names]
