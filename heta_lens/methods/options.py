"""Options that many methods share, and readings of runs: residual streams, patterns and values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.options import AtLeast, Batch, Seed
from heta_lens.methods.base import Method
from heta_lens.model.hooks import Hook, pattern_names, values_names
from heta_lens.model.mask import Masking
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import Scale


# ------------------------------------------------------------------------------------------------------- shared options
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
    """- ``layer``: the layer to read, counted from 0; None is the last"""

    layer: Annotated[int | None, AtLeast(0, whole=True)] = None

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        if self.layer is not None:
            prediction.adapter.check_layer("layer", self.layer)


@dataclass(frozen=True, eq=False, kw_only=True)
class WithScale(Method):
    """- ``scale``: the scale of g: the target's ``log_prob``, ``prob``, ``logit`` or ``log_odds``"""

    scale: Scale = "log_prob"


@dataclass(frozen=True, eq=False, kw_only=True)
class WithSeed(Method):
    """- ``seed``: of the random numbers"""

    seed: Seed = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class WithBatch(Method):
    """- ``batch``: the number of copies of the context to run at once; affects memory and speed only"""

    batch: Batch = "auto"


# ----------------------------------------------------------------------------------------------------- read activations
def streams(
    prediction: Prediction,
    ids: Int[Tensor, "batch pos"],
    layers: Sequence[int],
    hooks: Mapping[str, Hook] | None = None,
) -> dict[int, Float[Tensor, "batch pos d"]]:
    """Return the states that enter these layers in a single run; layer L is the last layer's output."""
    entering = prediction.adapter.streams(ids, layers, hooks, whole=bool(prediction.prompt.user_hooks))
    return {layer: states.to(prediction.embeddings) for layer, states in entering.items()}


def full_ids(prediction: Prediction) -> Int[Tensor, "pos"]:
    """Return the context's ids; with hooks of the user on the model, the ids of the whole prompt."""
    return prediction.prompt.ids if prediction.prompt.user_hooks else prediction.ids


def pattern_runs(prediction: Prediction, layers: int) -> int:
    """Return the number of forwards that read the patterns of so many layers: 0 with patterns in the cache.

    One run notes what enters each layer; running the other blocks alone takes about one more.
    """
    if not prediction.prompt.cached.tensors.keys().isdisjoint(pattern_names(prediction.adapter.layers)):
        return 0
    return layers if prediction.prompt.user_hooks else min(layers, 2)


def value_runs(prediction: Prediction) -> int:
    """Return the number of forwards that read value vectors: 0 with values in the cache, else 1."""
    return int(prediction.prompt.cached.tensors.keys().isdisjoint(values_names(prediction.adapter.layers)))
