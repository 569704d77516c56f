"""The curvature S of Eq. 2: ``S_i = mean_k ‖Π_i H Π_i r_k‖₁``, with H the Hessian of g, or what stands for it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, TypeAlias

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.sample_statistics import Samples
from heta_lens.methods.heta.grouped_probes import without_cross_talk
from heta_lens.methods.heta.hessian import HessianFrom, HessianOperator
from heta_lens.methods.heta.low_rank import Energy
from heta_lens.methods.heta.pairs import Pairs, Sizes, entrywise_sizes, frobenius_sizes, mirrored, probed_sizes

Support: TypeAlias = Literal["block", "row"]
Norm: TypeAlias = Literal["hutchinson", "exact", "entrywise"]
Probes: TypeAlias = Callable[[Sequence[int]], Sequence[Float[Tensor, "probe d"]]]  # of each of these tokens

AT_ONCE = 32  # directions whose products are held at every position, before a token's own are kept
ENUMERABLE = 20  # `exact` visits every sign vector, so its length is limited: 2^20 of them


@dataclass(frozen=True)
class Curvature(Samples):
    """S as samples to be averaged: one per probe for ``hutchinson``, a single one for the exact norms.

    ``pairs`` are the tokens' interactions, where they were asked for; ``energy`` is how much of H a low rank has.
    ``cross_talk`` is what was taken out of S, where tokens shared HVPs, and ``readings`` are what they showed.
    """

    pairs: Pairs | None = None
    energy: Energy | None = None
    cross_talk: Float[Tensor, "pos"] | None = None
    readings: Sequence[Float[Tensor, "3 _"]] | None = None

    @classmethod
    def of(cls, drawn: Sequence[Float[Tensor, "_"]], pairs: Pairs | None = None) -> "Curvature":
        """Of each token's samples."""
        samples = Samples.uneven(drawn)
        return cls(samples.values, samples.counts, pairs)

    @classmethod
    def of_readings(cls, readings: Sequence[Float[Tensor, "3 _"]], pairs: Pairs | None = None) -> "Curvature":
        """Of what shared HVPs show at each token."""
        made = replace(cls.of(without_cross_talk(readings), pairs), readings=readings)
        if not any(own[2].any() for own in readings):
            return made
        sizes = Samples.uneven([own[0] for own in readings])
        return replace(made, cross_talk=sizes.mean - made.mean)

    @property
    def drawn(self) -> Sequence[Float[Tensor, "3 _"]]:
        """What products show at each token; without cross-talk, where none were shared."""
        if self.readings is not None:
            return self.readings
        both = zip(self.values.T, self.counts.tolist(), strict=True)
        alone = [values[:count] for values, count in both]
        return [torch.stack([sizes, sizes.square(), torch.zeros_like(sizes)]) for sizes in alone]


def curvature(
    hessian_from: HessianFrom,
    embeddings: Float[Tensor, "pos d"],
    probes: Probes,
    *,
    support: Support = "block",
    norm: Norm = "hutchinson",
    by_start: Sequence[Sequence[int]],
    at_once: int = AT_ONCE,
    pairs: bool = False,
) -> Curvature:
    """Of the tokens in ``by_start``, in that order; those of a list share the start of their runs.

    ``hessian_from(start)`` is H from a position on; ``probes(tokens)`` are the signs of each of these tokens.
    ``support="block"`` probes each token alone and looks at its own block of H; ``"row"`` probes all tokens at once.
    ``at_once`` products are held at every position before a token's own are kept. ``pairs`` asks for the tokens'
    interactions as well, which takes all of them.
    """
    n, d = embeddings.shape
    tokens = list(chain(*by_start))
    if support == "row" and norm == "hutchinson":
        signs = torch.stack(list(probes(range(n))), dim=1)
        return Curvature.of(list(hessian_from(0).matmat(signs)[:, tokens].abs().sum(-1).T))
    units = torch.eye(d).to(embeddings)
    directions = probes if norm == "hutchinson" else lambda group: [units] * len(group)
    if support == "block" and not pairs:
        own = _own_products(hessian_from, by_start, directions, at_once)
        return Curvature.of([_SAMPLES[norm](products) for products in own])
    samples, sizes = [], []
    starts = [(0, tokens)] if support == "row" else [(group[0], group) for group in by_start]
    for before, products in _all_products(hessian_from, starts, directions):
        later = products[:, before:]
        samples.append(_SAMPLES[norm](products if support == "row" else later[:, 0]))
        if pairs:
            sizes.append(_PAIR_SIZES[norm](later))
    return Curvature.of(samples, mirrored(sizes) if pairs else None)


