"""An attribution in a terminal: tokens coloured or marked by score, and a table of the highest scores."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import isnan
from re import DOTALL, fullmatch
from typing import NamedTuple, TypeAlias

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.padding import Padding
from rich.text import Text

from heta_lens._util.text import cut, legible, single_line, visible
from heta_lens.attribution import Attribution
from heta_lens.plots.attribution_text import LAST, score_formula
from heta_lens.plots.scales import (
    Shade,
    last_row,
    message_shares,
    percent_of,
    scale_end,
    shade_of,
    share_note,
    sink,
)
from heta_lens.span_attribution import SpanAttribution

STRONG, MIDDLE = 0.5, 0.25  # depths for brackets and 16 colours
BRACKETS, UNDERLINES = ("[]", "{}", "<>", "⟦⟧"), ("_", "~", "‗")  # the first that the text does not use is taken
BLUES, ORANGES = (231, 189, 153, 111, 69, 26), (231, 230, 223, 216, 209, 166)  # of 256 colours, darker and darker
CHIPS = 6  # colours of the legend per sign
INDENT = 2
TAB = "→   "
COLUMN_CELLS = 40  # the widest column of a table
GAPS = ("  ", " ")  # between columns; the narrow gap is for narrow terminals


# --------------------------------------------------------------------------------------------------------------- looks
class Look(NamedTuple):
    """A style for `rich`, and the marks around a word."""

    style: str = ""
    opening: str = ""
    closing: str = ""


Looks: TypeAlias = Callable[[float], Look]  # of a depth between -1 and 1


def truecolour(depth: float) -> Look:
    """Return ink on coloured paper, so that the terminal's background does not matter."""
    shade = shade_of(depth)
    return Look(f"{_ink(shade)} on {shade.css}")


