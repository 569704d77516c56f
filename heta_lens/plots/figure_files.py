"""Figures as files: SVG, PNG and PDF, the same bytes each time, with all characters that an installed font has."""

import unicodedata
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import cache, partial
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from heta_lens._util.extras import extra
from heta_lens._util.html_view import View
from heta_lens._util.printable_text import JOINERS
from heta_lens.plots.colours import BLUE, ORANGE, WHITE, Shade

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # slow to import, and an extra

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
