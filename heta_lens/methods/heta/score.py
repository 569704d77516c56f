"""Equation 4: M, S and I put together, how much each of them counts, and how sure the result is."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.sample_statistics import Samples, powered_ends, student_t
from heta_lens._util.short_repr import short_repr
from heta_lens.diagnostics import rank_correlation, shares, sink_mass, standard_error

Balance: TypeAlias = Literal["none", "sum", "max"]
Combine: TypeAlias = Literal["sum", "geometric"]


@dataclass(frozen=True)
class Parts:
    """M, S (as samples) and I, with their weights; a part whose weight is 0 is None.

    ``combine`` adds the weighted parts, or multiplies their powers; I may be signed in a product.
    """

    def __repr__(self) -> str:
        return short_repr(self)

    gate: Float[Tensor, "pos"]
    curvature: Samples | None
    information: Float[Tensor, "pos"] | None
    beta: float | int
    gamma: float | int
    combine: Combine = "sum"

    @property
    def power(self) -> float:
        """Exponent w of S in the geometric score ``M · S^w · I^(1-w)``."""
        return self.beta / (self.beta + self.gamma)

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
        """Eq. 4, or the gate alone where that is all there is; or the geometric score, which no balance changes."""
        if self.combine == "geometric":
            assert self.curvature is not None and self.information is not None
            sizes = self.curvature.mean**self.power * self.information.abs() ** (1 - self.power)
            return self.gate * sizes * self.information.sign()
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
        if self.curvature is None:
            return errors
        errors["curvature"] = own = standard_error(self.curvature, torch.clone)
        if self.combine == "geometric":
            if own is not None:  # 0 where S or I is, which the root has no derivative at
                score, size = self.score(balance).abs(), self.curvature.mean
                errors["scores"] = torch.where(score > 0, self.power * score * own / size, 0)
        else:
            errors["scores"] = standard_error(
                self.curvature, lambda mean: replace(self, curvature=Samples.even(mean[None])).score(balance)
            )
        return errors

    @property
    def where_curvature_decides(self) -> frozenset[int]:
        """Tokens with an I above the average, of which a product needs a small S as it is."""
        if self.combine == "sum" or self.information is None:
            return frozenset()
        sizes = self.information.abs()
        return frozenset((sizes > sizes.mean()).nonzero()[:, 0].tolist())

    def half_widths(self, balance: Balance) -> Float[Tensor, "pos"]:
        """Half of each score's 95 % interval; 0 for a token that was not probed, if no token was."""
        assert self.curvature is not None
        errors, reach = self.standard_errors(balance), student_t(self.curvature.counts).to(self.gate)
        if errors["scores"] is None or errors["curvature"] is None:
            return torch.zeros_like(self.gate)
        if self.combine == "sum":
            return errors["scores"] * reach
        return self.product_half_widths(errors["curvature"] * reach)

    def product_half_widths(self, reach: Float[Tensor, "*count pos"]) -> Float[Tensor, "*count pos"]:
        """The same of a geometric score whose S has this half-width."""
        low, high = powered_ends(self.score("none"), self.means["curvature"], reach, self.power)
        return (high - low) / 2

    @cached_property
    def rank_correlation(self) -> float:
        """How alike S and I rank the tokens (Spearman); NaN where one of them does not tell tokens apart."""
        return rank_correlation(self.means["curvature"], self.means["information"].abs())

    def diagnostics(self, balance: Balance) -> dict[str, Any]:
        """What the score is made of: shares of a sum, or how alike the factors of a product rank the tokens."""
        facts = {"sink_mass": sink_mass(self.score(balance)), "standard_errors": self.standard_errors(balance)}
        if self.combine == "geometric":
            return facts | {"parts_correlation": self.rank_correlation}
        return facts | {"share": shares(self.terms(balance)), "balanced": self.score("sum")}


def scaled(part: Float[Tensor, "pos"], balance: Balance) -> Float[Tensor, "pos"]:
    return part / divisor(part, balance)


def divisor(part: Float[Tensor, "pos"], balance: Balance) -> Float[Tensor, ""]:
    """What a part is divided by: its sum or maximum, or 1."""
    if balance == "none" or not part.any():
        return torch.ones_like(part[0])
    return part.sum() if balance == "sum" else part.max()
