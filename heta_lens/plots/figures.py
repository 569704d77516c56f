"""Figures by matplotlib: tokens, bars and matrices, and SVG, PNG and PDF files with the same bytes every time."""

import re
import unicodedata
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from html import escape
from io import BytesIO
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.html_view import View
from heta_lens._util.options import check_count
from heta_lens._util.python import extra
from heta_lens._util.text import JOINERS, code_point, cut
from heta_lens.attribution import Attribution
from heta_lens.plots.coloured_text import ColouredText, without_space
from heta_lens.plots.scales import BLUE, ORANGE, WHITE, Shade, deepest, hidden_in, scaled_tokens, share_note, sink, tint
from heta_lens.plots.titles_and_notes import scale_name, search_note
from heta_lens.span_attribution import SpanAttribution

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any

NEEDED_BY = "a figure"
DPI = 200
BASE_FONT = "DejaVu Sans"  # part of matplotlib
INK, QUIET, NO_VALUE = "#1a1a1a", "#6b6b6b", "#e4e4e4"
STYLE: Mapping[str, Any] = {  # beside matplotlib's defaults
    "svg.hashsalt": "heta_lens",
    "text.parse_math": False,
    "text.hinting": "none",  # letters are as wide as measured
    "font.size": 8,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
}
METADATA: Mapping[str, Mapping[str, None]] = {  # a date, or a version, would change the bytes
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "png": dict.fromkeys(("Software",)),
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
}


def exports_of(draw: Callable[[], Figure]) -> dict[str, Callable[[], bytes]]:
    """Return the functions that make the files of a figure, by suffix, for a `View`; each call draws the figure."""
    return {f".{kind}": partial(_file, draw, kind) for kind in METADATA}


def picture(title: str, draw: Callable[[], Figure], more: Mapping[str, Callable[[], str | bytes]]) -> View:
    """Return a figure as a view, with ``more`` kinds of files beside the figure's."""
    exports = exports_of(draw)
    image = b64encode(exports[".svg"]()).decode()
    fragment = f'<img alt="{escape(drawable(title))}" style="max-width:100%" src="data:image/svg+xml;base64,{image}">'
    return View(title, fragment, {**exports, **more})


def figure_style(texts: Iterable[str] = ()) -> AbstractContextManager[None]:
    """Return a context in which figures have the common style, and fonts with every character of the texts."""
    families = dict.fromkeys([BASE_FONT, *(font for text in texts for letter in text if (font := _font_of(letter)))])
    return extra("matplotlib.style", NEEDED_BY).context(["default", {**STYLE, "font.family": [*families]}])


def _file(draw: Callable[[], Figure], kind: str) -> bytes:
    written = BytesIO()
    with figure_style():
        figure = draw()
        texts: list[Any] = figure.findobj(extra("matplotlib.text", NEEDED_BY).Text)
        names = {name for text in texts for name in text.get_fontfamily()}
        # PDF embeds the TrueType outlines of the base font as kind 42, and the outlines of any other font as kind 3.
        with extra("matplotlib", NEEDED_BY).rc_context({"pdf.fonttype": 42 if names == {BASE_FONT} else 3}):
            figure.savefig(written, format=kind, dpi=DPI, bbox_inches="tight", pad_inches=0.04, metadata=METADATA[kind])
    return written.getvalue()


def drawable(text: str) -> str:
    """Return the text with ⏎ for line ends, → for tabs, and ⟨U+4E2D⟩ for invisible characters and those in no font."""
    return "".join(map(_drawable if text.strip(JOINERS) else code_point, text))


@cache
def _drawable(character: str) -> str:
    if character in "\n\t":
        return "⏎" if character == "\n" else "→"
    shown = character.isprintable() or character in JOINERS or unicodedata.category(character) == "Zs"
    return character if shown and _font_of(character) else code_point(character)


