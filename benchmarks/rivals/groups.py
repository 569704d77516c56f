"""Which methods are compared in `rivals`, with which budgets, and where their outcomes are."""

from collections.abc import Mapping, Sequence
from typing import Any

import heta_lens
from benchmarks.outcomes import Outcomes
from benchmarks.study.families import FAMILIES

SIZES = {"recall": 300} | {family: 100 for family in FAMILIES if family != "recall"}
SLOW = ("causal_tracing", "faml", "reagent", "sequential_integrated_gradients")  # over two seconds a story
UNABLE = ("sea_cot",)  # the models at hand do not answer Yes or No
BUDGETS = (3, 30, 100)

SETTINGS: Mapping[str, Mapping[str, Any]] = {  # of HETA: the winners of the study, and what came near
    "heta kl_only masked_orig": {"variant": "kl_only", "kl": "masked_orig"},
    "heta kl_only": {"variant": "kl_only"},
    "heta balanced": {"balance": "sum"},
    "heta row": {"support": "row"},
    "heta gs": {"variant": "gs", "beta": 1.0, "gamma": 0.0},
    "heta gate": {"variant": "transition_only", "flow": "direct"},
}
QUICK = (*(name for name in heta_lens.METHODS if name not in (*SLOW, *UNABLE)),)
ALL = (*QUICK, *SETTINGS, *SLOW)
GROUPS: Mapping[str, tuple[Sequence[str], int | None]] = {
    "quick": (QUICK, None),
    "settings": ((*SETTINGS,), None),
    "slow": (SLOW, None),
    **{f"budget {budget}": (ALL, budget) for budget in BUDGETS},
}


def outcomes_of(family: str, group: str) -> Outcomes:
    return Outcomes(f"rivals_{family}_{group}".replace(" ", "_"))
