"""The curvature S of Eq. 2: ``S_i = mean_k ‖Π_i H Π_i r_k‖₁``, with H the Hessian of g, or what stands for it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from heta_lens.hessian import ColumnsFrom

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

    samples: Float[Tensor, "sample pos"]
    pairs: Pairs | None


def curvature(
    columns_from: ColumnsFrom,
    embeddings: Float[Tensor, "pos d"],
    probes: Probes,
    *,
    support: Support = "block",
    norm: Norm = "hutchinson",
    chunk: int,
    pairs: bool = False,
) -> Curvature:
    """``columns_from(start)`` multiplies with H from a position on; ``probes(i)`` are token i's signs.

    ``support="block"`` probes each token alone and looks at its own block of H; ``"row"`` probes all tokens at once.
    ``chunk`` tokens share a start. ``pairs`` asks for the tokens' interactions as well.
    """
    n, d = embeddings.shape
    if support == "row" and norm == "hutchinson":
        signs = torch.stack([probes(i) for i in range(n)], dim=1).to(embeddings)
        return Curvature(columns_from(0)(slice(None), signs).abs().sum(-1), None)
    units = torch.eye(d).to(embeddings)
    directions = (lambda i: probes(i).to(embeddings)) if norm == "hutchinson" else lambda _: units
    size = n if support == "row" else chunk
    samples, sizes = [], []
    for before, products in _token_products(columns_from, n, directions, size, everywhere=pairs or support == "row"):
        later = products[:, before:]
        samples.append(_SAMPLES[norm](products if support == "row" else later[:, :1]))
        if pairs:
            sizes.append(_pair_sizes(later, norm))
    return Curvature(torch.stack(samples, dim=-1), _mirrored(sizes) if pairs else None)


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


def _token_products(
    columns_from: ColumnsFrom, n: int, directions: Probes, chunk: int, everywhere: bool
) -> Iterator[tuple[int, Float[Tensor, "k part d"]]]:
    """For each token i and its directions u, ``H Π_i u`` at i alone, or ``everywhere`` from i's chunk's start on.

    With how many positions there are before i's own.
    """
    for start in range(0, n, chunk):
        columns = columns_from(start)
        for i in range(start, min(start + chunk, n)):
            place = slice(None) if everywhere else slice(i - start, i - start + 1)
            products = [columns(i - start, some)[:, place] for some in directions(i).split(AT_ONCE)]
            yield i - start if everywhere else 0, torch.cat(products)
        del columns  # its graph, before the next is built


_SAMPLES: dict[Norm, Callable[[Float[Tensor, "k part d"]], Float[Tensor, "sample"]]] = {
    "hutchinson": lambda products: products.abs().sum((1, 2)),
    "exact": lambda products: expected_l1(rearrange(products, "k part d -> k (part d)"))[None],
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