@cache
def _font_of(character: str) -> str | None:
    """Return the first installed font with an outline for the character; the base font comes first."""
    fonts = extra("matplotlib.font_manager", NEEDED_BY)
    for name in _upright_fonts():
        font = fonts.get_font(fonts.findfont(fonts.FontProperties(family=[name])))
        if font.scalable and font.get_char_index(ord(character)):
            font.load_char(ord(character))
            if len(font.get_path()[0]) > 0 or character in JOINERS or character.isspace():
                return name  # and no font of coloured pictures
    return None


@cache
def _upright_fonts() -> tuple[str, ...]:
    """Return the base font, and the upright fonts of the system; matplotlib's own have boxes or signs of formulas."""
    fonts, own = extra("matplotlib.font_manager", NEEDED_BY), extra("matplotlib", NEEDED_BY).get_data_path()
    names = {
        entry.name
        for entry in fonts.fontManager.ttflist
        if (entry.style, entry.stretch, fonts.weight_dict.get(entry.weight, entry.weight)) == ("normal", "normal", 400)
        and not entry.fname.startswith(own)
        and not entry.name.startswith(".")  # fonts of a system for itself
    }
    return BASE_FONT, *sorted(names - {BASE_FONT})


def colours_of(
    values: Float[Tensor, "*shape"], above: Shade = BLUE, below: Shade = ORANGE, *, end: float
) -> dict[str, Any]:
    """Return matplotlib's colour map and norm for the values: white at 0, and the deepest colour at ``end``."""
    signed = bool((values < 0).any())
    colours = [[part / 255 for part in shade] for shade in ([below] if signed else []) + [WHITE, above]]
    module = extra("matplotlib.colors", NEEDED_BY)
    colour_map = module.LinearSegmentedColormap.from_list("heta_lens", colours).with_extremes(bad=NO_VALUE)
    return {"cmap": colour_map, "norm": module.Normalize(-end if signed else 0, end)}


def draw_scale(figure: Figure, colours: Any, values: Float[Tensor, "*shape"], **place: Any) -> Any:
    """Draw the scale of the colours with numbers at the ends and 0, and an arrow at an end that values go beyond."""
    low, high = colours.norm.vmin, colours.norm.vmax
    beyond = int((values < low).any()) + 2 * int((values > high).any())
    extend = ("neither", "min", "max", "both")[beyond]
    bar = figure.colorbar(colours, extend=extend, ticks=sorted({low, 0.0, high}), format="{x:.3g}", **place)
    bar.outline.set_linewidth(0.4)
    bar.ax.tick_params(length=2, labelsize=7)
    return bar


# --------------------------------------------------------------------------------------------------------------- tokens
POINTS = 72  # to an inch
WIDTH, SIZE, LINE = 6.3 * POINTS, 10.0, 16.0  # points: of the text, of the letters, from line to line
TITLE, CAPTION, NOTE = 24.0, 34.0, 12.0  # points: the heights of the title, the scale, and a line below
BELOW, ABOVE = 4.0, 10.5  # points: from the line of the letters to the edges of a token's background
GAP = 14.0  # points: between two texts
SCALE_WIDTH = 110.0  # points


class Piece(NamedTuple):
    """The part of a token in a line of text, without spaces before it: line number, left edge and width in points."""

    token: int
    text: str
    line: int
    left: float
    width: float


def token_figure(
    attribution: Attribution | SpanAttribution, *, marked: Collection[int] = (), note: str = "", special: bool = False
) -> Figure:
    """Return a matplotlib figure of the question, the text with every token coloured by score, and the colour scale.

    ``marked`` positions are underlined, as evidence, and ``note`` may say why. A span is coloured by the sums over all
    targets, and the span's own tokens follow in a frame.
    ``plots.page(attribution).save("tokens.svg")`` makes a file in which letters are as wide as measured here;
    ``figure.savefig`` needs matplotlib's ``text.hinting`` to be "none" for that. ``special=True`` colours special
    tokens and a chat template's too.
    """
    return stacked([ColouredText.of(attribution, marked, note, special=special)])


