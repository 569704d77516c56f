"""What patching does, by layer and by position or head: in the layout of TransformerLens' own patching grids."""

from dataclasses import dataclass, replace
from functools import partial
from math import nan
from typing import NamedTuple

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.html_view import View
from heta_lens._util.options import check_at_least
from heta_lens.plots.figure_files import exports_of
from heta_lens.plots.heat_map import heat
from heta_lens.plots.matrix_figure import patch_grid


class Patch(NamedTuple):
    """A cell: what was patched, and how likely the target was then, between corrupted (0) and clean (1)."""

    layer: int
    column: int
    """The position, or the head."""
    label: str
    value: float
    restored: float


@dataclass(frozen=True, eq=False, repr=False)
class Grid:
    """How likely the target is after each patch, in nats or on the chosen scale.

    ``clean`` is how likely it is in the clean run, ``corrupted`` in the corrupted one. ``layers`` and ``columns``
    (positions; heads, if it is a grid ``of_heads``) say what was patched, all from the first on if none are named, and
    ``labels`` what is written over the columns. ``forwards`` is what it cost.
    """

    title: str
    values: Float[Tensor, "layer column"]
    labels: tuple[str, ...]
    clean: float
    corrupted: float
    forwards: int
    layers: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    of_heads: bool = False

    def __post_init__(self) -> None:
        for name, count in zip(("layers", "columns"), self.values.shape, strict=True):
            object.__setattr__(self, name, getattr(self, name) or tuple(range(count)))

    @property
    def restored(self) -> Float[Tensor, "layer column"]:
        """The share of what was lost that each patch brings back: 0 is nothing, 1 all of it; NaN if none was lost."""
        lost = self.clean - self.corrupted
        return (self.values - self.corrupted) / (lost or nan)

    def top(self, k: int = 10) -> list[Patch]:
        """The k patches that bring back most, best first."""
        check_at_least("k", k, 1, whole=True)
        order = self.values.flatten().argsort(descending=self.clean >= self.corrupted, stable=True)[:k].tolist()
        patches = self._patches()
        return [patches[place] for place in order]

    def check_something_lost(self) -> None:
        """Refuse a grid of which nothing can be restored."""
        if self.clean == self.corrupted:
            raise ValueError("nothing was lost: the target is as likely in the clean run as in the corrupted one")

    def to_frame(self) -> pd.DataFrame:
        """One row per patch."""
        return pd.DataFrame(self._patches())

    def _patches(self) -> list[Patch]:
        both = zip(self.values.tolist(), self.restored.tolist(), strict=True)
        return [
            Patch(layer, column, label, value, restored)
            for layer, rows in zip(self.layers, both, strict=True)
            for column, label, value, restored in zip(self.columns, self.labels, *rows, strict=True)
        ]

    def plot(self) -> View:
        """A heat map of what was restored, layer 0 on top as TransformerLens has it."""
        self.check_something_lost()
        names = [f"layer {layer}" for layer in self.layers]
        places = () if self.of_heads else self.columns
        view = heat(self.title, names, self.labels, self.restored, f"restored: {self._range}", places)
        figure = partial(patch_grid, self.title, self.restored, self.layers, self.labels, places, self._range)
        return replace(view, exports=exports_of(figure))

    def __repr__(self) -> str:
        if self.clean == self.corrupted:
            return f"{self.title}: nothing was lost, {self.clean:.4g} in both runs"
        best = ", ".join(f"layer {patch.layer} {self._named(patch)} {patch.restored:.2f}" for patch in self.top(3))
        return f"{self.title}: {self._range}; most restored by {best}"

    def _named(self, patch: Patch) -> str:
        """By its label, and its place where others are called the same."""
        return repr(patch.label) + (f" at {patch.column}" if self.labels.count(patch.label) > 1 else "")

    @property
    def _range(self) -> str:
        return f"0 is {self.corrupted:.4g}, 1 is {self.clean:.4g}"
