"""Grids: the likelihood of the target after every patch, by layers and positions or heads."""

from dataclasses import dataclass, replace
from functools import partial
from math import nan
from typing import NamedTuple

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.html_view import View
from heta_lens._util.options import check_at_least
from heta_lens.plots.figures import exports_of, patch_grid
from heta_lens.plots.html_page import heat


class Patch(NamedTuple):
    """A cell of a grid: the likelihood of the target (``value``), and its place between corrupted (0) and clean (1)."""

    layer: int
    column: int
    """The position, or the head."""
    label: str
    value: float
    restored: float


@dataclass(frozen=True, eq=False, repr=False)
class Grid:
    """Likelihood of the target after every patch, in nats or on the chosen scale.

    ``clean`` and ``corrupted`` are the likelihoods without patches. Rows are ``layers``; ``columns`` are positions
    (heads, in a grid ``of_heads``) with their ``labels``. ``forwards`` is the cost.
    """

    title: str
    values: Float[Tensor, "layer column"]
    labels: tuple[str, ...]
    clean: float
    corrupted: float
    forwards: int
    layers: tuple[int, ...]
    columns: tuple[int, ...]
    of_heads: bool = False

    @property
    def restored(self) -> Float[Tensor, "layer column"]:
        """Share of the loss restored by every patch, from 0 to 1 for the whole loss; NaN without a loss."""
        return (self.values - self.corrupted) / ((self.clean - self.corrupted) or nan)

    def top(self, k: int = 10) -> list[Patch]:
        """Return the k patches with the largest restored shares, best first."""
        check_at_least("k", k, 1, whole=True)
        return sorted(self._patches(), key=lambda patch: -patch.restored)[:k]

    def check_something_lost(self) -> None:
        if self.clean == self.corrupted:
            raise ValueError("nothing was lost: the target is as likely in the clean run as in the corrupted one")

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row per patch."""
        return pd.DataFrame(self._patches())

    def plot(self) -> View:
        """Draw a heat map of the restored shares, layer 0 on top as in TransformerLens."""
        self.check_something_lost()
        names = [f"layer {layer}" for layer in self.layers]
        places = () if self.of_heads else self.columns
        note = f"restored: {self._range}" + "; the columns are the corrupted run's tokens" * (not self.of_heads)
        view = heat(self.title, names, self.labels, self.restored, note, places)
        figure = partial(patch_grid, self.title, self.restored, self.layers, self.labels, places, self._range)
        return replace(view, exports=exports_of(figure))

    def __repr__(self) -> str:
        if self.clean == self.corrupted:
            return f"{self.title}: nothing was lost, {self.clean:.4g} in both runs"
        best = ", ".join(
            f"layer {patch.layer} {patch.label!r} at {patch.column} {patch.restored:.2f}" for patch in self.top(3)
        )
        return f"{self.title}: {self._range}; most restored by {best}"

    @property
    def _range(self) -> str:
        return f"0 is the corrupted run ({self.corrupted:.4g}), 1 the clean run ({self.clean:.4g})"

    def _patches(self) -> list[Patch]:
        return [
            Patch(layer, column, label, value, restored)
            for layer, values, shares in zip(self.layers, self.values.tolist(), self.restored.tolist(), strict=True)
            for column, label, value, restored in zip(self.columns, self.labels, values, shares, strict=True)
        ]