def stacked(texts: Sequence[ColouredText]) -> Figure:
    """Return a figure of coloured texts one below another, each with a title, a scale and notes."""
    lines = [drawable(line) for text in texts for line in (text.title, *text.all_tokens, text.answer, *text.notes)]
    with figure_style(lines):
        placed = [[*laid_out((*text.all_tokens, text.answer))] for text in texts]
        heights = [
            TITLE + LINE * (1 + pieces[-1].line) + CAPTION + NOTE * len(text.notes)
            for text, pieces in zip(texts, placed, strict=True)
        ]
        whole = sum(heights) + GAP * (len(texts) - 1)
        figure = extra("matplotlib.figure", NEEDED_BY).Figure(figsize=(WIDTH / POINTS, whole / POINTS))
        bottom = whole
        for text, pieces, height in zip(texts, placed, heights, strict=True):
            bottom -= height
            axes = figure.add_axes((0, bottom / whole, 1, height / whole), xlim=(0, WIDTH), ylim=(height, 0))
            axes.set_axis_off()
            _draw(figure, axes, text, pieces)
            bottom -= GAP
    return figure


def laid_out(tokens: Sequence[str]) -> Iterator[Piece]:
    """Yield the places of tokens in lines, which break at spaces and line ends, or inside a long word."""
    line, left, wrapped, measure = 0, 0.0, False, _measure(SIZE)
    for word in _words(tokens):
        widths = [measure(drawable(text)) for _, text in word]
        if left and left + sum(widths) > WIDTH:
            line, left, wrapped = line + 1, 0.0, True
        for (token, text), width in zip(word, widths, strict=True):
            if left and left + width > WIDTH:
                line, left, wrapped = line + 1, 0.0, True
            bare = without_space(text)
            space = measure(text[: len(text) - len(bare)])
            left -= space * wrapped  # no line begins with a space between words
            yield Piece(token, drawable(bare), line, left + space, width - space)
            left, wrapped = left + width, False
            if text.endswith("\n"):
                line, left = line + 1, 0.0


def _words(tokens: Sequence[str]) -> list[list[tuple[int, str]]]:
    """Return the tokens' numbers and texts between line ends, in groups that no line should break."""
    texts = [re.findall(r"[^\n]*\n|[^\n]+", token) or [""] for token in tokens]
    pieces = [(token, text) for token, own in enumerate(texts) for text in own]
    words: list[list[tuple[int, str]]] = []
    for (_, before), (token, text) in pairwise([(-1, " "), *pieces]):
        if before[-1:].isspace() or (text[:1].isspace() and text[0] != "\n"):
            words.append([])
        words[-1].append((token, text))
    return words


def _measure(size: float) -> Callable[[str], float]:
    """Return a function for the width of a text in points, including the spaces around the text."""
    to_path = extra("matplotlib.textpath", NEEDED_BY).text_to_path
    font = extra("matplotlib.font_manager", NEEDED_BY).FontProperties(size=size)

    def ink(text: str) -> float:
        return float(to_path.get_text_width_height_descent(text, font, ismath=False)[0])

    ends = ink("||")
    return lambda text: ink(f"|{text}|") - ends


def _draw(figure: Figure, axes: Axes, shown: ColouredText, pieces: Sequence[Piece]) -> None:
    title, size = drawable(shown.title), SIZE + 1.0
    axes.text(0, 12, title, size=size * min(1.0, WIDTH / _measure(size)(title)))
    colours = [*shown.tints, *[WHITE] * len(shown.written)]
    rectangle = extra("matplotlib.patches", NEEDED_BY).Rectangle
    for piece in pieces:
        base = TITLE + LINE * piece.line + ABOVE + 1  # from the figure's top to the line that the letters stand on
        if piece.token == len(colours):
            axes.text(piece.left, base, piece.text, size=SIZE, color=QUIET)
            continue
        edge, colour = INK if piece.token in shown.framed else "white", [part / 255 for part in colours[piece.token]]
        box = rectangle((piece.left, base - ABOVE), piece.width, ABOVE + BELOW, linewidth=0.4, fc=colour, ec=edge)
        axes.add_patch(box)
        axes.text(piece.left, base, piece.text, size=SIZE, color="black")
        if piece.token in shown.marked:
            axes.plot([piece.left, piece.left + piece.width], [base + 2] * 2, color=INK, linewidth=1.2)
    _draw_caption(figure, axes, shown, TITLE + LINE * (1 + pieces[-1].line))
    height = axes.get_ylim()[0]
    for row, note in enumerate(shown.notes):
        axes.text(0, height - NOTE * (len(shown.notes) - row - 0.7), drawable(note), color=QUIET, size=8)


