"""The curvature S of Eq. 2: ``S_i = mean_k ‖Π_i H Π_i r_k‖₁``, with H the Hessian of g, or what stands for it."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from heta_lens.hessian import ColumnsFrom
from heta_lens.samples import Samples

Support: TypeAlias = Literal["block", "row"]
Norm: TypeAlias = Literal["hutchinson", "exact", "entrywise"]
Probes: TypeAlias = Callable[[int], Float[Tensor, "probe d"]]

AT_ONCE = 32  # directions whose products are held at every position, before a token's own are kept
ENUMERABLE = 20  # `exact` visits every sign vector, so its length is limited: 2^20 of them


class Pairs(NamedTuple):
    """The size ``‖H_ij‖`` of every pair of tokens' block, symmetric, and its standard error where there is chance."""

    sizes: Float[Tensor, "pos pos"]
    standard_errors: Float[Tensor, "pos pos"] | None


class Curvature(NamedTuple):
    """S as samples to be averaged: one a probe for ``hutchinson``, a single one for the exact norms."""

    samples: Samples
    pairs: Pairs | None


def curvature(
    columns_from: ColumnsFrom,
    embeddings: Float[Tensor, "pos d"],
    probes: Probes,
    *,
    support: Support = "block",
    norm: Norm = "hutchinson",
    groups: Sequence[Sequence[int]],
    at_once: int = AT_ONCE,
    pairs: bool = False,
) -> Curvature:
    """Of the tokens in ``groups``, in that order; tokens of a group share a start.

    ``columns_from(start)`` multiplies with H from a position on; ``probes(i)`` are token i's signs.
    ``support="block"`` probes each token alone and looks at its own block of H; ``"row"`` probes all tokens at once.
    ``at_once`` products are held at every position before a token's own are kept. ``pairs`` asks for the tokens'
    interactions as well, which takes all of them.
    """
    n, d = embeddings.shape
    wanted = list(chain(*groups))
    if support == "row" and norm == "hutchinson":
        signs = torch.stack([probes(i) for i in range(n)], dim=1).to(embeddings)
        return Curvature(Samples.even(columns_from(0)(slice(None), signs)[:, wanted].abs().sum(-1)), None)
    units = torch.eye(d).to(embeddings)
    directions = (lambda i: probes(i).to(embeddings)) if norm == "hutchinson" else lambda _: units
    if support == "block" and not pairs:
        found = [_SAMPLES[norm](products) for products in _own_products(columns_from, groups, directions, at_once)]
        return Curvature(Samples.even(torch.stack(found, dim=-1)), None)
    samples, sizes = [], []
    starts = [(0, wanted)] if support == "row" else [(group[0], group) for group in groups]
    for before, products in _all_products(columns_from, starts, directions):
        later = products[:, before:]
        samples.append(_SAMPLES[norm](products if support == "row" else later[:, 0]))
        if pairs:
            sizes.append(_pair_sizes(later, norm))
    return Curvature(Samples.even(torch.stack(samples, dim=-1)), _mirrored(sizes) if pairs else None)


def block_samples(
    columns_from: ColumnsFrom, probes: Probes, groups: Sequence[Sequence[int]], at_once: int = AT_ONCE
) -> list[Float[Tensor, "_"]]:
    """Eq. 2's samples of each token in ``groups``, in that order; some may have more probes than others."""
    return [_SAMPLES["hutchinson"](products) for products in _own_products(columns_from, groups, probes, at_once)]


def squared_gradient(gradient: Float[Tensor, "pos d"]) -> Float[Tensor, "1 pos"]:
    """``Σ_c (∂g/∂e_ic)²``, in place of S: the trace of the empirical Fisher's block."""
    return rearrange(gradient.square().sum(-1), "pos -> 1 pos")


def rademacher(seed: int, position: int, probes: int, d: int) -> Float[Tensor, "probe d"]:
    """Random signs of one token. Every (seed, position) has its own generator, so nothing else can change them."""
    bits = np.random.default_rng([seed, position]).integers(2, size=(probes, d))
    return torch.from_numpy(2.0 * bits - 1.0)


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
    columns_from: ColumnsFrom, groups: Sequence[Sequence[int]], directions: Probes, at_once: int
) -> Iterator[Float[Tensor, "k d"]]:
    """For each token i and its directions u, ``H Π_i u`` at i alone; tokens of a group are done together."""
    for group in groups:
        columns = columns_from(group[0])
        for some in _few(group, at_once // len(directions(group[0]))):
            each = [directions(i) for i in some]
            places = torch.repeat_interleave(torch.tensor(some) - some[0], torch.tensor([len(one) for one in each]))
            part = slice(some[0] - group[0], some[-1] + 1 - group[0])
            own = []
            for at, rows in zip(places.split(at_once), torch.cat(each).split(at_once), strict=True):
                spread = rows.new_zeros(len(rows), part.stop - part.start, rows.shape[1])
                every = torch.arange(len(rows))
                spread[every, at] = rows
                own.append(columns(part, spread)[every, part.start + at])
            yield from torch.cat(own).split([len(one) for one in each])
        del columns  # its graph, before the next is built


def _all_products(
    columns_from: ColumnsFrom, starts: Sequence[tuple[int, Sequence[int]]], directions: Probes
) -> Iterator[tuple[int, Float[Tensor, "k part d"]]]:
    """For each token i and its directions u, ``H Π_i u`` from where its run starts; and how much is before i's own."""
    for start, group in starts:
        columns = columns_from(start)
        for i in group:
            yield i - start, torch.cat([columns(i - start, some) for some in directions(i).split(AT_ONCE)])
        del columns


def _few(group: Sequence[int], size: int) -> list[Sequence[int]]:
    return [group[at : at + max(1, size)] for at in range(0, len(group), max(1, size))]


_SAMPLES: dict[Norm, Callable[[Float[Tensor, "k *part d"]], Float[Tensor, "sample"]]] = {
    "hutchinson": lambda products: products.abs().flatten(1).sum(1),
    "exact": lambda products: expected_l1(products.flatten(1))[None],
    "entrywise": lambda products: products.abs().sum()[None],
}


def _pair_sizes(products: Float[Tensor, "k later d"], norm: Norm) -> tuple[Tensor, Tensor | None]:
    """Of one token with itself and each later one, and their standard errors.

    Probes give the Frobenius norm, on which, unlike Eq. 2's, a block and its transpose agree:
    ``E‖H_ji r‖₂² = ‖H_ij‖_F²``. The entrywise norm gives entrywise sizes.
    """
    if norm == "entrywise":
        return products.abs().sum((0, 2)), None
    squares = products.square().sum(-1)
    if norm == "exact":
        return squares.sum(0).sqrt(), None
    size = squares.mean(0).sqrt()
    if len(squares) < 2:
        return size, None
    spread = squares.std(0) / len(squares) ** 0.5  # of the mean square, whose root has 1 / (2 size) of it
    return size, torch.where(size > 0, spread / (2 * size), 0)


def _mirrored(rows: list[tuple[Tensor, Tensor | None]]) -> Pairs:
    """Whole matrices from rows that begin at the diagonal."""
    sizes, errors = zip(*rows, strict=True)
    chance = [error for error in errors if error is not None]
    return Pairs(_symmetric(sizes), _symmetric(chance) if chance else None)


def _symmetric(rows: Sequence[Tensor]) -> Float[Tensor, "pos pos"]:
    upper = torch.stack([torch.nn.functional.pad(row, (len(rows) - len(row), 0)) for row in rows])
    return upper + upper.triu(1).T
