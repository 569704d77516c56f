"""Leave-one-out: the change of the prediction when one token is masked."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from heta_lens._util.numerics import kl
from heta_lens._util.options import chosen
from heta_lens._util.work import Work
from heta_lens.methods.base import UNTITLED, Scores, WithBatch, WithMask
from heta_lens.prediction.masking import masked_effects
from heta_lens.prediction.prediction import Prediction


@dataclass(frozen=True, eq=False, kw_only=True)
class LeaveOneOut(WithMask, WithBatch):
    """Leave-one-out: the change of the prediction when one token is masked.

    ``a_i = KL(P ‖ P with token i masked)``, or ``g(X) - g(X with i masked)``, above 0 where i speaks for the target.

    - ``effect``: ``kl``, on the whole distribution, or the drop of the target's ``log_prob``; titles call the drop of a
      function's or an activation's number ``value``
    """

    effect: Literal["kl", "log_prob"] = "kl"

    name: ClassVar = "leave_one_out"
    family: ClassVar = "perturbation"
    cost: ClassVar = "N F, each from the masked token on"
    signed: ClassVar = False

    @property
    def directed(self) -> bool:
        return self.effect == "log_prob"

    @property
    def ignores_target(self) -> bool:
        return self.effect == "kl"

    def work(self, prediction: Prediction) -> Work:
        return Work(forwards=len(prediction))

    def explain(self, prediction: Prediction) -> Scores:
        batches = prediction.batches(self.batch)
        effects = masked_effects([prediction], self.mask, kl, batches=batches)
        if self.effect == "kl":
            return Scores(effects.divergence[0])
        measured = {"effect": "value" if callable(prediction.target) else self.effect}
        return Scores(effects.drop[0], {"chosen": chosen(self, without=UNTITLED) | measured})
