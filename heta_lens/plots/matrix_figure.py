"""Matrices of scores as heat maps for a paper: targets by sources, pairs of tokens, and what patching restores."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.html_view import View
from heta_lens._util.python import check_extra, extra
from heta_lens.attribution import Attribution
from heta_lens.plots.figures import INK, NEEDED_BY, QUIET, colours_of, draw_scale, drawable, looks, picture
from heta_lens.plots.scales import deepest, held, hidden_in, sink
from heta_lens.span_attribution import SpanAttribution

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any


WIDTH, MARGIN = 6.3, 1.6  # inches: of all, and of what is beside and around the map
CELL, LEAST, MOST = 0.2, 0.5, 6.0  # inches: of a cell where there is room; of the height of the map
TALL = 2  # times as high as wide are cells at most, where rows are something else than columns
LETTER, SMALLEST = 7.0, 5.0  # points: of a label's letters
LINE = 1.2  # as high as its letters
LONGEST = 16  # letters of a label


class Side(NamedTuple):
    """What rows or columns are, what is written at each, and where in the text it is, if anywhere."""

    name: str
    labels: Sequence[str]
    places: Sequence[int] = ()


@dataclass(frozen=True)
class Map:
    """Values with what is written at rows and columns; NaN where there is none."""

    title: str
    values: Float[Tensor, "row column"]
    down: Side
    across: Side
    scale: str
    note: str = ""
    divider: int = 0
    """Before which column a line is drawn, if before any."""
    end: float | None = None
    """Which size has the deepest colour, if not what the values say."""


class Labels(NamedTuple):
    """Labels that have room, and the size of their letters in points."""

    rows: Sequence[int]
    texts: Sequence[str]
    size: float

    @classmethod
    def of(cls, side: Side, inches: float) -> "Labels":
        """All of them, smaller if need be, or as many as can be read, with their places."""
        points, count = 72 * inches / LINE, len(side.labels)
        if (size := points / count) >= SMALLEST:
            return cls(range(count), side.labels, min(LETTER, size))
        rows = range(0, count, ceil(count * LETTER / points))
        return cls(
            rows, [f"{side.labels[row]}  {side.places[row] if side.places else ''}".rstrip() for row in rows], LETTER
        )


def matrix(attribution: Attribution | SpanAttribution, *, special: bool = False) -> View:
    """A heat map; a notebook shows it, and ``.save("matrix.pdf")`` keeps it, or ``.svg`` or ``.png``.

    Of a span: the scores of every source (x) for every target (y), grey where a source does not come before the target.
    Of an attribution with ``interactions``: every pair of tokens, grey on the diagonal, which is no pair.
    Special tokens and a chat template's are left out, except with ``special=True``.
    """
    if isinstance(attribution, SpanAttribution):
        shown = _of_span(attribution, special=special)
    else:
        shown = _of_pairs(attribution, special=special)
    check_extra("matplotlib", NEEDED_BY)
    return picture(shown.title, lambda: _figure(shown), {})


def patch_grid(
    title: str,
    restored: Float[Tensor, "layer column"],
    layers: Sequence[int],
    labels: Sequence[str],
    places: Sequence[int] = (),
    note: str = "",
) -> Figure:
    """What each patch restored, by layer and by position or head: layer 0 on top, white at 0.

    ``layers`` are the rows' numbers, ``labels`` what is written at the columns, and ``places`` where these are in the
    text, which is written too where not all labels have room.
    """
    check_extra("matplotlib", NEEDED_BY)
    down = Side("layer", [str(layer) for layer in layers])
    return _figure(Map(title, restored, down, Side("", _labels(labels), places), "restored", note))


def _of_span(span: SpanAttribution, *, special: bool = False) -> Map:
    summed, count = span.summed, len(span.tokens) - 1
    sources = (~hidden_in(span) | special)[:count].nonzero()[:, 0].tolist()
    values = span.matrix.clone()
    for row, step in enumerate(span.steps):
        values[row, len(step) :] = torch.nan
    down = Side("target", _labels(span.targets), [len(step) for step in span.steps])
    across = Side("source", _labels([span.tokens[at] for at in sources]), sources)
    scaled = torch.tensor([at for at in sources if at >= span.start or not sink(summed)[at]], dtype=torch.long)
    end = deepest(values[:, scaled if len(scaled) else sources].nan_to_num(0.0).flatten())
    several = "grey: not before the target; the line: where the answer begins" if len(span) > 1 else ""
    divider = sum(at < span.start for at in sources) if len(span) > 1 else 0
    note = "; ".join(filter(None, [several, held(summed)]))
    return Map(span.title, values[:, sources], down, across, "score", note, divider, end)


def _of_pairs(attribution: Attribution, *, special: bool = False) -> Map:
    if attribution.interactions is None:
        raise ValueError(
            "this attribution has no pairs of tokens: give attribute interactions=True, or use attribute_span for a "
            "matrix of targets and sources"
        )
    rows = (~attribution.hidden | special).nonzero()[:, 0]
    values = attribution.interactions[rows][:, rows].fill_diagonal_(torch.nan)
    side = Side("token", _labels([attribution.tokens[row] for row in rows]), attribution.positions[rows].tolist())
    return Map(attribution.title, values, side, side, "interaction", "grey: no pair")


def _labels(tokens: Sequence[str]) -> tuple[str, ...]:
    """Tokens as labels: without spaces around them, in quotes where they are nothing else."""
    return tuple(_label(token.strip() or repr(token)) for token in tokens)


def _label(token: str) -> str:
    return drawable(token if len(token) <= LONGEST else token[: LONGEST - 1] + "…")


# ------------------------------------------------------------------------------------------------------------ drawing
def _figure(shown: Map) -> Figure:
    title, note = drawable(shown.title), drawable(shown.note)
    rows, columns = shown.values.shape
    width = min(WIDTH - MARGIN, max(columns * CELL, 1.5))
    cell = width / columns
    cell = cell if shown.down == shown.across else min(CELL, TALL * cell)  # of pairs, square
    height = min(MOST, max(rows * cell, LEAST))
    with looks([title, note, *shown.down.labels, *shown.across.labels]):
        figure = extra("matplotlib.figure", NEEDED_BY).Figure(
            figsize=(width + MARGIN, height + MARGIN), layout="constrained"
        )
        axes = figure.subplots()
        figure.suptitle(title, x=0.01, ha="left", fontsize=9.5)
        _map(figure, axes, shown)
        _ticks(axes, shown, width, height)
        figure.supxlabel(note, x=0.01, ha="left", fontsize=7, color=QUIET)
    return figure


def _map(figure: Figure, axes: Axes, shown: Map) -> None:
    values = shown.values.detach().double().cpu()
    known = values.nan_to_num(0.0)
    end = deepest(known.flatten()) if shown.end is None else shown.end
    image = axes.imshow(values.numpy(), aspect="auto", **colours_of(known, end=end))
    draw_scale(figure, image, known, ax=axes, label=shown.scale, fraction=0.05, aspect=15)
    if shown.divider:
        axes.axvline(shown.divider - 0.5, color=INK, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(True)


def _ticks(axes: Axes, shown: Map, width: float, height: float) -> None:
    """Labels at as many rows and columns as have room."""
    across, down = Labels.of(shown.across, width), Labels.of(shown.down, height)
    axes.set_xticks(across.rows, across.texts, rotation=90, fontsize=across.size)
    axes.set_yticks(down.rows, down.texts, fontsize=down.size)
    axes.tick_params(length=2)
    axes.set_xlabel(shown.across.name)
    axes.set_ylabel(shown.down.name)