def _draw_caption(figure: Figure, axes: Axes, shown: ColouredText, top: float) -> None:
    """Draw the scale of the colours, ``top`` points below the upper edge of the axes, with the share of its end."""
    colours = colours_of(shown.shown, tint(BLUE), tint(ORANGE), end=shown.end)
    place = axes.get_position()
    point = place.height / axes.get_ylim()[0]
    bar = figure.add_axes((4 / WIDTH, place.y1 - (top + 18) * point, SCALE_WIDTH / WIDTH, 8 * point))
    mappable = extra("matplotlib.cm", NEEDED_BY).ScalarMappable(**colours)
    draw_scale(figure, mappable, shown.shown, cax=bar, orientation="horizontal")
    deepest = f"deepest colour: {shown.end:.3g}, {shown.share(shown.end)}"
    axes.text(SCALE_WIDTH + 24, top + 17, f"{drawable(shown.scale)}\n{deepest}", size=8, va="center")


# ----------------------------------------------------------------------------------------------------------------- bars
BAR_WIDTH, BAR_HEIGHT = 5.6, 0.2  # inches
LEAST_BAR = 0.005  # of the axis: no bar is seen below


def bars(attribution: Attribution | SpanAttribution, top: int = 20, *, special: bool = False) -> View:
    """Return the scores of largest size as bars, highest on top; a notebook shows the view, ``.save`` keeps it.

    Scores with standard errors have 95 % intervals. A span shows the sums over all targets. Special tokens and a chat
    template's are left out, except with ``special=True``, and so are bars too short to see. Files: SVG, PNG, PDF, and a
    CSV table of every token.
    """
    check_count("top", top)
    csv = {".csv": lambda: attribution.to_frame().to_csv(index=False)}
    return picture(attribution.title, partial(bar_figure, attribution, top, special=special), csv)


def bar_figure(result: Attribution | SpanAttribution, top: int, *, special: bool) -> Figure:
    attribution = result.summed
    shown, scaled = ~attribution.hidden | special, scaled_tokens(attribution, special=special)
    sizes = attribution.scores.abs()
    largest = sizes.argsort(descending=True, stable=True)
    largest = largest[(shown & (sizes >= LEAST_BAR * sizes[scaled].max()))[largest]][:top].sort().values
    largest = largest[attribution.scores[largest].argsort(descending=True, stable=True)]
    rows, count = largest.tolist(), int(shown.sum())
    labels = [f"{drawable(cut(repr(attribution.tokens[row]), 24))}  {int(attribution.positions[row])}" for row in rows]
    title = drawable(attribution.title)
    which = f"the {len(rows)} of {count} tokens with the largest scores" if len(rows) < count else f"all {count} tokens"
    with figure_style([title, *labels]):
        size = (BAR_WIDTH, BAR_HEIGHT * len(rows) + 1.05)
        figure = extra("matplotlib.figure", NEEDED_BY).Figure(figsize=size, layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=9.5)
        axes = figure.subplots()
        axes.set_yticks(range(len(rows)), labels)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        _draw_bars(axes, attribution, rows, scale_name(result))
        _limit_axis(axes, attribution.scores[rows], scaled[rows])
        note = drawable("; ".join(filter(None, [which, share_note(attribution), search_note(attribution)])))
        figure.supxlabel(note, x=0.01, ha="left", fontsize=7, color=QUIET)
    return figure


