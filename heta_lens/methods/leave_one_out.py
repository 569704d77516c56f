"""Leave-one-out: the change of the prediction when one token is masked."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from heta_lens._util.numerics import kl
from heta_lens._util.options import chosen
from heta_lens.diagnostics import Diagnostics
from heta_lens.methods.base import UNTITLED, Scores, WithForwards
from heta_lens.prediction.prediction import Prediction


@dataclass(frozen=True, eq=False, kw_only=True)
class LeaveOneOut(WithForwards):
    """Leave-one-out: the change of the prediction when one token is masked.

    ``a_i = KL(P ‖ P with token i masked)`` (``kl``), or ``g(X) - g(X with i masked)`` (``log_prob``), above 0 where i
    speaks for the target.

    - ``effect``: ``kl``, on the whole distribution, or the drop of the target's ``log_prob``; titles call the drop of a
      function's or an activation's number ``value``
    """

    effect: Literal["kl", "log_prob"] = "kl"

    name: ClassVar = "leave_one_out"
    family: ClassVar = "perturbation"
    cost: ClassVar = "N F, each from the masked token on, or as many as ``forwards`` allows"
    scaled_by: ClassVar = ("forwards",)
    signed: ClassVar = False

    @property
    def directed(self) -> bool:
        return self.effect == "log_prob"

    @property
    def ignores_target(self) -> bool:
        return self.effect == "kl"

    def explain(self, prediction: Prediction) -> Scores:
        return self.explain_together([prediction])[0]

    def explain_together(self, predictions: Sequence[Prediction]) -> list[Scores]:
        results = []
        for prediction, found in zip(predictions, self.token_effects(predictions, kl), strict=True):
            scores, known = found.effects.divergence, Diagnostics(masked_together=found.together)
            if self.effect == "log_prob":
                measured = {"effect": "value" if callable(prediction.target) else self.effect}
                scores, known = found.effects.drop, replace(known, chosen=chosen(self, without=UNTITLED) | measured)
            results.append(Scores(scores, known))
        return results