def of_256(depth: float) -> Look:
    """Return ink on one of the numbered colours: 6 · 6 · 6 colours follow from number 16."""
    ramp = BLUES if depth > 0 else ORANGES
    number = ramp[round(abs(depth) * (len(ramp) - 1))]
    steps = (*divmod((number - 16) // 6, 6), (number - 16) % 6)
    return Look(f"{_ink(Shade(*(55 + 40 * step if step else 0 for step in steps)))} on color({number})")


def of_16(depth: float) -> Look:
    """Return bright white on blue or red, bold for strong depths: these pairs are legible in the usual palettes."""
    if abs(depth) < MIDDLE:
        return Look()
    weight = "bold " if abs(depth) >= STRONG else ""
    return Look(f"{weight}bright_white on {'blue' if depth > 0 else 'red'}")


def in_brackets(brackets: str, depth: float) -> Look:
    """Return a pair of brackets for a middle depth and two pairs for a strong depth, with a minus below 0."""
    opening, closing = brackets
    pairs = (abs(depth) >= MIDDLE) + (abs(depth) >= STRONG)
    return Look("", opening * pairs + ("-" if pairs and depth < 0 else ""), closing * pairs)


def unused(marks: Sequence[str], text: str) -> str:
    """Return the first of the marks that the text does not contain; the last mark if the text contains every mark."""
    return next((mark for mark in marks if not set(mark) & set(text)), marks[-1])


def _ink(paper: Shade) -> str:
    """Return black or white, whichever has more contrast: at least 4.5 on every paper."""
    channels = (channel / 255 for channel in paper)
    red, green, blue = (
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in channels
    )
    # The contrast of WCAG, (lighter + 0.05) / (darker + 0.05), is the same for black and white at this luminance.
    return "color(16)" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "color(231)"


# -------------------------------------------------------------------------------------------------------------- tables
class Column(NamedTuple):
    """A name, and a cell for every row; numbers are aligned to the right."""

    name: str
    cells: Sequence[str]
    right: bool = False


def table(columns: Sequence[Column], width: int) -> Text:
    """Return a table of lines of at most ``width`` cells, or a block with a line per column in a narrow terminal."""
    padded = [_padded(column) for column in columns]
    for gap in GAPS:
        rows = [gap.join(cells).rstrip() for cells in zip(*padded, strict=True)]
        if max(map(cell_len, rows)) <= width:
            return _bold_first(rows)
    rows = zip(*(column.cells for column in columns), strict=True)
    return Text("\n\n").join(block([column.name for column in columns], cells, width) for cells in rows)


def block(names: Sequence[str], cells: Sequence[str], width: int | None = None) -> Text:
    """Return a line with name and cell for every cell with text, cut at the width or free to be folded."""
    longest = max(map(cell_len, names))
    gap = GAPS[0] if longest else ""
    lines = [
        set_cell_size(name, longest) + gap + single_line(cell).strip()
        for name, cell in zip(names, cells, strict=True)
        if cell
    ]
    if not lines:
        return Text()
    if width is not None:
        return _bold_first([cut(line, width) for line in lines])
    shown = _bold_first(lines)
    shown.no_wrap, shown.overflow = False, "fold"
    return shown


def _padded(column: Column) -> list[str]:
    shown = [cut(single_line(cell), COLUMN_CELLS) for cell in [column.name, *column.cells]]
    width = max(map(cell_len, shown))
    return [" " * (width - cell_len(cell)) + cell if column.right else set_cell_size(cell, width) for cell in shown]


def _bold_first(lines: Sequence[str]) -> Text:
    head, *rest = lines  # joined to a single text, since `rich` takes a millisecond for every text
    return Text("\n", no_wrap=True, overflow="ellipsis").join([Text(head, style="bold"), *map(Text, rest)])


# ---------------------------------------------------------------------------------------------------------------- view
def terminal(
    attribution: Attribution | SpanAttribution,
    *,
    marked: Collection[int] = (),
    top: int = 8,
    coloured: bool = True,
    special: bool = False,
) -> "TerminalView":
    """Return a view for `rich` to print: ``rich.print(terminal(attribution))``.

    The view shows the prompt with tokens coloured by score, or marked with brackets on a terminal without colours and
    with ``coloured=False``. ``marked`` positions are underlined. Below stand the ``top`` highest scores with their
    parts, in the order of `Attribution.top`, and the messages of a chat. A span shows the sums over all targets.
    Special tokens and a chat template's have no colour and are not listed, except with ``special=True``.
    """
    return TerminalView(attribution, frozenset(marked), top, coloured, special)


@dataclass(frozen=True, eq=False, repr=False)
class TerminalView:
    """A result for a `rich` console, which prints the result in the console's colours and width."""

    result: Attribution | SpanAttribution
    marked: frozenset[int]
    top: int
    coloured: bool
    special: bool

    def __repr__(self) -> str:
        return f"TerminalView({self.result.title!r}): rich.print(view) shows it"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text | Padding]:
        attribution, width = self.result.summed, options.max_width
        system = console.color_system if self.coloured and not console.no_color else None
        prompt = ColouredPrompt(attribution, self.marked, system, self.special)
        below = share_note(attribution)
        yield Text(attribution.title, style="bold")
        yield from (Text(single_line(line)) for line in self.result.notes if line != below)
        yield Text()
        yield Padding(prompt.text, (0, 0, 1, INDENT), expand=False)
        yield prompt.legend
        yield Text()
        yield _highest(attribution, self.top, width, special=self.special)
        yield from [Text(single_line(below))] if below else []
        errors = any(error is not None for error in attribution.standard_errors.values())
        explained = [score_formula(attribution), "± is one standard error" if errors else ""]
        if any(explained):
            yield Text("; ".join(filter(None, explained)))
        if attribution.messages is not None:
            yield Text()
            yield _messages(attribution, width, special=self.special)


@dataclass(frozen=True)
class ColouredPrompt:
    """The tokens of a prompt, coloured as far as the colour system of a terminal can, and the legend of the colours."""

    attribution: Attribution
    marked: frozenset[int]
    system: str | None
    special: bool

    @cached_property
    def end(self) -> float:
        """The size of a score with the deepest colour."""
        return scale_end(self.attribution, special=self.special)

    @cached_property
    def coloured(self) -> list[bool]:
        """A mask of the tokens with a colour."""
        return (~self.attribution.hidden | self.special).tolist()

    @cached_property
    def look(self) -> Looks:
        if self.system is None:
            return partial(in_brackets, unused(BRACKETS, "".join(self.attribution.tokens)))
        return {"truecolor": truecolour, "256": of_256}.get(self.system, of_16)

    @property
    def has_levels(self) -> bool:
        """True for looks with only two depths."""
        return self.system not in ("truecolor", "256")

    @cached_property
    def underline(self) -> str:
        """The mark at both ends of underlined text in a terminal without styles."""
        return "" if self.system is not None else unused(UNDERLINES, "".join(self.attribution.tokens))

    @property
    def text(self) -> Text:
        line, attribution = Text(), self.attribution
        underlined = [position in self.marked for position in attribution.positions.tolist()]
        neighbours = zip([False, *underlined], underlined, [*underlined[1:], False], strict=False)
        rows = zip(attribution.tokens, attribution.scores.tolist(), self.coloured, neighbours, strict=True)
        for token, score, coloured, (before, now, after) in rows:
            look = self.look(max(-1.0, min(1.0, score / self.end))) if coloured else Look("dim")
            edges = self.underline * (now and not before), self.underline * (now and not after)
            line.append(_written(token, look, *edges), style=f"{look.style} underline" if now else look.style)
        return line

    @property
    def legend(self) -> Text:
        """The scores that colours or marks stand for, and the scores beyond the scale."""
        if not self.attribution.scores.any():
            return Text("all scores are 0")
        scale = self._levels if self.has_levels else self._chips
        if beyond := self._beyond:
            scale.append(f"; {'by far the largest' if self.has_levels else 'beyond the deepest colour'}: {beyond}")
        if self.underline and not self.marked.isdisjoint(self.attribution.positions.tolist()):
            scale.append(f"; {self.underline}word{self.underline} underlined")
        return scale

    @property
    def _negative(self) -> bool:
        scores = zip(self.attribution.scores.tolist(), self.coloured, strict=True)
        return any(score < 0 for score, coloured in scores if coloured)

    @property
    def _chips(self) -> Text:
        end, negative = self.end, self._negative
        depths = [step / (CHIPS - 1) for step in range(-CHIPS + 1 if negative else 0, CHIPS)]
        chips = [("  ", self.look(depth).style) for depth in depths]
        low = f"{-end:.4g}" if negative else "0"
        return Text.assemble("colour: ", low, " ", *chips, f" {end:.4g} ({self._share(end)})")

    @property
    def _levels(self) -> Text:
        legend = Text()
        signs, size = ((1, -1), "a size of ") if self._negative else ((1,), "")
        for level in (MIDDLE, STRONG):
            for sign in signs:
                look = self.look(sign * level)
                legend.append(f"{look.opening}word{look.closing}", style=look.style)
                legend.append(" or " if sign != signs[-1] else " ")
            legend.append(f"{size}{level * self.end:.4g} or more ({self._share(level * self.end)}), ")
        legend.right_crop(2)
        return legend

    @property
    def _beyond(self) -> str:
        """The coloured tokens beyond the deepest colour, except an attention sink (see `share_note`)."""
        attribution = self.attribution
        rows = zip(
            attribution.tokens,
            attribution.positions.tolist(),
            attribution.scores.tolist(),
            self.coloured,
            sink(attribution).tolist(),
            strict=True,
        )
        return ", ".join(
            f"{_quoted(visible(token))} at {position} with {score:.4g} ({self._share(score)})"
            for token, position, score, coloured, first in rows
            if coloured and not first and abs(score) > self.end
        )

    def _share(self, score: float) -> str:
        return f"{percent_of(self.attribution.scores, score)} of the score"


def _written(token: str, look: Look, begin: str, end: str) -> str:
    """Return the token with marks around the word, and not around the space before the word."""
    shown = legible(token, keep="\n").replace("\n", "⏎\n").replace("\t", TAB)
    if look.opening and not token.strip():
        shown = visible(token) + "\n" * token.count("\n")
    parts = fullmatch(r"( *)(.*?)(\n*)", shown, DOTALL)
    assert parts is not None  # the three groups match the empty text too
    space, word, line_ends = parts.groups()
    return f"{space}{begin}{look.opening}{word}{look.closing}{end}{line_ends}"


def _highest(attribution: Attribution, top: int, width: int, *, special: bool) -> Text:
    place = {position: row for row, position in enumerate(attribution.positions.tolist())}
    highest, end = attribution.top(top, special=special), last_row(attribution)
    rows = [place[token.positions[0]] for token in highest]
    columns = [
        Column("position", [str(token.positions[0]) for token in highest]),
        Column("token", [_quoted(visible(attribution.tokens[row])) + LAST * (row == end) for row in rows]),
        Column("score", _with_errors(attribution, rows), right=True),
        Column("share", [percent_of(attribution.scores, token.score) for token in highest], right=True),
        *(
            Column(name, [f"{part:.4g}" for part in values[rows].tolist()], right=True)
            for name, values in attribution.parts.items()
        ),
    ]
    return table(columns, width)


def _with_errors(attribution: Attribution, rows: list[int]) -> list[str]:
    errors = attribution.standard_errors.get("scores")
    shown = ["" if errors is None or isnan(errors[row]) else f" ± {float(errors[row]):.2g}" for row in rows]
    width = max(map(len, shown), default=0)  # aligns the scores
    return [f"{float(attribution.scores[row]):.4g}{error:{width}}" for row, error in zip(rows, shown, strict=True)]


def _messages(attribution: Attribution, width: int, *, special: bool) -> Text:
    shares = [message for message in message_shares(attribution) if special or not message.template]
    columns = [
        Column("message", ["" if message.template else str(number) for number, message in enumerate(shares)]),
        Column("role", [message.role for message in shares]),
        Column("share", [message.percent for message in shares], right=True),
        Column("score", [f"{message.score:.4g}" for message in shares], right=True),
        Column("text", ["" if message.template else _quoted(message.text) for message in shares]),
    ]
    return table(columns, width)


def _quoted(text: str) -> str:
    quote = '"' if "'" in text and '"' not in text else "'"
    return f"{quote}{text}{quote}"
