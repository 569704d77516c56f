"""Equation 4: M, S and I put together, how much each of them counts, and how sure the result is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.numerics import Divergence, Samples, powered_ends, student_t
from heta_lens._util.text import short_repr
from heta_lens._util.work import Done
from heta_lens.diagnostics import rank_correlation, shares, sink_mass, standard_error
from heta_lens.model.batching import Batches
from heta_lens.prediction.masking import masked_copies
from heta_lens.prediction.target import log_softmax

# --------------------------------------------------------------------------------------------------------- information
# The information I of Eq. 3: how far the predicted distribution moves when one token is masked.


Logits = Callable[[Float[Tensor, "copy pos d"]], Float[Tensor, "copy target vocab"]]
Objective = Callable[[Float[Tensor, "copy vocab"], Float[Tensor, "copy vocab"]], Float[Tensor, "copy"]]
"""g, of logits and the log-probabilities that they make."""


class Information(NamedTuple):
    """``divergence`` is I; ``drop`` says how much less likely the target becomes, ``g(X) - g(X with i masked)``."""

    divergence: Float[Tensor, "target pos"]
    drop: Float[Tensor, "target pos"]


class Reference(NamedTuple):
    """What is predicted of a target with nothing masked: the distribution, and the value of its g."""

    log_probs: Float[Tensor, "vocab"]
    value: Float[Tensor, ""]
    objective: Objective


@dataclass(frozen=True, eq=False)
class Clean:
    """What is predicted of each target with nothing masked, and how a masked prediction is compared with it."""

    references: Sequence[Reference]
    divergence: Divergence
    lengths: Sequence[int]

    def compared(
        self, masked: Float[Tensor, "copy reached vocab"], positions: Int[Tensor, "copy"]
    ) -> Float[Tensor, "copy kind target"]:
        """Divergence and drop of each copy, with the token at one of these positions masked; ``masked`` are logits of
        the last targets, whose contexts reach the first of them."""
        rows = masked.new_zeros(len(Information._fields), len(self.references), len(positions))
        first = len(self.references) - masked.shape[1]
        for target, (logits, moved) in enumerate(
            zip(masked.unbind(1), log_softmax(masked).unbind(1), strict=True), first
        ):
            log_probs, value, objective = self.references[target]
            reached = int((positions < self.lengths[target]).sum())  # the first ones: positions ascend
            rows[0, target, :reached] = self.divergence(log_probs, moved[:reached])
            rows[1, target, :reached] = value - objective(logits[:reached], moved[:reached])
        return rearrange(rows, "kind target copy -> copy kind target")


def information(
    logits_from: Callable[[int], Logits],
    embeddings: Float[Tensor, "pos d"],
    mask: Float[Tensor, "d"],
    clean: Sequence[Reference],
    divergence: Divergence,
    *,
    lengths: Sequence[int] | None = None,
    by_start: Sequence[Sequence[int]],
    batches: Batches,
    done: Done,
    floor: bool = False,
) -> Information:
    """``I[t, i] = D(P_t, P_t with token i masked)`` of tokens that are listed by the start which their runs share.

    One set of masked forwards serves every target. Targets have contexts of these ``lengths`` (ascending; all of it, if
    not given), and what lies after a target's context does not change it: ``logits_from(start)`` answers for those
    targets whose context reaches ``start``. A token whose embedding is the mask already changes nothing, and is not
    run; that, like a token in no list, is 0.

    ``floor`` also runs the clean context in the first and last batch of every list. It differs from the prediction by
    rounding alone, and so does a token that moves no further: that is 0 as well.
    """
    reference = Clean(clean, divergence, lengths or [len(embeddings)] * len(clean))
    moved = clean[0].log_probs.new_zeros(len(Information._fields), len(clean), len(embeddings))
    rounding = moved.new_zeros(len(Information._fields), len(clean), 1)
    changed = (embeddings != mask).any(-1).tolist()
    for group in ([i for i in group if changed[i]] for group in by_start):
        if group:
            start = group[0]
            run = partial(_masked_one_by_one, logits_from(start), embeddings, mask, start, reference, done)
            around = torch.tensor([[group[0], False], *([i, True] for i in group), [group[-1], False]])
            copies = around if floor else around[1:-1]
            rows = batches.map(run, copies, len(embeddings) - start)
            rows = rearrange(rows, "copy kind target -> kind target copy")
            moved[..., group] = rows[..., copies[:, 1].bool()]
            if floor:
                rounding = torch.maximum(rounding, rows[..., [0, -1]].abs().amax(-1, keepdim=True))
    return Information(*moved.masked_fill(moved.abs() <= rounding, 0))


def _masked_one_by_one(
    logits: Logits,
    embeddings: Float[Tensor, "pos d"],
    mask: Float[Tensor, "d"],
    start: int,
    clean: Clean,
    done: Done,
    copies: Int[Tensor, "copy 2"],
) -> Float[Tensor, "copy kind target"]:
    """A copy of the context from ``start`` on for each of these positions, with the token there masked, or clean."""
    positions, masked = copies.unbind(1)
    vectors = torch.where(masked.bool()[:, None].to(mask.device), mask, embeddings[positions])
    rows = clean.compared(logits(masked_copies(embeddings[start:], positions - start, vectors)), positions)
    done(len(positions))
    return rows


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