def _draw_bars(axes: Axes, attribution: Attribution, rows: Sequence[int], label: str) -> None:
    scores = attribution.scores[rows].tolist()
    colours = [[part / 255 for part in (ORANGE if score < 0 else BLUE)] for score in scores]
    axes.barh(range(len(rows)), scores, height=0.7, color=colours)
    if attribution.standard_errors.get("scores") is not None:
        low, high = (end[rows].tolist() for end in attribution.interval())
        axes.hlines(range(len(rows)), low, high, color=INK, linewidth=0.9, label="interval")
        axes.plot([*low, *high], [*range(len(rows))] * 2, linestyle="none", marker="|", markersize=4, color=INK)
        label += ", with its 95% confidence interval"
    axes.axvline(0, color=INK, linewidth=0.6)
    axes.set_xlabel(f"{label}; below 0 against the target" if min(scores) < 0 else label)


def _limit_axis(axes: Axes, scores: Float[Tensor, "row"], inside: Bool[Tensor, "row"]) -> None:
    """End the axis after the largest score ``inside``; a longer bar ends in a number."""
    if inside.all() or not scores[inside].any():
        return
    ends = scores[inside].tolist()
    low, high = min(0.0, *ends) * 1.15, max(0.0, *ends) * 1.15
    room = (high - low) / 6  # of a longer bar, with its number, where no other is on its side of 0
    low, high = min(low, -room * bool(scores.min() < low)), max(high, room * bool(scores.max() > high))
    axes.set_xlim(low, high)
    for row in (~inside).nonzero()[:, 0].tolist():
        score = float(scores[row])
        end, side = (high, "right") if score > 0 else (low, "left")
        axes.text(end, row, f"{score:.3g}", ha=side, va="center", color="white", fontsize=7)


# ------------------------------------------------------------------------------------------------------------- matrices
MAP_WIDTH, MAP_MARGIN = 6.3, 1.6  # inches: of the figure, and of everything beside and around the map
CELL_SIZE, LEAST_HEIGHT, MOST_HEIGHT = 0.2, 0.5, 6.0  # inches: of a cell with enough room, and of the map
TALL = 2  # the largest ratio of a cell's height to its width, if rows and columns differ
LETTER, LINE_HEIGHT = 7.0, 8.4  # points
LONGEST_LABEL = 16  # letters


class Side(NamedTuple):
    """The name and the labels of rows or columns, with the places of the labels in the text, if they have places."""

    name: str
    labels: Sequence[str]
    places: Sequence[int] = ()

    def ticks(self, inches: float) -> tuple[Sequence[int], Sequence[str]]:
        """Return the rows whose labels have room, and the labels, with places if some rows have no label."""
        count = len(self.labels)
        rows = range(0, count, ceil(count * LINE_HEIGHT / (72 * inches)))
        places = [f"  {self.places[row]}" if self.places and len(rows) < count else "" for row in rows]
        return rows, [self.labels[row] + place for row, place in zip(rows, places, strict=True)]


def matrix(attribution: Attribution | SpanAttribution, *, special: bool = False) -> View:
    """Return a heat map: a notebook shows the view, and ``.save("matrix.pdf")`` keeps the map, or ``.svg`` or ``.png``.

    A span has the scores of every source (x) for every target (y), grey where a source does not come before the target.
    An attribution with ``interactions`` has every pair of tokens, grey on the diagonal, where there is no pair. Special
    tokens and a chat template's are left out, except with ``special=True``.
    """
    draw = span_figure if isinstance(attribution, SpanAttribution) else pair_figure
    return picture(attribution.title, partial(draw, attribution, special=special), {})


def patch_grid(
    title: str,
    restored: Float[Tensor, "layer column"],
    layers: Sequence[int],
    labels: Sequence[str],
    places: Sequence[int] = (),
    note: str = "",
) -> Figure:
    """Return a figure of the effect that each patch restored, by layer and by position or head, with layer 0 on top.

    ``layers`` are the numbers of the rows, and ``labels`` the names of the columns. ``places`` are the columns'
    places in the text, which are written if some of the labels have no room.
    """
    down = Side("layer", [str(layer) for layer in layers])
    return map_figure(title, restored, down, Side("", _labels(labels), places), "restored", note)


