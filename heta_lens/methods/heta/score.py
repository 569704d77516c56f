"""Equation 4: the score made of M, S and I, the share of each part, and the standard errors."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias, cast

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens.diagnostics import rank_correlation

Balance: TypeAlias = Literal["none", "sum", "max"]
Combine: TypeAlias = Literal["sum", "geometric"]


@dataclass(frozen=True, repr=False)
class Parts:
    """M, S (as samples) and I, with the weights of S and I; a part whose weight is 0 is None.

    ``combine`` adds the weighted parts, or multiplies powers of them; I may be signed in a product.
    """

    gate: Float[Tensor, "pos"]
    curvature: Float[Tensor, "sample pos"] | None
    information: Float[Tensor, "pos"] | None
    beta: float | int
    gamma: float | int
    combine: Combine = "sum"

    @property
    def power(self) -> float:
        """Exponent w of S in the geometric score ``M · S^w · I^(1-w)``."""
        return self.beta / (self.beta + self.gamma)

    @cached_property
    def values(self) -> dict[str, Float[Tensor, "pos"]]:
        curvature = None if self.curvature is None else self.curvature.mean(0)
        parts = {"gate": self.gate, "curvature": curvature, "information": self.information}
        return {name: part for name, part in parts.items() if part is not None}

    def terms(self, balance: Balance) -> dict[str, Float[Tensor, "pos"]]:
        """Return the terms of Eq. 4, ``M β S`` and ``M γ I``, with S and I divided by sum or maximum if balanced."""
        weights = {"curvature": self.beta, "information": self.gamma}
        return {
            name: self.gate * weights[name] * scaled(part, balance)
            for name, part in self.values.items()
            if name in weights
        }

    def score(self, balance: Balance) -> Float[Tensor, "pos"]:
        """Return Eq. 4, or the gate alone without S and I; or the geometric score, which no balance changes."""
        if self.combine == "geometric":
            assert self.curvature is not None and self.information is not None
            sizes = self.values["curvature"] ** self.power * self.information.abs() ** (1 - self.power)
            return self.gate * sizes * self.information.sign()
        terms = list(self.terms(balance).values())
        return torch.stack(terms).sum(0) if terms else self.gate

    def standard_errors(self, balance: Balance) -> dict[str, Float[Tensor, "pos"] | None]:
        """Return the standard errors of the score and of each part. Only the probes are random."""
        errors: dict[str, Tensor | None] = dict.fromkeys(("scores", *self.values))
        if self.curvature is None:
            return errors
        errors["curvature"] = own = standard_error(self.curvature, torch.clone)
        if self.combine == "geometric":
            if own is not None:  # 0 where S or I is, which the root has no derivative at
                score, size = self.score(balance).abs(), self.values["curvature"]
                errors["scores"] = torch.where(score > 0, self.power * score * own / size, 0)
        else:
            errors["scores"] = standard_error(
                self.curvature, lambda mean: replace(self, curvature=mean[None]).score(balance)
            )
        return errors

    @property
    def where_curvature_decides(self) -> frozenset[int]:
        """Tokens with an I above the average: in a product, a small S decides their score."""
        if self.combine == "sum" or self.information is None:
            return frozenset()
        sizes = self.information.abs()
        return frozenset((sizes > sizes.mean()).nonzero()[:, 0].tolist())

    @cached_property
    def rank_correlation(self) -> float:
        """Spearman's correlation of S and I; NaN if S or I is constant."""
        return rank_correlation(self.values["curvature"], self.values["information"].abs())


def scaled(part: Float[Tensor, "pos"], balance: Balance) -> Float[Tensor, "pos"]:
    return part / divisor(part, balance)


def divisor(part: Float[Tensor, "pos"], balance: Balance) -> Float[Tensor, ""]:
    """Return the divisor of a part: its sum or maximum, or 1."""
    if balance == "none" or not part.any():
        return torch.ones_like(part[0])
    return part.sum() if balance == "sum" else part.max()


def standard_error(
    samples: Float[Tensor, "sample pos"], score: Callable[[Float[Tensor, "pos"]], Float[Tensor, "pos"]]
) -> Float[Tensor, "pos"] | None:
    """Return the standard error of ``score(mean of the samples)`` by the delta method; None for a single sample.

    The function carries each sample through the score's derivative at the mean, which accounts for samples that tokens
    share or that the score divides by their sum.
    """
    count, mean = len(samples), samples.mean(0)
    if count < 2:
        return None
    steps = (samples - mean) / (count * (count - 1)) ** 0.5
    moved = torch.stack([cast(Tensor, torch.autograd.functional.jvp(score, mean, step)[1]) for step in steps])
    return moved.square().sum(0).sqrt()
