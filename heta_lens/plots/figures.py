"""Figures for papers and slides: bars and matrices, and SVG, PNG and PDF files with the same bytes every time."""

import unicodedata
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from html import escape
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.html_view import View
from heta_lens._util.options import check_at_least, check_choice
from heta_lens._util.python import check_extra, extra
from heta_lens._util.text import JOINERS
from heta_lens.attribution import Attribution
from heta_lens.plots.attribution_text import score_terms
from heta_lens.plots.scales import BLUE, ORANGE, WHITE, Shade, deepest, hidden_in, scaled_tokens, share_note, sink
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
STYLE: Mapping[str, Any] = {
    "svg.hashsalt": "heta_lens",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "text.usetex": False,
    "text.hinting": "none",  # letters are as wide as measured
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
# Fonts with a box for every character, and matplotlib's fonts of mathematics, with other characters than they say.
UNFIT = ("lastresort", ".lastresort", "stixnon", "stixsize", "cmb10", "cmex10", "cmmi10", "cmr10", "cmss10", "cmsy10",
         "cmti10", "cmtt10")  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- files
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
    return extra("matplotlib", NEEDED_BY).rc_context({**STYLE, "font.family": [*families]})


def new_figure(**options: Any) -> Figure:
    return extra("matplotlib.figure", NEEDED_BY).Figure(**options)


def _file(draw: Callable[[], Figure], kind: str) -> bytes:
    written = BytesIO()
    with figure_style():
        figure = draw()
        texts: list[Any] = figure.findobj(extra("matplotlib.text", NEEDED_BY).Text)
        names = {name for text in texts for name in text.get_fontfamily()}
        # A PDF can embed a font with PostScript outlines only as kind 3, and TrueType fonts better as kind 42.
        fonts = 3 if any(_is_postscript(_font_path(name)) for name in names) else STYLE["pdf.fonttype"]
        with extra("matplotlib", NEEDED_BY).rc_context({"pdf.fonttype": fonts}):
            figure.savefig(written, format=kind, dpi=DPI, bbox_inches="tight", pad_inches=0.04, metadata=METADATA[kind])
    return written.getvalue()


@cache
def _is_postscript(path: str) -> bool:
    with Path(path).open("rb") as file:
        head = file.read(16)
        if head.startswith(b"ttcf"):  # a collection: the first font decides
            file.seek(int.from_bytes(head[12:], "big"))
            head = file.read(4)
    return head.startswith(b"OTTO")


# ---------------------------------------------------------------------------------------------------------- characters
def drawable(text: str) -> str:
    """Return the text with ⏎ for line ends, → for tabs, and ⟨U+4E2D⟩ for invisible characters and those in no font."""
    return "".join(map(_drawable if text.strip(JOINERS) else _code, text))


def quoted(token: str, most: int = 24) -> str:
    """Return a token in quotes, as Python writes it, cut to a length."""
    written = repr(token)
    return drawable(written if len(written) <= most else written[: most - 1] + "…")


@cache
def _drawable(character: str) -> str:
    if character in "\n\t":
        return "⏎" if character == "\n" else "→"
    shown = character.isprintable() or character in JOINERS or unicodedata.category(character) == "Zs"
    return character if shown and _font_of(character) else _code(character)


def _code(character: str) -> str:
    return f"⟨U+{ord(character):04X}⟩"


@cache
def _font_of(character: str) -> str | None:
    """Return the first installed font with the character; the base font comes first."""
    return next((name for name in _upright_fonts() if _has(name, character)), None)


@cache
def _upright_fonts() -> tuple[str, ...]:
    fonts = extra("matplotlib.font_manager", NEEDED_BY)
    names = {
        entry.name
        for entry in fonts.fontManager.ttflist
        if (entry.style, entry.stretch, fonts.weight_dict.get(entry.weight, entry.weight)) == ("normal", "normal", 400)
        and not entry.name.lower().replace(" ", "").startswith(UNFIT)
    }
    return BASE_FONT, *sorted(names - {BASE_FONT})


def _has(name: str, character: str) -> bool:
    """Return True if a font has an outline for the character, unlike fonts of coloured pictures."""
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
    return extra("matplotlib.font_manager", NEEDED_BY).get_font(_font_path(name))


def _font_path(name: str) -> str:
    fonts = extra("matplotlib.font_manager", NEEDED_BY)
    return fonts.findfont(fonts.FontProperties(family=[name]))


# ------------------------------------------------------------------------------------------------------------- colours
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
    beyond = bool((values < low).any()), bool((values > high).any())
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[beyond]
    bar = figure.colorbar(colours, extend=extend, ticks=sorted({low, 0.0, high}), format=_number, **place)
    bar.outline.set_linewidth(0.4)
    bar.ax.tick_params(length=2, labelsize=7)
    return bar


def _number(value: float, _: int) -> str:
    return f"{value:.3g}".replace("-", "\N{MINUS SIGN}")


# ---------------------------------------------------------------------------------------------------------------- bars
BarOrder: TypeAlias = Literal["score", "text"]

BAR_WIDTH, BAR_HEIGHT = 5.6, 0.2  # inches
LEAST_SHARE = 0.01  # of the score: the bar of a smaller part is too short to see
PART_COLOURS = {"curvature": "#2f6f62", "information": "#b9d9cf"}


def bars(
    attribution: Attribution | SpanAttribution,
    top: int = 20,
    confidence: float = 0.95,
    *,
    order: BarOrder = "score",
    special: bool = False,
) -> View:
    """Return the scores of largest size as bars, highest on top; a notebook shows the view, ``.save`` keeps it.

    ``order="text"`` sorts the same tokens as in the text. Scores with standard errors have confidence intervals. A
    score M·(βS + γI) with two parts that count has the share of each part beside the bar. A span shows the sums over
    all targets. Special tokens and a chat template's are left out, except with ``special=True``. Files: SVG, PNG, PDF,
    and a CSV table of every token.
    """
    check_at_least("top", top, 1, whole=True)
    check_choice("order", order, get_args(BarOrder))
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} must be between 0 and 1")
    check_extra("matplotlib", NEEDED_BY)
    shown = attribution.summed
    rows = bar_rows(shown, top, order, ~shown.hidden | special)
    csv = {".csv": lambda: attribution.to_frame().to_csv(index=False)}
    return picture(attribution.title, lambda: bar_figure(shown, rows, confidence, special=special), csv)


