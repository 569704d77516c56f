"""Reading activations: of a run, what passes between the layers; of a cache, what it already has."""

from collections.abc import Callable, Mapping, Sequence

from jaxtyping import Float, Int
from torch import Tensor

from heta_lens.model.hook_sites import pattern_name, values_name
from heta_lens.model.hooking import Hook
from heta_lens.prediction.prediction import Prediction


def streams(
    prediction: Prediction,
    ids: Int[Tensor, "batch pos"],
    layers: Sequence[int],
    hooks: Mapping[str, Hook] | None = None,
) -> dict[int, Float[Tensor, "batch pos d"]]:
    """What enters these layers in one run (of as many as there are: what leaves the last)."""
    entering = prediction.adapter.streams(ids, layers, hooks, whole=bool(prediction.prompt.user_hooks))
    return {layer: states.to(prediction.embeddings) for layer, states in entering.items()}


def full_ids(prediction: Prediction) -> Int[Tensor, "pos"]:
    """The context's ids, with the rest of the prompt where somebody's hooks must find it as they know it."""
    return prediction.prompt.ids if prediction.prompt.user_hooks else prediction.ids


def pattern_runs(prediction: Prediction, layers: int) -> int:
    """How many forwards it takes to read the patterns of so many layers: none, of a cache that has them.

    One notes what enters each layer; the others' blocks, run alone, make about one more.
    """
    if _cached(prediction, pattern_name):
        return 0
    return layers if prediction.prompt.user_hooks else min(layers, 2)


def value_runs(prediction: Prediction) -> int:
    """How many forwards it takes to read values, of however many layers."""
    return 0 if _cached(prediction, values_name) else 1


def _cached(prediction: Prediction, name_of: Callable[[int], str]) -> bool:
    return any(name_of(layer) in prediction.prompt.cached for layer in range(prediction.adapter.layers))


def check_layer(name: str, layer: int | None, prediction: Prediction) -> None:
    """Refuse a layer that this model does not have; None stands for one that it has."""
    if layer is not None:
        prediction.adapter.check_layer(name, layer)


def chosen_layer(layer: int | None, prediction: Prediction) -> int:
    """This one, or else the last."""
    return prediction.adapter.layers - 1 if layer is None else layer
