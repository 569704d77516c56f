"""Facts beside the scores: the cost of the scores, the shares of their terms, and their uncertainty."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Cost:
    """The cost of scores: rows that passed through the model, first gradients, Hessian–vector products, and seconds.

    ``forwards_shared`` of the forwards served ``forwards_shared_by`` attributions together.
    """

    forwards: int | None = None
    backwards: int | None = None
    hvps: int | None = None
    seconds: float | None = None
    forwards_shared: int | None = None
    forwards_shared_by: int | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Diagnostics(Mapping[str, Any]):
    """Facts beside the scores; ``of_method`` holds the facts that only one method knows.

    Diagnostics are a read-only mapping as well: ``diagnostics["share"]`` is ``diagnostics.share``, and
    ``diagnostics["forwards"]`` is ``diagnostics.cost.forwards``. The mapping leaves out facts that are None.
    """

    # The prediction and the run
    target_token: str | tuple[str, ...] | None = None
    target_log_prob: float | tuple[float, ...] | None = None
    target_rank: int | tuple[int, ...] | None = None
    target_value: float | None = None
    candidates: tuple[tuple[str, float], ...] | None = None  # the most likely next tokens, with log-probabilities
    unknown: Sequence[int] | None = None
    prefix_reuse: str | None = None
    user_hooks: int | None = None
    checks: Mapping[str, Mapping[str, int]] | None = None
    cost: Cost = Cost()
    # The method
    chosen: Mapping[str, Any] | None = None
    unused_options: Sequence[str] | None = None
    adapted: str | None = None
    note: str | None = None
    # The scores
    sink_mass: float | None = None
    left_out: int | None = None
    share: Mapping[str, float] | None = None
    balanced: Float[Tensor, "pos"] | None = None
    masked_together: Sequence[tuple[int, int, float]] | None = None  # spans of a search: start, stop, divergence
    probes: int | None = None
    standard_errors: Mapping[str, Float[Tensor, "pos"] | Float[Tensor, "pos pos"] | None] | None = None
    cross_talk: Float[Tensor, "pos"] | None = None
    additivity_gap: float | None = None
    completeness_gap: float | None = None
    completeness_due: float | None = None
    of_method: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, known: Mapping[str, Any]) -> "Diagnostics":
        """Return the diagnostics of a mapping from names to facts."""
        rest = dict(known)
        cost = Cost(**{name: rest.pop(name) for name in _COSTS if name in rest})
        shared = {name: rest.pop(name) for name in _FIELDS if name in rest}
        return cls(**shared, cost=cost, of_method=rest)

    def completed(self, others: "Diagnostics") -> "Diagnostics":
        """Fill missing facts from ``others``."""
        missing = {name: getattr(others, name) for name in _FIELDS if getattr(self, name) is None}
        return replace(self, **missing, cost=others.cost if self.cost == Cost() else self.cost)

    @cached_property
    def _known(self) -> dict[str, Any]:
        shared = {name: getattr(self, name) for name in _FIELDS} | vars(self.cost)
        return {name: value for name, value in shared.items() if value is not None} | {**self.of_method}

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            raise KeyError(f"{name!r} is not known of these scores, only {', '.join(self._known)}")
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        return f"Diagnostics({self._known})"


_COSTS = [entry.name for entry in fields(Cost)]
_FIELDS = [entry.name for entry in fields(Diagnostics) if entry.name not in ("cost", "of_method")]


def term_shares(terms: Mapping[str, Float[Tensor, "pos"]]) -> dict[str, float]:
    """Return the share of the whole score, sign aside, that comes from each term of the score."""
    totals = {name: float(term.abs().sum()) for name, term in terms.items()}
    whole = sum(totals.values())
    return {name: total / whole if whole else math.nan for name, total in totals.items()}


def sink_mass(scores: Float[Tensor, "pos"]) -> float:
    """Return the share of the score on the first token, which is often an attention sink."""
    return share_of(scores, torch.arange(len(scores), device=scores.device) == 0)


def share_of(scores: Float[Tensor, "pos"], tokens: Bool[Tensor, "pos"]) -> float:
    """Return the share of the whole score, sign aside, that the tokens hold."""
    whole = float(scores.abs().sum())
    return float(scores[tokens].abs().sum()) / whole if whole else math.nan


def rank_correlation(one: Float[Tensor, "pos"], other: Float[Tensor, "pos"]) -> float:
    """Return Spearman's rank correlation; NaN where one of the scores has the same value for every token."""
    if any(bool((values == values[0]).all()) for values in (one, other)):
        return math.nan
    # scipy.stats has it too, and takes a second to import
    ranks = [pd.Series(values.detach().cpu().double().numpy()).rank() for values in (one, other)]
    return float(np.corrcoef(ranks)[0, 1])