def squared_gradient(gradient: Float[Tensor, "pos d"]) -> Float[Tensor, "1 pos"]:
    """``Σ_c (∂g/∂e_ic)²``, in place of S: the trace of the empirical Fisher's block."""
    return rearrange(gradient.square().sum(-1), "pos -> 1 pos")


def check_enumerable(n: int, d: int, support: Support) -> None:
    """Refuse the exact norm where the sign vectors of n tokens cannot all be visited."""
    length = d if support == "block" else n * d
    if length > ENUMERABLE:
        raise ValueError(
            f"norm='exact' visits all 2^{length} sign vectors here, and 2^{ENUMERABLE} is the most it will; "
            "use norm='hutchinson', whose standard error is reported"
        )


def expected_l1(rows: Float[Tensor, "row n"]) -> Float[Tensor, ""]:
    """``E‖rows · s‖₁`` over all sign vectors s (half of them: s and -s agree)."""
    n = rows.shape[1]
    total = rows.new_zeros(())
    for codes in torch.arange(2 ** (n - 1), device=rows.device).split(2**14):
        bits = rearrange(codes, "code -> code 1") >> torch.arange(n, device=rows.device) & 1
        total += ((1 - 2 * bits).to(rows) @ rows.T).abs().sum()
    return total / 2 ** (n - 1)


def _own_products(
    hessian_from: HessianFrom, by_start: Sequence[Sequence[int]], directions: Probes, at_once: int
) -> Iterator[Float[Tensor, "k d"]]:
    """For each token i and its directions u, ``H Π_i u`` at i alone; tokens of a list are done together."""
    for group in by_start:
        operator, own = hessian_from(group[0]), directions(group)
        for places in _few(range(len(group)), at_once // len(own[0])):
            positions = [group[place] - group[0] for place in places]  # in the operator, which begins with the group
            yield from _block_products(operator, positions, [own[place] for place in places], at_once)
        del operator  # and its graph, before the next is built


def _block_products(
    operator: HessianOperator, positions: Sequence[int], directions: Sequence[Float[Tensor, "_ d"]], at_once: int
) -> Sequence[Float[Tensor, "_ d"]]:
    """``H_ii u`` at each of these positions i, for the directions u of its own."""
    counts = [len(own) for own in directions]
    row_positions = torch.repeat_interleave(torch.tensor(positions), torch.tensor(counts)).split(at_once)
    rows = torch.cat(list(directions)).split(at_once)
    span = slice(positions[0], positions[-1] + 1)  # outside which every direction is 0
    products = [_at_own_positions(operator, span, *both) for both in zip(row_positions, rows, strict=True)]
    return torch.cat(products).split(counts)


def _at_own_positions(
    operator: HessianOperator, span: slice, positions: Int[Tensor, "row"], directions: Float[Tensor, "row d"]
) -> Float[Tensor, "row d"]:
    """Each direction's product, read at the one position where the direction stands."""
    rows = torch.arange(len(positions))
    placed = directions.new_zeros(len(rows), span.stop - span.start, directions.shape[1])
    placed[rows, positions - span.start] = directions
    return operator.matmat(placed, span)[rows, positions]


def _all_products(
    hessian_from: HessianFrom, starts: Sequence[tuple[int, Sequence[int]]], directions: Probes
) -> Iterator[tuple[int, Float[Tensor, "k part d"]]]:
    """For each token i and its directions u, ``H Π_i u`` from where its run starts; and how much is before i's own."""
    for start, group in starts:
        operator = hessian_from(start)
        for i, own in zip(group, directions(group), strict=True):
            yield i - start, torch.cat([operator.matmat(few, i - start) for few in own.split(AT_ONCE)])
        del operator


def _few(group: Sequence[int], size: int) -> list[Sequence[int]]:
    return [group[at : at + max(1, size)] for at in range(0, len(group), max(1, size))]


_SAMPLES: dict[Norm, Callable[[Float[Tensor, "k *part d"]], Float[Tensor, "sample"]]] = {
    "hutchinson": lambda products: products.abs().flatten(1).sum(1),
    "exact": lambda products: expected_l1(products.flatten(1))[None],
    "entrywise": lambda products: products.abs().sum()[None],
}
_PAIR_SIZES: dict[Norm, Callable[[Float[Tensor, "k later d"]], Sizes]] = {
    "hutchinson": probed_sizes,
    "exact": frobenius_sizes,
    "entrywise": entrywise_sizes,
}
