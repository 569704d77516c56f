"""Figures as files: SVG, PNG and PDF, the same bytes each time, with all characters that an installed font has."""

import re
import unicodedata
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from html import escape
from io import BytesIO
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.html_view import View
from heta_lens._util.options import check_at_least, check_choice
from heta_lens._util.python import check_extra, extra
from heta_lens._util.text import JOINERS, legible, visible
from heta_lens.attribution import Attribution
from heta_lens.plots.scales import (
    BLUE,
    ORANGE,
    WHITE,
    Shade,
    held,
    percent_of,
    scale_end,
    scaling,
    score_terms,
    shades,
    sink,
)
from heta_lens.span_attribution import SpanAttribution

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Figure = Any
    Axes = Figure = Any


NEEDED_BY = "a figure"
DPI = 200
BASE = "DejaVu Sans"  # which matplotlib brings along
INK, QUIET, NONE = "#1a1a1a", "#6b6b6b", "#e4e4e4"  # the last where there is no value
LOOKS: Mapping[str, Any] = {
    "svg.hashsalt": "heta_lens",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "text.usetex": False,
    "text.hinting": "none",  # as widths are measured
    "font.size": 8,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "auto",
}
METADATA: Mapping[str, Mapping[str, None]] = {  # a date, or a version, would change the bytes
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "png": dict.fromkeys(("Software",)),
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
}
# Fonts that have a box for every character, or other characters than they say: of mathematics, for matplotlib itself.
UNFIT = ("lastresort", ".lastresort", "stixnon", "stixsize", "cmb10", "cmex10", "cmmi10", "cmr10", "cmss10", "cmsy10",
         "cmti10", "cmtt10")  # fmt: skip
OUTLINES_ONLY = 3  # the kind of PDF font that any font can become; 42 is for TrueType


def exports_of(draw: Callable[[], Figure]) -> dict[str, Callable[[], bytes]]:
    """What makes the files of a figure, by suffix, for a `View`; it is drawn only when one is made."""
    return {f".{kind}": partial(_file, draw, kind) for kind in METADATA}


def picture(title: str, draw: Callable[[], Figure], more: Mapping[str, Callable[[], str | bytes]]) -> View:
    """A figure as something to look at, which can be saved as what ``more`` makes, too."""
    exports = exports_of(draw)
    image = b64encode(exports[".svg"]()).decode()
    fragment = f'<img alt="{escape(drawable(title))}" style="max-width:100%" src="data:image/svg+xml;base64,{image}">'
    return View(title, fragment, {**exports, **more})


def looks(texts: Iterable[str] = ()) -> AbstractContextManager[None]:
    """While a figure is drawn: how it looks, and the fonts that have the characters of these texts."""
    return extra("matplotlib", NEEDED_BY).rc_context({**LOOKS, "font.family": families(texts)})


# --------------------------------------------------------------------------------------------------------- characters
def drawable(text: str) -> str:
    """The text as it can be drawn: ⏎ for a line end, → for a tab, ⟨U+4E2D⟩ for what no font has or nobody would see."""
    if not text.strip(JOINERS):
        return "".join(map(_code, text))
    return "".join(map(_drawable, text))


def named(token: str, most: int = 24) -> str:
    """A token in quotes, as Python writes it, cut where it is long."""
    written = repr(token)
    return drawable(written if len(written) <= most else written[: most - 1] + "…")


def families(texts: Iterable[str]) -> list[str]:
    """The fonts that these texts need, the first for all that it has."""
    return [*dict.fromkeys([BASE, *(family for text in texts for own in text if (family := _family(own)))])]


@cache
def _drawable(character: str) -> str:
    if character in "\n\t":
        return "⏎" if character == "\n" else "→"
    shown = character.isprintable() or character in JOINERS or unicodedata.category(character) == "Zs"
    return character if shown and _family(character) else _code(character)


def _code(character: str) -> str:
    return f"⟨U+{ord(character):04X}⟩"


@cache
def _family(character: str) -> str | None:
    """The first installed font that has the character; the base font, if that does."""
    return next((name for name in _installed() if _has(name, character)), None)


@cache
def _installed() -> tuple[str, ...]:
    """The upright fonts of normal weight, the base font first."""
    fonts = extra("matplotlib.font_manager", NEEDED_BY)
    normal = {entry.name for entry in fonts.fontManager.ttflist if _is_normal(entry, fonts.weight_dict)}
    return BASE, *sorted(normal - {BASE})


def _is_normal(entry: Any, weights: Mapping[str, int]) -> bool:
    weight = weights.get(entry.weight, entry.weight)
    unfit = entry.name.lower().replace(" ", "").startswith(UNFIT)
    return (entry.style, entry.stretch, weight) == ("normal", "normal", 400) and not unfit


