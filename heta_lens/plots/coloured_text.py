"""Tokens as coloured text for a paper or a slide: as a figure, and as LaTeX with boxes that wrap at line ends."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from heta_lens._util.python import extra
from heta_lens._util.text import JOINERS
from heta_lens.attribution import Attribution
from heta_lens.plots.attribution_text import headline, kicker, predicted
from heta_lens.plots.figures import INK, NEEDED_BY, QUIET, colours_of, draw_scale, drawable, figure_style, quoted
from heta_lens.plots.scales import BLUE, ORANGE, WHITE, ColouredScores, Shade, shade_of, share_note, tint
from heta_lens.span_attribution import SpanAttribution

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any


@dataclass(frozen=True)
class ColouredText(ColouredScores):
    """A text to colour, and the tokens of a span's answer, ``written``, which follow in a frame.

    ``marked`` are rows of evidence, and ``note`` is a line on the evidence.
    """

    title: str
    written: tuple[str, ...]
    marked: frozenset[int]
    note: str

    @classmethod
    def of(
        cls,
        result: Attribution | SpanAttribution,
        marked: Collection[int] = (),
        note: str = "",
        *,
        special: bool = False,
    ) -> "ColouredText":
        """Return the coloured text of a result with evidence at the ``marked`` positions and a note on the evidence."""
        scored = result.summed
        title = f"{headline(scored)}   {kicker(scored)}"
        written = tuple(result.tokens[result.start :]) if isinstance(result, SpanAttribution) else ()
        rows = frozenset(row for row, position in enumerate(scored.positions.tolist()) if position in marked)
        return cls(scored, special, title, written, rows, note or ("underlined: evidence" if rows else ""))

    @property
    def tints(self) -> list[Shade]:
        """The light colour of each token, under black text."""
        return [tint(shade_of(depth)) for depth in self.depths]

    @property
    def notes(self) -> list[str]:
        """Lines on facts that the colours do not show: a score beyond the scale, and the frame."""
        scored, row, clipped = self.attribution, self.beyond, ""
        if row is not None:
            token, score = f"{quoted(scored.tokens[row])} at {int(scored.positions[row])}", float(scored.scores[row])
            clipped = f"{token} is beyond the scale: {score:.3g} ({self.share(score)})"
        possible = [
            clipped,
            "framed: the answer that is explained" if self.written else "",
            share_note(scored),
            scored.diagnostics.note,
            self.note,
        ]
        return [*filter(None, possible)]

    @property
    def all_tokens(self) -> tuple[str, ...]:
        """The tokens, and the tokens of the answer."""
        return (*self.attribution.tokens, *self.written)

    @property
    def answer(self) -> str:
        """What the model predicts after the text, with its probability; a span has its own tokens there."""
        sides = [" ".join(filter(None, side)) for side in predicted(self.attribution).targets]
        return "" if self.written else f" → {' rather than '.join(sides)}"


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


def without_space(text: str) -> str:
    """Return a text without the spaces before it, which no view colours; spaces alone stay."""
    return text.lstrip(" ") or text


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
    colours, count = [*shown.tints, *[WHITE] * len(shown.written)], len(shown.attribution.tokens)
    rectangle = extra("matplotlib.patches", NEEDED_BY).Rectangle
    for piece in pieces:
        base = TITLE + LINE * piece.line + ABOVE + 1  # from the figure's top to the line that the letters stand on
        if piece.token == len(colours):
            axes.text(piece.left, base, piece.text, size=SIZE, color=QUIET)
            continue
        look = {"fc": [part / 255 for part in colours[piece.token]], "ec": "white" if piece.token < count else INK}
        axes.add_patch(rectangle((piece.left, base - ABOVE), piece.width, ABOVE + BELOW, linewidth=0.4, **look))
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
    axes.text(SCALE_WIDTH + 24, top + 17, f"deepest colour: {shown.end:.3g}, {shown.share(shown.end)}", size=8)


ARROW = r"\ensuremath{\rightarrow}"
LONGEST = 40  # characters of a box, since no line breaks inside
ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",  # other characters in older fonts, like the next three
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "-": r"-\kern0pt{}",  # two hyphens would be a dash
    ",": r",\kern0pt{}",  # two commas would be a quotation mark
    " ": r"\ ",  # TeX reads several spaces as a single space
    "\n": r"\hetanewline{}",
    "\t": ARROW,
    "→": ARROW,
    "⏎": r"\hetanewline{}",  # how views write white space alone
    **dict.fromkeys("␣⍽", r"\textvisiblespace{}"),
    **{character: f"\\{character}" for character in "{}$&#_%"},
}
HEAD = r"""% In the preamble: \usepackage{xcolor}
% For characters beyond Latin letters, compile with LuaLaTeX or XeLaTeX, and choose a font that has them.
\begingroup
\definecolor{hetaabove}{RGB}{ABOVE}%
\definecolor{hetabelow}{RGB}{BELOW}%
\providecommand{\hetatoken}[2]{\colorbox[RGB]{#1}{\strut{}#2}}%
\providecommand{\hetaframed}[1]{\fbox{\strut{}#1}}%
\providecommand{\hetanewline}{\ensuremath{\hookleftarrow}}%
\providecommand{\hetaspace}{\penalty0\hskip0pt plus 1pt\relax}% a line may break here
\providecommand{\hetainside}{\penalty900\hskip0pt\relax}% and here, if it must
\setlength{\fboxsep}{0pt}\setlength{\parindent}{0pt}\raggedright
\setlength{\lineskip}{1.5pt}\setlength{\lineskiplimit}{1pt}\hbadness=10000\relax
"""


def latex(
    attribution: Attribution | SpanAttribution, *, marked: Collection[int] = (), note: str = "", special: bool = False
) -> str:
    r"""Return LaTeX of the question, the text with every token coloured by score, and the meaning of the colours.

    Put the LaTeX into a file and ``\input`` the file. The commands are local to the paragraph, and need xcolor. A span
    is coloured by the sums over all targets, and the span's own tokens follow in frames. ``marked`` positions are
    underlined, as evidence, and ``note`` may say why. ``special=True`` colours special tokens and a chat template's
    too.
    """
    return latex_of(ColouredText.of(attribution, marked, note, special=special))


def latex_of(shown: ColouredText) -> str:
    return "".join(
        [
            HEAD.replace("ABOVE", tint(BLUE).numbers).replace("BELOW", tint(ORANGE).numbers),
            f"\\textbf{{{escaped(shown.title)}}}\\par\\smallskip\n",
            "".join(_boxes(shown)).removesuffix("\\newline\n"),
            f"%\n\\hetaspace{{}}{escaped(shown.answer)}%\n" if shown.answer else "",
            "\\par\\smallskip\n",
            f"{{\\footnotesize {_caption(shown)}%\n",
            *(f"\\par {escaped(note)}%\n" for note in shown.notes),
            "\\par}\\endgroup\n",
        ]
    )


def escaped(text: str) -> str:
    """Return LaTeX that shows exactly the text: no command, no ligature, every space, ⟨U+202E⟩ for the invisible."""
    return "".join(
        ESCAPES.get(character, character)
        if character in ESCAPES or character.isprintable() or character in JOINERS
        else f"\\textless{{}}U+{ord(character):04X}\\textgreater{{}}"
        for character in text
    )


def _boxes(shown: ColouredText) -> Iterator[str]:
    """Yield a box per token on a line of LaTeX; a token with line ends and a very long token have several boxes."""
    boxes = [f"\\hetatoken{{{shade.numbers}}}" for shade in shown.tints]
    boxes += ["\\hetaframed"] * len(shown.written)
    pieces = [
        (number, text)
        for number, token in enumerate(shown.all_tokens)
        for text in re.findall(rf"[^\n]{{0,{LONGEST - 1}}}\n|[^\n]{{1,{LONGEST}}}", token)
    ]
    for (_, last), (number, text) in pairwise([(-1, ""), *pieces]):
        if last:
            between_words = last[-1].isspace() or (text[0].isspace() and text[0] != "\n")
            yield "\\hetaspace" if between_words else "\\hetainside"
        bare = without_space(text)
        shown_text = f"\\underline{{{escaped(bare)}}}" if number in shown.marked else escaped(bare)
        yield f"{escaped(text[: len(text) - len(bare)])}{boxes[number]}{{{shown_text}}}"
        yield "\\newline\n" if text.endswith("\n") else "%\n"


def _caption(shown: ColouredText) -> str:
    """Return the legend of the deepest colours and of white."""
    end = shown.end
    box = "\\colorbox{{{}}}{{\\strut\\hspace{{1.2em}}}} {}"
    below = [box.format("hetabelow", f"$-{end:.3g}$")] if bool((shown.shown < 0).any()) else []
    above = box.format("hetaabove", f"${end:.3g}$, which is {escaped(shown.share(end))}")
    return "\\quad\n".join([*below, "white is 0", above])
