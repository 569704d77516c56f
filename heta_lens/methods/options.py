"""Reading activations: of a run, what passes between the layers; of a cache, what it already has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.options import AtLeast, Batch, Seed
from heta_lens.methods.base import Method
from heta_lens.model.hooks import Hook, pattern_name, values_name
from heta_lens.model.mask import Masking
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import Scale


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


# ------------------------------------------------------------------------------------------------------ shared options
# Options that many methods take, declared and documented once: a method inherits those it has.


@dataclass(frozen=True, eq=False, kw_only=True)
class WithMask(Method):
    """
    - ``mask``: the embedding that replaces a masked token's: ``zero``, ``mean`` (of the context), ``vocab_mean``,
      ``pad`` (without one, the tokenizer's end of text), ``space`` (the token of a blank; without one, as ``pad``), a
      token id or a vector
    """

    mask: Masking = "zero"

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        if "mask" not in self.without_effect:
            prediction.mask_vector(self.mask)


@dataclass(frozen=True, eq=False, kw_only=True)
class WithBos(Method):
    """- ``keep_bos``: leave a beginning-of-text token as it is, with a score of 0"""

    keep_bos: bool = True


@dataclass(frozen=True, eq=False, kw_only=True)
class WithLayer(Method):
    """- ``layer``: which layer, counted from 0; None is the last"""

    layer: Annotated[int | None, AtLeast(0, whole=True)] = None

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        check_layer("layer", self.layer, prediction)


@dataclass(frozen=True, eq=False, kw_only=True)
class WithScale(Method):
    """- ``scale``: what g is: the target's ``log_prob``, ``prob``, ``logit`` or ``log_odds``"""

    scale: Scale = "log_prob"


@dataclass(frozen=True, eq=False, kw_only=True)
class WithSeed(Method):
    """- ``seed``: of the random numbers"""

    seed: Seed = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class WithBatch(Method):
    """- ``batch``: how many copies of the context are run at once; affects memory and speed only"""

    batch: Batch = "auto"
