"""Reading activations: of a run, what passes between the layers; of a cache, what it already has."""

from collections.abc import Callable, Mapping, Sequence

from jaxtyping import Float, Int
from torch import Tensor

from heta_lens.lens import Hook
from heta_lens.prediction import Prediction


def streams(
    asked: Prediction, ids: Int[Tensor, "batch pos"], layers: Sequence[int], hooks: Mapping[str, Hook] | None = None
) -> dict[int, Float[Tensor, "batch pos d"]]:
    """What enters these layers in one run (of as many as there are: what leaves the last)."""
    seen = asked.lens.streams(ids, layers, hooks, whole=bool(asked.prompt.user_hooks))
    return {layer: states.to(asked.embeddings) for layer, states in seen.items()}


def full_ids(asked: Prediction) -> Int[Tensor, "pos"]:
    """The context's ids, with the rest of the prompt where somebody's hooks must find it as they know it."""
    return asked.prompt.ids if asked.prompt.user_hooks else asked.ids


def runs_to_read(asked: Prediction, name_of: Callable[[int], str], layers: int) -> int:
    """How many forwards it takes to read this of so many layers: none, of a cache that has it."""
    return 0 if any(name_of(layer) in asked.prompt.cached for layer in range(asked.lens.layers)) else layers


def check_layer(name: str, layer: int | None, asked: Prediction) -> None:
    """Refuse a layer that this model does not have; None stands for one that it has."""
    if layer is not None:
        asked.lens.check_layer(name, layer)


def chosen_layer(layer: int | None, asked: Prediction) -> int:
    """This one, or else the last."""
    return asked.lens.layers - 1 if layer is None else layer