def _has(name: str, character: str) -> bool:
    """Whether a font can draw it: fonts of coloured pictures have characters without outlines."""
    if ord(character) not in _characters(name):
        return False
    font = _font(name)
    font.load_char(ord(character))
    return len(font.get_path()[0]) > 0 or character in JOINERS or character.isspace()


@cache
def _characters(name: str) -> frozenset[int]:
    font = _font(name)
    return frozenset(font.get_charmap()) if font.scalable else frozenset()


def _font(name: str) -> Any:
    return extra("matplotlib.font_manager", NEEDED_BY).get_font(_path(name))


def _path(name: str) -> str:
    fonts = extra("matplotlib.font_manager", NEEDED_BY)
    return fonts.findfont(fonts.FontProperties(family=[name]))


# -------------------------------------------------------------------------------------------------------------- files
def _file(draw: Callable[[], Figure], kind: str) -> bytes:
    matplotlib, written = extra("matplotlib", NEEDED_BY), BytesIO()
    with looks():
        figure = draw()
        with matplotlib.rc_context({"pdf.fonttype": _pdf_fonts(figure)}):
            figure.savefig(written, format=kind, dpi=DPI, bbox_inches="tight", pad_inches=0.04, metadata=METADATA[kind])
    return written.getvalue()


def _pdf_fonts(figure: Figure) -> int:
    """As which kind the figure's fonts can be embedded."""
    texts: list[Any] = figure.findobj(extra("matplotlib.text", NEEDED_BY).Text)
    used = {name for text in texts for name in text.get_fontfamily()}
    return OUTLINES_ONLY if any(_is_postscript(_path(name)) for name in used) else LOOKS["pdf.fonttype"]


@cache
def _is_postscript(path: str) -> bool:
    """Whether a font has PostScript outlines; of a collection, its first."""
    with Path(path).open("rb") as file:
        head = file.read(16)
        if head.startswith(b"ttcf"):
            file.seek(int.from_bytes(head[12:], "big"))
            head = file.read(4)
    return head.startswith(b"OTTO")


# ------------------------------------------------------------------------------------------------------------- colours
def colour_map(above: Shade, below: Shade, *, signed: bool) -> Any:
    """From white at 0 to one colour for what is above and, where there are signs, to another for what is below."""
    shades = [below, WHITE, above] if signed else [WHITE, above]
    colours = [[part / 255 for part in shade] for shade in shades]
    made = extra("matplotlib.colors", NEEDED_BY).LinearSegmentedColormap.from_list("heta_lens", colours)
    return made.with_extremes(bad=NONE)


def colours_of(
    values: Float[Tensor, "*shape"], above: Shade = BLUE, below: Shade = ORANGE, *, end: float
) -> dict[str, Any]:
    """How matplotlib colours the values as all views do: the colours, and their scale, which goes to ``end``."""
    signed = bool((values < 0).any())
    norm = extra("matplotlib.colors", NEEDED_BY).Normalize(-end if signed else 0, end)
    return {"cmap": colour_map(above, below, signed=signed), "norm": norm}


def draw_scale(figure: Figure, colours: Any, values: Float[Tensor, "*shape"], **where: Any) -> Any:
    """The scale of these colours with its ends and 0 in numbers, and an arrow where values go on beyond."""
    low, high = colours.norm.vmin, colours.norm.vmax
    beyond = bool((values < low).any()), bool((values > high).any())
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[beyond]
    bar = figure.colorbar(colours, extend=extend, ticks=sorted({low, 0.0, high}), format=_number, **where)
    bar.outline.set_linewidth(0.4)
    bar.ax.tick_params(length=2, labelsize=7)
    return bar


def _number(value: float, _: int) -> str:
    return f"{value:.3g}".replace("-", "\N{MINUS SIGN}")


# --------------------------------------------------------------------------------------------------------- token cells
# Tokens as a page shows them: white space visible, pieces of a character joined, right-to-left runs together.


RIGHT_TO_LEFT, LEFT_TO_RIGHT = {"R", "AL"}, {"L"}  # Unicode's strong directions


class Cell(NamedTuple):
    """What stands for one token, or for several that write one character together."""

    rows: range
    """Which tokens of the attribution."""
    gap: bool
    """Whether tokens before it were left out."""
    before: str
    """White space before it, which has no colour."""
    text: str
    breaks: int
    """How many lines end after it."""