def span_figure(span: SpanAttribution, *, special: bool) -> Figure:
    """Return a figure of the scores of a span, targets by sources."""
    summed, count = span.summed, len(span.tokens) - 1
    sources = (~hidden_in(span) | special)[:count].nonzero()[:, 0].tolist()
    values = span.matrix.clone()
    for row, step in enumerate(span.steps):
        values[row, len(step) :] = torch.nan
    down = Side("target", _labels(span.targets), [len(step) for step in span.steps])
    across = Side("source", _labels([span.tokens[at] for at in sources]), sources)
    scaled = [at for at in sources if at >= span.start or not sink(summed)[at]] or sources
    end = deepest(values[:, scaled].nan_to_num(0.0).flatten())
    several = "grey: not before the target; the line: where the answer begins" if len(span) > 1 else ""
    divider = sum(at < span.start for at in sources) if len(span) > 1 else 0
    note = "; ".join(filter(None, [several, share_note(summed)]))
    return map_figure(span.title, values[:, sources], down, across, scale_name(span), note, divider, end)


def pair_figure(attribution: Attribution, *, special: bool) -> Figure:
    if attribution.interactions is None:
        raise ValueError(
            "this attribution has no pairs of tokens: give attribute interactions=True, or use attribute_span for a "
            "matrix of targets and sources"
        )
    rows = (~attribution.hidden | special).nonzero()[:, 0]
    values = attribution.interactions[rows][:, rows].fill_diagonal_(torch.nan)
    side = Side("token", _labels([attribution.tokens[row] for row in rows]), attribution.positions[rows].tolist())
    scale = "interaction, ‖H_ij‖" if attribution.method == "heta" else "interaction"
    return map_figure(attribution.title, values, side, side, scale, "grey: no pair")


def _labels(tokens: Sequence[str]) -> tuple[str, ...]:
    """Return tokens as labels, without spaces around them; tokens of white space alone are quoted."""
    return tuple(drawable(cut(token.strip() or repr(token), LONGEST_LABEL)) for token in tokens)


def map_figure(
    title: str,
    values: Float[Tensor, "row column"],
    down: Side,
    across: Side,
    scale: str,
    note: str = "",
    divider: int = 0,
    end: float | None = None,
) -> Figure:
    """Return a figure of values, NaN for cells without a value; values of size ``end`` have the deepest colour.

    A line stands before the column ``divider``.
    """
    title, note, (rows, columns) = drawable(title), drawable(note), values.shape
    width = min(MAP_WIDTH - MAP_MARGIN, max(columns * CELL_SIZE, 1.5))
    cell = width / columns
    cell = cell if down == across else min(CELL_SIZE, TALL * cell)  # cells of pairs are square
    height = min(MOST_HEIGHT, max(rows * cell, LEAST_HEIGHT))
    with figure_style([title, note, *down.labels, *across.labels]):
        size = width + MAP_MARGIN, height + MAP_MARGIN
        figure = extra("matplotlib.figure", NEEDED_BY).Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        figure.suptitle(title, x=0.01, ha="left", fontsize=9.5)
        values = values.detach().double().cpu()
        known = values.nan_to_num(0.0)
        colours = colours_of(known, end=deepest(known.flatten()) if end is None else end)
        image = axes.imshow(values.numpy(), aspect="auto", **colours)
        draw_scale(figure, image, known, ax=axes, label=scale, fraction=0.05, aspect=15)
        if divider:
            axes.axvline(divider - 0.5, color=INK, linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(True)
        axes.set_xticks(*across.ticks(width), rotation=90)
        axes.set_yticks(*down.ticks(height))
        axes.tick_params(length=2, labelsize=LETTER)
        axes.set_xlabel(across.name)
        axes.set_ylabel(down.name)
        figure.supxlabel(note, x=0.01, ha="left", fontsize=7, color=QUIET)
    return figure