def bar_rows(attribution: Attribution, top: int, order: BarOrder, shown: Bool[Tensor, "pos"]) -> list[int]:
    """Return the rows of the tokens with a bar, from the top down."""
    largest = attribution.scores.abs().argsort(descending=True, stable=True)
    largest = largest[shown[largest]][:top].sort().values
    if order == "score":
        largest = largest[attribution.scores[largest].argsort(descending=True, stable=True)]
    return largest.tolist()


def bar_figure(attribution: Attribution, rows: Sequence[int], confidence: float, *, special: bool) -> Figure:
    """Return the figure of `bars` for the tokens at ``rows``."""
    labels, title = [quoted(attribution.tokens[row]) for row in rows], drawable(attribution.title)
    terms = counting_terms(attribution)
    count = len(attribution) if special else int((~attribution.hidden).sum())
    which = f"the {len(rows)} of {count} tokens with the largest scores" if len(rows) < count else f"all {count} tokens"
    with figure_style([title, *labels]):
        size = (BAR_WIDTH, BAR_HEIGHT * len(rows) + (1.3 if terms else 1.05))
        figure = new_figure(figsize=size, layout="constrained")
        widths = [3, 1] if terms else [1]
        left, *right = figure.subplots(1, len(widths), sharey=True, squeeze=False, width_ratios=widths)[0]
        figure.suptitle(title, x=0.01, ha="left", fontsize=9.5)
        _draw_labels(left, labels, attribution.positions[rows].tolist())
        _draw_bars(left, attribution, rows, confidence)
        _limit_axis(left, attribution.scores[rows], scaled_tokens(attribution, special=special)[rows])
        for axes in right:
            _draw_part_shares(axes, terms, rows)
        note = drawable("; ".join(filter(None, [which, share_note(attribution)])))
        figure.supxlabel(note, x=0.01, ha="left", fontsize=7, color=QUIET)
    return figure


