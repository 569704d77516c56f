"""What is known beside the scores: what they cost, what they are made of, and how sure they are."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from scipy.stats import spearmanr
from torch import Tensor

from heta_lens._util.numerics import Samples


@dataclass(frozen=True)
class Cost:
    """What scores took: rows that passed through the model, first gradients, HVPs, and seconds.

    Of the forwards, ``forwards_shared`` served as many attributions as ``forwards_shared_by``; ``audit`` counts
    the rows of an audit.
    """

    forwards: int | None = None
    backwards: int | None = None
    hvps: int | None = None
    seconds: float | None = None
    forwards_shared: int | None = None
    forwards_shared_by: int | None = None
    audit: int | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Diagnostics(Mapping[str, Any]):
    """What is known beside the scores, and in ``of_method`` what only this method knows.

    All of it is a read-only mapping as well: ``diagnostics["share"]`` is ``diagnostics.share``, and
    ``diagnostics["forwards"]`` is ``diagnostics.cost.forwards``. What is None is not in the mapping.
    """

    # The prediction, and how it was run
    target_token: str | tuple[str, ...] | None = None
    target_log_prob: float | tuple[float, ...] | None = None
    target_rank: int | tuple[int, ...] | None = None
    target_value: float | None = None
    target_members: Sequence[Mapping[str, Any]] | None = None
    unknown: Sequence[int] | None = None
    other_spellings: Sequence[Mapping[str, Any]] | None = None
    prefix_reuse: str | None = None
    user_hooks: int | None = None
    cache_mismatch: float | None = None
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
    template_mass: float | None = None
    share: Mapping[str, float] | None = None
    parts_correlation: float | None = None
    balanced: Float[Tensor, "pos"] | None = None
    probes: int | Tensor | None = None
    standard_errors: Mapping[str, Tensor | None] | None = None
    cross_talk: Float[Tensor, "pos"] | None = None
    additivity_gap: float | None = None
    completeness_gap: float | None = None
    completeness_due: float | None = None
    completeness_cause: str | None = None
    of_method: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, known: Mapping[str, Any]) -> "Diagnostics":
        """From a mapping, as this one is."""
        typed = {name: value for name, value in known.items() if name in _TYPED}
        cost = Cost(**{name: value for name, value in known.items() if name in _COST})
        others = {name: value for name, value in known.items() if name not in (*_TYPED, *_COST)}
        return cls(**typed, cost=cost, of_method=others)

    @cached_property
    def _known(self) -> dict[str, Any]:
        typed = {name: getattr(self, name) for name in _TYPED} | vars(self.cost)
        return {name: value for name, value in typed.items() if value is not None} | {**self.of_method}

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


_COST = [entry.name for entry in fields(Cost)]
_TYPED = [entry.name for entry in fields(Diagnostics) if entry.name not in ("cost", "of_method")]


def standard_error(
    samples: Samples, score: Callable[[Float[Tensor, "pos"]], Float[Tensor, "pos"]]
) -> Float[Tensor, "pos"] | None:
    """Of ``score(mean of the samples)``, by the delta method; NaN for tokens with less than two, None if all have.

    Each sample is carried through the score's derivative at the mean, so that samples which are shared between tokens,
    or divided by their sum, are accounted for.
    """
    if not (samples.counts > 1).any():
        return None
    moved = torch.stack(_derivatives(score, samples.mean, samples.deviations))
    return moved.square().sum(0).sqrt().where(samples.counts > 1, math.nan)


def _derivatives(
    score: Callable[[Tensor], Tensor], at: Float[Tensor, "pos"], directions: Float[Tensor, "sample pos"]
) -> list[Float[Tensor, "pos"]]:
    """The score's derivative along each of the directions: of its gradient with weights, by these weights."""
    with torch.enable_grad():
        at = at.detach().requires_grad_()
        scores = score(at)
        weights = torch.zeros_like(scores, requires_grad=True)
        (gradient,) = torch.autograd.grad(scores, at, weights, create_graph=True)
        return [torch.autograd.grad(gradient, weights, along, retain_graph=True)[0] for along in directions]


def shares(terms: Mapping[str, Float[Tensor, "pos"]]) -> dict[str, float]:
    """How much of the whole score comes from each of its terms."""
    totals = {name: float(term.abs().sum()) for name, term in terms.items()}
    whole = sum(totals.values())
    return {name: total / whole if whole else math.nan for name, total in totals.items()}


def sink_mass(scores: Float[Tensor, "pos"]) -> float:
    """The share of the score on the first token, which is often an attention sink."""
    return share_of(scores, torch.arange(len(scores), device=scores.device) == 0)


def share_of(scores: Float[Tensor, "pos"], tokens: Bool[Tensor, "pos"]) -> float:
    """How much of the whole score these tokens have."""
    whole = float(scores.abs().sum())
    return float(scores[tokens].abs().sum()) / whole if whole else math.nan


def agreement(scores: Float[Tensor, "pos"], others: Float[Tensor, "pos"]) -> dict[str, float]:
    """Spearman's rank correlation, and the L1 distance of the two once each sums to 1."""
    gap = scores / scores.abs().sum() - others / others.abs().sum()
    return {"rank_correlation": rank_correlation(scores, others), "l1": float(gap.abs().sum())}


def rank_correlation(one: Float[Tensor, "pos"], other: Float[Tensor, "pos"]) -> float:
    """Spearman's; NaN where one of them does not tell tokens apart."""
    if any(bool((values == values[0]).all()) for values in (one, other)):
        return math.nan
    return float(spearmanr(one.cpu(), other.cpu())[0])  # type: ignore[arg-type]
