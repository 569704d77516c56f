"""Equation 4: M, S and I put together, how much each of them counts, and how sure the result is."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.sample_statistics import Samples
from heta_lens._util.short_repr import short_repr
from heta_lens.diagnostics import shares, sink_mass, standard_error, weak

Balance: TypeAlias = Literal["none", "sum", "max"]


@dataclass(frozen=True)
class Parts:
    """M, S (as samples) and I, with their weights; a part whose weight is 0 is None."""

    def __repr__(self) -> str:
        return short_repr(self)

    gate: Float[Tensor, "pos"]
    curvature: Samples | None
    information: Float[Tensor, "pos"] | None
    beta: float | int
    gamma: float | int

    @cached_property
    def means(self) -> dict[str, Float[Tensor, "pos"]]:
        curvature = None if self.curvature is None else self.curvature.mean
        parts = {"gate": self.gate, "curvature": curvature, "information": self.information}
        return {name: part for name, part in parts.items() if part is not None}

    def terms(self, balance: Balance) -> dict[str, Float[Tensor, "pos"]]:
        """Eq. 4 before its sum, ``M β S`` and ``M γ I``; balanced, S and I are divided by their sum or maximum."""
        weights = {"curvature": self.beta, "information": self.gamma}
        return {
            name: self.gate * weights[name] * scaled(part, balance)
            for name, part in self.means.items()
            if name in weights
        }

    def score(self, balance: Balance) -> Float[Tensor, "pos"]:
        """Eq. 4, or the gate alone where that is all there is."""
        terms = list(self.terms(balance).values())
        return torch.stack(terms).sum(0) if terms else self.gate

    def envelope(self, balance: Balance, gain: Float[Tensor, "pos"]) -> Float[Tensor, "pos"]:
        """The score with another information in its place, on the same scale."""
        assert self.information is not None
        change = (gain - self.information) / divisor(self.information, balance)
        return self.score(balance) + self.gate * self.gamma * change

    def standard_errors(self, balance: Balance) -> dict[str, Float[Tensor, "pos"] | None]:
        """Of the score and each part. Only the probes are random."""
        errors: dict[str, Tensor | None] = dict.fromkeys(("scores", *self.means))
        if self.curvature is not None:
            errors["curvature"] = standard_error(self.curvature, torch.clone)
            errors["scores"] = standard_error(
                self.curvature, lambda mean: replace(self, curvature=Samples.even(mean[None])).score(balance)
            )
        return errors

    def diagnostics(self, balance: Balance) -> dict[str, Any]:
        share = shares(self.terms(balance))
        return {
            "share": share,
            "weak_parts": weak(share),
            "sink_mass": sink_mass(self.score(balance)),
            "balanced": self.score("sum"),
            "standard_errors": self.standard_errors(balance),
        }


def scaled(part: Float[Tensor, "pos"], balance: Balance) -> Float[Tensor, "pos"]:
    return part / divisor(part, balance)


def divisor(part: Float[Tensor, "pos"], balance: Balance) -> Float[Tensor, ""]:
    """What a part is divided by: its sum or maximum, or 1."""
    if balance == "none" or not part.any():
        return torch.ones_like(part[0])
    return part.sum() if balance == "sum" else part.max()