def _draw_labels(axes: Axes, labels: Sequence[str], positions: Sequence[int]) -> None:
    """Draw the tokens, and apart the positions: a right-to-left script would reorder token and position."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0, pad=10 + 5 * len(str(max(positions))))
    left_edge = axes.get_yaxis_transform()
    for row, position in enumerate(positions):
        axes.annotate(
            str(position), (0, row), (-5, 0), left_edge, "offset points", ha="right", va="center", color=QUIET,
            fontsize=7,
        )  # fmt: skip


def _draw_bars(axes: Axes, attribution: Attribution, rows: Sequence[int], confidence: float) -> None:
    scores = attribution.scores[rows].tolist()
    colours = [[part / 255 for part in (ORANGE if score < 0 else BLUE)] for score in scores]
    axes.barh(range(len(rows)), scores, height=0.7, color=colours)
    label = "score"
    if attribution.standard_errors.get("scores") is not None:
        low, high = (end[rows].tolist() for end in attribution.interval(confidence))
        axes.hlines(range(len(rows)), low, high, color=INK, linewidth=0.9, label="interval")
        axes.plot([*low, *high], [*range(len(rows))] * 2, linestyle="none", marker="|", markersize=4, color=INK)
        label = f"score, with its {100 * confidence:.3g}% confidence interval"
    axes.axvline(0, color=INK, linewidth=0.6)
    axes.set_xlabel(label)


def _limit_axis(axes: Axes, scores: Float[Tensor, "row"], inside: Bool[Tensor, "row"]) -> None:
    """End the axis after the largest score ``inside``; a longer bar ends in a number."""
    if inside.all() or not inside.any():
        return
    ends = scores[inside].tolist()
    low, high = min(0.0, *ends) * 1.15, max(0.0, *ends) * 1.15
    axes.set_xlim(low, high)
    for row in (~inside).nonzero()[:, 0].tolist():
        score = float(scores[row])
        end, side = (high, "right") if score > 0 else (low, "left")
        axes.text(end, row, f"{score:.3g}", ha=side, va="center", color="white", fontsize=7)


def counting_terms(attribution: Attribution) -> dict[str, Float[Tensor, "pos"]]:
    """Return the terms ``M β S`` and ``M γ I`` of Eq. 4 if their sum is the score and neither is negligible."""
    terms, shares = score_terms(attribution) or [], (attribution.diagnostics.share or {}).values()
    if len(terms) < len(PART_COLOURS) or min(shares, default=1) < LEAST_SHARE:
        return {}
    return {term.part: term.of(attribution.parts) for term in terms}


def _draw_part_shares(axes: Axes, terms: dict[str, Float[Tensor, "pos"]], rows: Sequence[int]) -> None:
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


# -------------------------------------------------------------------------------------------------------------- matrix
MAP_WIDTH, MAP_MARGIN = 6.3, 1.6  # inches: of the figure, and of everything beside and around the map
CELL_SIZE, LEAST_HEIGHT, MOST_HEIGHT = 0.2, 0.5, 6.0  # inches: of a cell with enough room, and of the map
TALL = 2  # the largest ratio of a cell's height to its width, if rows and columns differ
LETTER, SMALLEST_LETTER, LINE_HEIGHT = 7.0, 5.0, 1.2  # points of a label's letters, and lines in letters
LONGEST_LABEL = 16  # letters


class Side(NamedTuple):
    """The name and the labels of rows or columns, with the places of the labels in the text, if they have places."""

    name: str
    labels: Sequence[str]
    places: Sequence[int] = ()

    def ticks(self, inches: float) -> tuple[Sequence[int], Sequence[str], float]:
        """Return the rows with a label, the labels, and the size of the letters in points.

        Every row has a label, in smaller letters if needed, or else only as many rows as are legible, with places.
        """
        points, count = 72 * inches / LINE_HEIGHT, len(self.labels)
        if (size := points / count) >= SMALLEST_LETTER:
            return range(count), self.labels, min(LETTER, size)
        rows = range(0, count, ceil(count * LETTER / points))
        texts = [f"{self.labels[row]}  {self.places[row] if self.places else ''}".rstrip() for row in rows]
        return rows, texts, LETTER


@dataclass(frozen=True)
class HeatMap:
    """Values with the sides of their table, NaN for cells without a value, and a line before column ``divider``.

    Values of size ``end`` have the deepest colour.
    """

    title: str
    values: Float[Tensor, "row column"]
    down: Side
    across: Side
    scale: str
    note: str = ""
    divider: int = 0
    end: float | None = None


def matrix(attribution: Attribution | SpanAttribution, *, special: bool = False) -> View:
    """Return a heat map: a notebook shows the view, and ``.save("matrix.pdf")`` keeps the map, or ``.svg`` or ``.png``.

    A span has the scores of every source (x) for every target (y), grey where a source does not come before the target.
    An attribution with ``interactions`` has every pair of tokens, grey on the diagonal, where there is no pair. Special
    tokens and a chat template's are left out, except with ``special=True``.
    """
    make = span_map if isinstance(attribution, SpanAttribution) else pair_map
    shown = make(attribution, special=special)  # type: ignore[arg-type]
    check_extra("matplotlib", NEEDED_BY)
    return picture(shown.title, lambda: map_figure(shown), {})


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
    check_extra("matplotlib", NEEDED_BY)
    down = Side("layer", [str(layer) for layer in layers])
    return map_figure(HeatMap(title, restored, down, Side("", _labels(labels), places), "restored", note))


def span_map(span: SpanAttribution, *, special: bool = False) -> HeatMap:
    """Return the scores of a span as targets by sources."""
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
    return HeatMap(span.title, values[:, sources], down, across, "score", note, divider, end)


def pair_map(attribution: Attribution, *, special: bool = False) -> HeatMap:
    """Return the interactions of pairs of tokens."""
    if attribution.interactions is None:
        raise ValueError(
            "this attribution has no pairs of tokens: give attribute interactions=True, or use attribute_span for a "
            "matrix of targets and sources"
        )
    rows = (~attribution.hidden | special).nonzero()[:, 0]
    values = attribution.interactions[rows][:, rows].fill_diagonal_(torch.nan)
    side = Side("token", _labels([attribution.tokens[row] for row in rows]), attribution.positions[rows].tolist())
    return HeatMap(attribution.title, values, side, side, "interaction", "grey: no pair")


def _labels(tokens: Sequence[str]) -> tuple[str, ...]:
    """Return tokens as labels, without spaces around them; tokens of white space alone are quoted."""
    stripped = [token.strip() or repr(token) for token in tokens]
    return tuple(drawable(cut if len(cut) <= LONGEST_LABEL else cut[: LONGEST_LABEL - 1] + "…") for cut in stripped)


def map_figure(shown: HeatMap) -> Figure:
    """Return the figure of a heat map."""
    title, note = drawable(shown.title), drawable(shown.note)
    rows, columns = shown.values.shape
    width = min(MAP_WIDTH - MAP_MARGIN, max(columns * CELL_SIZE, 1.5))
    cell = width / columns
    cell = cell if shown.down == shown.across else min(CELL_SIZE, TALL * cell)  # cells of pairs are square
    height = min(MOST_HEIGHT, max(rows * cell, LEAST_HEIGHT))
    with figure_style([title, note, *shown.down.labels, *shown.across.labels]):
        figure = new_figure(figsize=(width + MAP_MARGIN, height + MAP_MARGIN), layout="constrained")
        axes = figure.subplots()
        figure.suptitle(title, x=0.01, ha="left", fontsize=9.5)
        values = shown.values.detach().double().cpu()
        known = values.nan_to_num(0.0)
        end = deepest(known.flatten()) if shown.end is None else shown.end
        image = axes.imshow(values.numpy(), aspect="auto", **colours_of(known, end=end))
        draw_scale(figure, image, known, ax=axes, label=shown.scale, fraction=0.05, aspect=15)
        if shown.divider:
            axes.axvline(shown.divider - 0.5, color=INK, linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(True)
        across, texts, size = shown.across.ticks(width)
        axes.set_xticks(across, texts, rotation=90, fontsize=size)
        down, texts, size = shown.down.ticks(height)
        axes.set_yticks(down, texts, fontsize=size)
        axes.tick_params(length=2)
        axes.set_xlabel(shown.across.name)
        axes.set_ylabel(shown.down.name)
        figure.supxlabel(note, x=0.01, ha="left", fontsize=7, color=QUIET)
    return figure
