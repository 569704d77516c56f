"""A prompt that is measured, and how much of the work on it."""

from typing import Any, Literal, NamedTuple

from torch import Tensor

import heta_lens
from heta_lens.methods.heta.curvature import Segment, whole_segment

LENGTHS = [32, 128, 512, 2048]
SMALL = 10**7  # parameters; of a larger model, whole scores are asked of the shortest context alone


class Plan(NamedTuple):
    """Probes per token, and how much is measured: tokens of the naive implementation, groups of ours; None for all.

    Of a group, as many tokens are measured as are done at once.
    """

    probes: int
    naive: int | None
    groups: int | None
    batch: int | Literal["auto"] = "auto"


PLANS = {32: Plan(10, 4, 6), 128: Plan(10, 2, 4), 512: Plan(10, 2, 4), 2048: Plan(10, 1, 3)}


def plan_of(n: int, parameters: int, probes: int | None) -> Plan:
    if parameters < SMALL and n <= LENGTHS[0]:
        plan = Plan(10, None, None)
    else:
        plan = PLANS[max((length for length in PLANS if length <= n), default=min(PLANS))]
    return plan._replace(probes=probes or plan.probes)


class Case(NamedTuple):
    model: Any
    ids: Tensor
    prediction: heta_lens.Prediction
    plan: Plan

    @classmethod
    def of(cls, model: Any, ids: Tensor, plan: Plan) -> "Case":
        _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
        return cls(model, ids, heta_lens.Prediction.from_cache(cache, tokens=ids), plan)

    @property
    def whole(self) -> Segment:
        return whole_segment(self.prediction)

    @property
    def target(self) -> int:
        assert isinstance(self.prediction.target, int)
        return self.prediction.target