def cells(attribution: Attribution) -> list[Cell]:
    """The tokens of an attribution, in their order."""
    spans, positions = attribution.offsets.tolist(), attribution.positions.tolist()
    starts = [
        row
        for row, (start, stop) in enumerate(spans)
        if row == 0 or start >= spans[row - 1][1] or start == stop or positions[row] > positions[row - 1] + 1
    ]
    return [_cell(attribution, range(*ends), spans, positions) for ends in pairwise([*starts, len(spans)])]


def _cell(attribution: Attribution, rows: range, spans: Sequence[Sequence[int]], positions: Sequence[int]) -> Cell:
    first = rows[0]
    (start, _), stop = spans[first], max(spans[row][1] for row in rows)
    written = attribution.text[start:stop] or "".join(attribution.tokens[row] for row in rows)
    text = written.lstrip(" ") or written
    gap = first > 0 and positions[first] > positions[first - 1] + 1
    before = "" if first == 0 or gap else attribution.text[spans[first - 1][1] : start]
    space = before + written[: len(written) - len(text)]
    return Cell(rows, gap, legible(space, keep="\n"), visible(text) or "∅", text.count("\n"))


def runs(cells: Sequence[Cell]) -> Iterator[tuple[bool, list[Cell]]]:
    """Stretches of cells that are read from right to left, and the others."""
    for leftward, places in directed_runs([cell.text for cell in cells]):
        yield leftward, [*cells[places.start : places.stop]]


def directed_runs(texts: Sequence[str]) -> Iterator[tuple[bool, range]]:
    """Stretches of texts that are read from right to left, with what stands between such words, and the others."""
    directions = [_direction(text) for text in texts]
    at = 0
    while at < len(texts):
        stop = _end(directions, at)
        yield directions[at] == "R", range(at, stop)
        at = stop


def _end(directions: Sequence[str], at: int) -> int:
    """Where the run ends that begins here."""
    if directions[at] != "R":
        return next((place for place in range(at, len(directions)) if directions[place] == "R"), len(directions))
    others = (place for place in range(at, len(directions)) if directions[place] == "L")
    limit = next(others, len(directions))
    return 1 + max(place for place in range(at, limit) if directions[place] == "R")


def _direction(text: str) -> str:
    """R or L by the first letter that has a direction; empty where none has."""
    kinds = (unicodedata.bidirectional(character) for character in text)
    strong = next((kind for kind in kinds if kind in RIGHT_TO_LEFT | LEFT_TO_RIGHT), "")
    return "R" if strong in RIGHT_TO_LEFT else strong


# -------------------------------------------------------------------------------------------------------- token figure
# An attribution's tokens as coloured text for a slide or a paper, with the scale of the colours.


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


# ---------------------------------------------------------------------------------------------------------- bar figure
# The highest scores as bars with their confidence intervals, for a paper.


BarOrder: TypeAlias = Literal["score", "text"]

BAR_WIDTH, ROW = 5.6, 0.2  # inches
LEAST_SHARE = 0.01  # of the score: a part that makes up less has no bar to be seen
PART_COLOURS = {"curvature": "#2f6f62", "information": "#b9d9cf"}


def bars(
    attribution: Attribution | SpanAttribution,
    top: int = 20,
    confidence: float = 0.95,
    *,
    order: BarOrder = "score",
    special: bool = False,
) -> View:
    """The scores of largest size as bars, the highest on top; a notebook shows it, and ``.save("bars.pdf")`` keeps it.

    ``order="text"`` has the same tokens as they come in the text. Scores that have standard errors are drawn with
    their confidence intervals. A score that is M·(βS + γI) with two parts that count is shown with the share of each.
    A span has the scores of all of its targets together. Special tokens and a chat template's are left out, except with
    ``special=True``. Files: SVG, PNG, PDF, and CSV of all tokens.
    """
    check_at_least("top", top, 1, whole=True)
    check_choice("order", order, get_args(BarOrder))
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} must be between 0 and 1")
    check_extra("matplotlib", NEEDED_BY)
    shown = attribution.summed
    csv = {".csv": lambda: attribution.to_frame().to_csv(index=False)}
    rows = _rows(shown, top, order, ~shown.hidden | special)
    return picture(attribution.title, lambda: _figure(shown, rows, confidence, special=special), csv)


def _rows(attribution: Attribution, top: int, order: BarOrder, shown: Bool[Tensor, "pos"]) -> list[int]:
    """Which tokens have a bar, from the top down."""
    largest = attribution.scores.abs().argsort(descending=True, stable=True)
    largest = largest[shown[largest]][:top].sort().values
    if order == "score":
        largest = largest[attribution.scores[largest].argsort(descending=True, stable=True)]
    return largest.tolist()


