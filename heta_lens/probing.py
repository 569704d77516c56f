"""Finding S piece by piece: every token with as many probes, or each with as many as its score needs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens.batches import Batches, per_product
from heta_lens.curvature import (
    Curvature,
    Norm,
    Probes,
    Support,
    block_samples,
    curvature,
    rademacher,
    squared_gradient,
)
from heta_lens.hessian import ColumnsFrom, Energy, gaussian, low_rank, tail_energy
from heta_lens.parts import Balance, Parts
from heta_lens.pieces import Piece
from heta_lens.progress import Done
from heta_lens.samples import Samples
from heta_lens.sure import half_widths, probes_wanted, upper
from heta_lens.variants import Kind
from heta_lens.windows import averaged


@dataclass(frozen=True)
class Probing:
    """What stands for H, and how it is probed; ``done`` hears of every product."""

    kind: Kind
    support: Support
    norm: Norm
    probes: int
    seed: int
    rank: int
    pairs: bool
    batches: Batches
    done: Done

    def everywhere(self, place: Sequence[Piece], length: int) -> tuple[Curvature, dict[str, Any]]:
        """S, averaged over the pieces that score a token, and what a low rank leaves out of H."""
        seen = [(piece.scored, *self._of(piece)) for piece in place]
        values = averaged([bent.samples.values for _, bent, _ in seen], [scored for scored, _, _ in seen], length)
        facts = tail_energy([energy for _, _, energy in seen if energy])
        return Curvature(Samples.even(values), seen[0][1].pairs), facts

    def until_sure(
        self, place: Sequence[Piece], parts: Parts, balance: Balance, tolerance: float | int | None, prune: float | int
    ) -> tuple[Curvature, dict[str, Any]]:
        """S from as many probes of each token as its score needs; the pieces score every token once."""
        drawn = [torch.empty_like(parts.gate[:0])] * len(parts.gate)
        bound = torch.cat([self._bound(piece) for piece in place]) if prune else None
        while True:
            parts = replace(parts, curvature=(samples := Samples.uneven(drawn)))
            wanted = probes_wanted(parts, balance, bound, tolerance, prune, self.probes).tolist()
            if self.support == "row":
                wanted = [max(wanted)] * len(wanted)
            if wanted == (have := samples.counts.tolist()):
                break
            for i, more in chain(*(self._more(piece, have, wanted) for piece in place)):
                drawn[i] = torch.cat([drawn[i], more])
        facts: dict[str, Any] = {"probes": samples.counts, "pruned": have.count(0)}
        if facts["pruned"]:
            facts["balanced"] = None  # which would need every token's S
        if tolerance is not None:
            width = tolerance * parts.score(balance).max()
            facts["unsure"] = int((half_widths(parts, balance) > width).sum())
        return Curvature(samples, None), facts

    def _of(self, piece: Piece) -> tuple[Curvature, Energy | None]:
        """S of one piece; and for a low rank, how much of H it has."""
        if self.kind == "squared_gradient":
            return Curvature(Samples.even(squared_gradient(piece.gradient())), None), None
        states, columns_from, probes = piece.states, self._columns_from(piece), self._signs(piece)
        each = self.probes if self.norm == "hutchinson" else states.shape[1]  # products for a token
        groups = piece.groups(range(*piece.scored), per_product(each))
        how = partial(
            curvature, embeddings=states, probes=probes, support=self.support, norm=self.norm, at_once=self.batches.size
        )
        if self.kind != "low_rank":
            return how(columns_from, groups=groups, pairs=self.pairs), None
        every = torch.stack([probes(i) for i in range(len(states))], 1)
        low = low_rank(columns_from(0), self.rank, partial(gaussian, self.seed, piece.window.start), every)
        own = self.support == "block" and not self.pairs  # a token's own block is all that is looked at
        cut, tokens = partial(low.columns_from, length=1 if own else None), [*chain(*groups)]
        return how(cut, groups=[[i] for i in tokens] if own else [tokens], pairs=self.pairs), low.energy

    def _more(
        self, piece: Piece, have: Sequence[int], wanted: Sequence[int]
    ) -> Iterator[tuple[int, Float[Tensor, "_"]]]:
        """Further samples of the tokens that a piece scores, by position."""
        missing = {i: range(have[i], wanted[i]) for i in range(*piece.scored) if wanted[i] > have[i]}
        if not missing:
            return
        first, each = piece.window.start, sum(map(len, missing.values())) / len(missing)
        groups = piece.groups(list(missing), per_product(each))
        if self.support == "row":
            some = range(have[0], wanted[0])
            signs = self._signs(piece, lambda _: some)
            every = curvature(self._columns_from(piece), piece.states, signs, support="row", groups=groups)
            yield from zip(missing, every.samples.values.T, strict=True)
        else:
            signs = self._signs(piece, lambda i: missing[first + i])
            found = block_samples(self._columns_from(piece), signs, groups, self.batches.size)
            yield from zip(missing, found, strict=True)

    def _bound(self, piece: Piece) -> Float[Tensor, "pos"]:
        """What the curvature of the tokens that a piece scores is hardly above."""
        groups = piece.groups(range(*piece.scored), per_product(self.probes))
        signs = self._signs(piece)
        return upper(curvature(self._columns_from(piece), piece.states, signs, support="row", groups=groups).samples)

    def _columns_from(self, piece: Piece) -> ColumnsFrom:
        return piece.columns_from(self.kind == "gauss_newton", self.batches, self.done)

    def _signs(self, piece: Piece, which: Callable[[int], range] | None = None) -> Probes:
        """Probes of the tokens in a piece; all of them, or ``which`` of a token's."""
        states, start = piece.states, piece.window.start

        def signs(i: int) -> Float[Tensor, "probe d"]:
            some = range(self.probes) if which is None else which(i)
            return rademacher(self.seed, start + i, some.stop, states.shape[1])[some.start :].to(states)

        return signs
