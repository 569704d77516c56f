"""An attribution's tokens as coloured text for a slide or a paper, with the scale of the colours."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.extras import check_extra, extra
from heta_lens.attribution import Attribution
from heta_lens.plots.colours import BLUE, ORANGE, WHITE, Shade, shades
from heta_lens.plots.figure_files import INK, NEEDED_BY, QUIET, colours_of, draw_scale, drawable, looks, named
from heta_lens.plots.shares import held, percent_of, scale_end, sink
from heta_lens.plots.token_cells import directed_runs
from heta_lens.span_attribution import SpanAttribution

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # slow to import, and an extra

DEPTH = 0.8  # of the colours, since black text is to be read on the deepest
POINTS = 72  # to an inch
WIDTH, SIZE, LINE = 6.3 * POINTS, 10.0, 16.0  # points: of the text, of its letters, from line to line
TITLE, CAPTION, NOTE = (
    24.0,
    34.0,
    12.0,
)  # points: the heights of the title, of the scale of colours, and of a line below
BELOW, ABOVE = 4.0, 10.5  # points: how far a token's background reaches from the line it stands on
GAP = 14.0  # points: between two texts
BAR = 110.0  # points: the width of the scale


class Piece(NamedTuple):
    """What of a token stands in one line, and where: its row, and its left end and width in points."""

    token: int
    text: str
    row: int
    left: float
    width: float


@dataclass(frozen=True)
class Coloured:
    """Tokens to colour by a score each, some of them ``marked``, and those that the model wrote after them.

    Where ``coloured`` is 0, a token has no colour; ``end`` is the size that has the deepest. The ``sink`` is the row of
    a first word that goes beyond it.
    """

    title: str
    tokens: tuple[str, ...]
    scores: Float[Tensor, "pos"]
    coloured: Bool[Tensor, "pos"]
    end: float
    sink: int | None
    positions: tuple[int, ...]
    written: tuple[str, ...]
    left_out: int
    marked: frozenset[int] = frozenset()
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        attribution: Attribution | SpanAttribution,
        marked: Collection[int] = (),
        note: str = "",
        *,
        special: bool = False,
    ) -> "Coloured":
        scored = attribution.summed
        written = attribution.tokens[attribution.start :] if isinstance(attribution, SpanAttribution) else ()
        positions, left_out = tuple(scored.positions.tolist()), scored.diagnostics.left_out or 0
        rows = frozenset(row for row, position in enumerate(positions) if position in marked)
        remarks = held(scored), scored.diagnostics.note, note or ("underlined: evidence" if rows else "")
        first = next(iter(sink(scored).nonzero()[:, 0].tolist()), None)
        scale = ~scored.hidden | special, scale_end(scored, special=special), first
        own = attribution.title, scored.tokens, scored.scores, *scale, positions, tuple(written), left_out
        return cls(*own, rows, tuple(filter(None, remarks)))

    @property
    def shown(self) -> Float[Tensor, "pos"]:
        """The scores as colours show them: 0 where a token has none."""
        return self.scores * self.coloured

    @property
    def tints(self) -> list[Shade]:
        """Colours on which black text is easy to read."""
        return [tint(shade) for shade in shades(self.shown, self.end)]

    @property
    def notes(self) -> list[str]:
        """What the colours do not show: the score beyond the scale, tokens that are missing, and what a frame means."""
        most = int(self.shown.abs().argmax())
        beyond, share = float(self.scores[most]), self.share(float(self.scores[most]))
        clipped = f"{named(self.tokens[most])} at {self.positions[most]} is beyond the scale: {beyond:.3g} ({share})"
        possible = {
            clipped: most != self.sink and abs(beyond) > self.end,
            f"{self.left_out} token{'s' * (self.left_out > 1)} left out": self.left_out > 0,
            "framed: the answer that is explained": bool(self.written),
        }
        return [*(note for note, holds in possible.items() if holds), *self.remarks]

    @property
    def all_tokens(self) -> tuple[str, ...]:
        """Also those that the model wrote."""
        return (*self.tokens, *self.written)

    @property
    def all_texts(self) -> list[str]:
        """Whatever of it is drawn."""
        return [self.title, *self.all_tokens, *self.notes]

    def share(self, score: float) -> str:
        """How much of all scores, sign aside, that is."""
        return f"{percent_of(self.scores, score)} of the score"


def token_figure(
    attribution: Attribution | SpanAttribution,
    *,
    marked: Collection[int] = (),
    note: str = "",
    special: bool = False,
) -> Figure:
    """The question, the text with every token coloured by its score, and the scale of the colours; for matplotlib.

    ``marked`` positions are underlined, as evidence, and ``note`` may say why. A span is coloured by all of its targets
    together, and its own tokens follow in a frame. Words of a script that is read from right to left stand in that
    order. ``figure_files.exports_of`` makes files of it in which letters are as wide as measured here; for
    ``figure.savefig``, matplotlib's ``text.hinting`` must be "none" for that. ``special=True`` colours special tokens,
    and a chat template's, too.
    """
    return stacked([Coloured.of(attribution, marked, note, special=special)])


def stacked(texts: Sequence[Coloured]) -> Figure:
    """Coloured texts one below another, each with its title, its scale and its notes."""
    check_extra("matplotlib", NEEDED_BY)
    with looks(map(drawable, [line for text in texts for line in text.all_texts])):
        placed = [(text, in_reading_order([*laid_out(text.all_tokens, WIDTH, _measure(SIZE))])) for text in texts]
        heights = [TITLE + _height(pieces) + CAPTION + NOTE * len(text.notes) for text, pieces in placed]
        height = sum(heights) + GAP * (len(texts) - 1)
        figure = extra("matplotlib.figure", NEEDED_BY).Figure(figsize=(WIDTH / POINTS, height / POINTS))
        bottoms = accumulate(heights, lambda end, own: end - GAP - own, initial=height + GAP)
        for (text, pieces), bottom, own in zip(placed, [*bottoms][1:], heights, strict=True):
            _draw(figure, text, pieces, bottom / height, own / height)
    return figure


def _draw(figure: Figure, shown: Coloured, pieces: Sequence[Piece], bottom: float, share: float) -> None:
    """One text into its share of the figure's height."""
    height = share * figure.get_figheight() * POINTS
    axes = figure.add_axes((0, bottom, 1, share), xlim=(0, WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    _title(axes, shown.title)
    _tokens(axes, pieces, [*shown.tints, *[WHITE] * len(shown.written)])
    _frames(axes, [piece for piece in pieces if piece.token >= len(shown.tokens)])
    _underline(axes, [piece for piece in pieces if piece.token in shown.marked], _measure(SIZE))
    _scale(figure, axes, shown, TITLE + _height(pieces))
    for row, note in enumerate(shown.notes):
        axes.text(0, height - NOTE * (len(shown.notes) - row - 0.7), drawable(note), color=QUIET, size=8)


def tint(shade: Shade) -> Shade:
    return Shade(*(round(255 - DEPTH * (255 - part)) for part in shade))


# ------------------------------------------------------------------------------------------------------------- layout
def laid_out(tokens: Sequence[str], width: float, measure: Callable[[str], float]) -> Iterator[Piece]:
    """Where every token stands in lines of this width; lines break at spaces and line ends, or where they must."""
    row, left = 0, 0.0
    for word in _words(tokens):
        if left and left + sum(measure(drawable(text)) for _, text in word) > width:
            row, left = row + 1, 0.0
        for token, text in word:
            for part in _parts(drawable(text), width, measure):
                if left and left + measure(part) > width:
                    row, left = row + 1, 0.0
                yield Piece(token, part, row, left, measure(part))
                left += measure(part)
            if text.endswith("\n"):
                row, left = row + 1, 0.0


def in_reading_order(pieces: Sequence[Piece]) -> list[Piece]:
    """The same with words that are read from right to left, in each line, in that order."""
    placed = []
    for _, line in groupby(pieces, key=lambda piece: piece.row):
        of_row = [*line]
        for leftward, places in directed_runs([piece.text for piece in of_row]):
            run = of_row[places.start : places.stop]
            ends = run[0].left + run[-1].left + run[-1].width
            placed += [piece._replace(left=ends - piece.left - piece.width) if leftward else piece for piece in run]
    return placed


def _height(pieces: Sequence[Piece]) -> float:
    """Of the lines that the tokens take, in points."""
    return LINE * (1 + max(piece.row for piece in pieces))


def _words(tokens: Sequence[str]) -> list[list[tuple[int, str]]]:
    """Tokens by number, and what of them is in one line; together where no line should break."""
    words: list[list[tuple[int, str]]] = []
    before = " "
    for token, whole in enumerate(tokens):
        for text in re.findall(r"[^\n]*\n|[^\n]+", whole) or [""]:
            if before.isspace() or (text[:1].isspace() and text[0] != "\n") or not words:
                words.append([])
            words[-1].append((token, text))
            before = text[-1:] or before
    return words


def _parts(text: str, width: float, measure: Callable[[str], float]) -> list[str]:
    """The text cut into parts that fit in a line each."""
    if len(text) < 2 or measure(text) <= width:
        return [text]
    fits = [end for end in range(1, len(text)) if measure(text[:end]) <= width]
    end = max(fits, default=1)
    return [text[:end], *_parts(text[end:], width, measure)]


def _measure(size: float) -> Callable[[str], float]:
    """How wide a text is in points, with the spaces around it."""
    to_path = extra("matplotlib.textpath", NEEDED_BY).text_to_path
    font = extra("matplotlib.font_manager", NEEDED_BY).FontProperties(size=size)

    def ink(text: str) -> float:
        return float(to_path.get_text_width_height_descent(text, font, ismath=False)[0])

    ends = ink("||")
    return lambda text: ink(f"|{text}|") - ends


# ------------------------------------------------------------------------------------------------------------ drawing
def _title(axes: Axes, title: str) -> None:
    """On one line, smaller where it is long."""
    shown, size = drawable(title), SIZE + 1.0
    axes.text(0, 12, shown, size=size * min(1.0, WIDTH / _measure(size)(shown)))


def _tokens(axes: Axes, pieces: Sequence[Piece], colours: Sequence[Shade]) -> None:
    rectangle = extra("matplotlib.patches", NEEDED_BY).Rectangle
    for piece in pieces:
        line = _line(piece.row)
        ground = [part / 255 for part in colours[piece.token]]
        corner, height = (piece.left, line - ABOVE), ABOVE + BELOW
        axes.add_patch(rectangle(corner, piece.width, height, facecolor=ground, edgecolor="white", linewidth=0.4))
        axes.text(piece.left, line, piece.text, size=SIZE, color="black")


def _frames(axes: Axes, pieces: Sequence[Piece]) -> None:
    """A frame around what of these is in each line."""
    rectangle = extra("matplotlib.patches", NEEDED_BY).Rectangle
    for row in {piece.row: None for piece in pieces}:
        own = [piece for piece in pieces if piece.row == row]
        left, right = min(piece.left for piece in own), max(piece.left + piece.width for piece in own)
        corner, height = (left, _line(row) - ABOVE), ABOVE + BELOW
        axes.add_patch(rectangle(corner, right - left, height, fill=False, edgecolor=INK, linewidth=0.8))


def _underline(axes: Axes, pieces: Sequence[Piece], measure: Callable[[str], float]) -> None:
    """Without the space before a word."""
    for piece in pieces:
        line = _line(piece.row) + 2
        ends = piece.left + measure(piece.text[: -len(piece.text.lstrip()) or None]), piece.left + piece.width
        axes.plot(ends, [line, line], color=INK, linewidth=1.2, solid_capstyle="butt")


def _line(row: int) -> float:
    """Where the letters of a row stand, in points from the top."""
    return TITLE + LINE * row + ABOVE + 1


def _scale(figure: Figure, axes: Axes, shown: Coloured, top: float) -> None:
    """The scale of the colours with its ends, and how much of the score these are; so many points from the top."""
    colours = colours_of(shown.shown, tint(BLUE), tint(ORANGE), end=shown.end)
    place = axes.get_position()
    point = place.height / axes.get_ylim()[0]
    bar = figure.add_axes((4 / WIDTH, place.y1 - (top + 18) * point, BAR / WIDTH, 8 * point))
    mappable = extra("matplotlib.cm", NEEDED_BY).ScalarMappable(**colours)
    draw_scale(figure, mappable, shown.shown, cax=bar, orientation="horizontal")
    axes.text(BAR + 24, top + 17, f"{shown.end:.3g} is {shown.share(shown.end)}", size=8)