def _figure(attribution: Attribution, rows: Sequence[int], confidence: float, *, special: bool) -> Figure:
    labels, title = [named(attribution.tokens[row]) for row in rows], drawable(attribution.title)
    terms = terms_of(attribution)
    with looks([title, *labels]):
        size = (BAR_WIDTH, ROW * len(rows) + (1.3 if terms else 1.05))
        figure = extra("matplotlib.figure", NEEDED_BY).Figure(figsize=size, layout="constrained")
        widths = [3, 1] if terms else [1]
        left, *right = figure.subplots(1, len(widths), sharey=True, squeeze=False, width_ratios=widths)[0]
        figure.suptitle(title, x=0.01, ha="left", fontsize=9.5)
        _bar_tokens(left, labels, attribution.positions[rows].tolist())
        _bars(left, attribution, rows, confidence)
        _bar_scale(left, attribution, rows, scaling(attribution, special=special)[rows])
        for axes in right:
            _shares(axes, terms, rows)
        count = len(attribution) if special else int((~attribution.hidden).sum())
        note = drawable("; ".join(filter(None, [_note(len(rows), count), held(attribution)])))
        figure.supxlabel(note, x=0.01, ha="left", fontsize=7, color=QUIET)
    return figure


def _note(shown: int, count: int) -> str:
    return f"the {shown} of {count} tokens with the largest scores" if shown < count else f"all {count} tokens"


def _bar_scale(axes: Axes, attribution: Attribution, rows: Sequence[int], inside: Bool[Tensor, "row"]) -> None:
    """An axis up to the largest score ``inside``, where there is one; a bar that goes beyond ends in its number."""
    scores = attribution.scores[rows]
    if inside.all() or not inside.any():
        return
    ends = scores[inside].tolist()
    low, high = min(0.0, *ends) * 1.15, max(0.0, *ends) * 1.15
    axes.set_xlim(low, high)
    for row in (~inside).nonzero()[:, 0].tolist():
        score = float(scores[row])
        where, side = (high, "right") if score > 0 else (low, "left")
        axes.text(where, row, f"{score:.3g}", ha=side, va="center", color="white", fontsize=7)


def _bar_tokens(axes: Axes, labels: Sequence[str], places: Sequence[int]) -> None:
    """Each token by its bar, and between them where it is in the text: apart, so that no script turns it around."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0, pad=10 + 5 * len(str(max(places))))
    where = axes.get_yaxis_transform()
    for row, place in enumerate(places):
        axes.annotate(
            str(place), (0, row), (-5, 0), where, "offset points", ha="right", va="center", color=QUIET, fontsize=7
        )


def _bars(axes: Axes, attribution: Attribution, rows: Sequence[int], confidence: float) -> None:
    scores = attribution.scores[rows].tolist()
    colours = [[part / 255 for part in (ORANGE if score < 0 else BLUE)] for score in scores]
    axes.barh(range(len(rows)), scores, height=0.7, color=colours)
    sure = attribution.standard_errors.get("scores") is None
    if not sure:
        low, high = (end[rows].tolist() for end in attribution.interval(confidence))
        axes.hlines(range(len(rows)), low, high, color=INK, linewidth=0.9, label="interval")
        axes.plot([*low, *high], [*range(len(rows))] * 2, linestyle="none", marker="|", markersize=4, color=INK)
    axes.axvline(0, color=INK, linewidth=0.6)
    axes.set_xlabel("score" if sure else f"score, with its {100 * confidence:.3g}% confidence interval")


# -------------------------------------------------------------------------------------------------------------- parts
def terms_of(attribution: Attribution) -> dict[str, Float[Tensor, "pos"]]:
    """Eq. 4 before its sum, ``M β S`` and ``M γ I``, where the score is this sum and both count; or else nothing."""
    terms, shares = score_terms(attribution) or [], (attribution.diagnostics.share or {}).values()
    if len(terms) < len(PART_COLOURS) or min(shares, default=1) < LEAST_SHARE:
        return {}
    return {term.part: term.of(attribution.parts) for term in terms}


def _shares(axes: Axes, terms: dict[str, Float[Tensor, "pos"]], rows: Sequence[int]) -> None:
    """How much of each score comes from each part."""
    whole = torch.stack([*terms.values()]).sum(0)
    left = [0.0] * len(rows)
    for name, term in terms.items():
        shares = (term / whole.where(whole != 0, 1.0))[rows].tolist()
        axes.barh(range(len(rows)), shares, left=left, height=0.7, color=PART_COLOURS[name], label=name)
        left = [start + share for start, share in zip(left, shares, strict=True)]
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "50%", "100%"])
    axes.set_xlabel("share of the score")
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.1, 1), frameon=False, fontsize=7, handlelength=1, borderpad=0)
