"""Options that many methods take, declared and documented once: a method inherits those it has."""

from dataclasses import dataclass
from typing import Annotated

from heta_lens._util.options import AtLeast, Batch, Seed
from heta_lens.methods.base import Method
from heta_lens.methods.layer_reading import check_layer
from heta_lens.prediction.masking import Masking
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.readout import Scale


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
