"""An attribution in a terminal: its tokens coloured or marked by score, and the highest of them in numbers."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from re import DOTALL, fullmatch
from typing import NamedTuple, TypeAlias

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.padding import Padding
from rich.text import Text

from heta_lens._util.text import cut, legible, single_line, visible
from heta_lens.attribution import Attribution
from heta_lens.plots.attribution_text import LAST
from heta_lens.plots.scales import (
    Shade,
    held,
    last,
    message_shares,
    percent_of,
    scale_end,
    score_formula,
    shade_of,
    sink,
)
from heta_lens.span_attribution import SpanAttribution

# ----------------------------------------------------------------------------------------------------- terminal styles
# How deep a score is in a terminal: colours that are legible on a dark and a light one, or marks in the text.
#
# A depth is between -1 and 1, as deep as colour goes. A terminal of millions or of 256 colours shows it as ink on
# paper,
# so that nothing depends on the terminal's own background. Of 16 colours nobody knows how they look, so that only pairs
# are used that are far apart in the usual palettes. Without colours, brackets say it.


STRONG, MIDDLE = 0.5, 0.25  # the depths from which there are marks, where there are only two of them
BRACKETS, UNDERLINES = ("[]", "{}", "<>", "⟦⟧"), ("_", "~", "‗")
BLUES, ORANGES = (231, 189, 153, 111, 69, 26), (231, 230, 223, 216, 209, 166)  # of 256 colours, darker and darker


class Look(NamedTuple):
    """A style for `rich`, and what is written around the word."""

    style: str = ""
    opening: str = ""
    closing: str = ""


Looks: TypeAlias = Callable[[float], Look]


def truecolour(depth: float) -> Look:
    shade = shade_of(depth)
    return Look(f"{_ink(shade)} on {shade.css}")


def of_256(depth: float) -> Look:
    ramp = BLUES if depth > 0 else ORANGES
    number = ramp[round(abs(depth) * (len(ramp) - 1))]
    return Look(f"{_ink(_of_number(number))} on color({number})")


def of_16(depth: float) -> Look:
    """Bright white on blue or red, and bold where it is strong."""
    if abs(depth) < MIDDLE:
        return Look()
    weight = "bold " if abs(depth) >= STRONG else ""
    return Look(f"{weight}bright_white on {'blue' if depth > 0 else 'red'}")


def in_brackets(brackets: str) -> Looks:
    """One pair around what is of middle depth, two around what is strong, with a minus where it is below 0."""
    opening, closing = brackets

    def look(depth: float) -> Look:
        pairs = (abs(depth) >= MIDDLE) + (abs(depth) >= STRONG)
        return Look("", opening * pairs + ("-" if pairs and depth < 0 else ""), closing * pairs)

    return look


def unused(marks: Sequence[str], text: str) -> str:
    """The first of these marks that the text does not use itself; the last, if it uses all."""
    return next((mark for mark in marks if not set(mark) & set(text)), marks[-1])


def _of_number(number: int) -> Shade:
    """One of the 6 · 6 · 6 colours that are numbered from 16 on."""
    steps = (*divmod((number - 16) // 6, 6), (number - 16) % 6)
    return Shade(*(55 + 40 * step if step else 0 for step in steps))


def _ink(paper: Shade) -> str:
    """Black or white, whichever is easier to read: the contrast is 4.5 or more on any paper."""
    red, green, blue = (_linear(channel / 255) for channel in paper)
    # The contrast of WCAG, (lighter + 0.05) / (darker + 0.05), is the same for both at this luminance.
    return "color(16)" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "color(231)"


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


# ------------------------------------------------------------------------------------------------------ terminal table
# A table of text for a terminal, and the same as a list where the terminal is too narrow for its columns.


WIDE = 40  # the most cells of a column
GAPS = ("  ", " ")  # between columns; the narrow one where room is short


class Column(NamedTuple):
    """A name, and a cell in every row; numbers are to the right."""

    name: str
    cells: Sequence[str]
    right: bool = False


def table(columns: Sequence[Column], width: int) -> Text:
    """Lines of at most ``width`` cells: a row each if they fit; else a block of lines each, with a column in a line."""
    padded = [_padded(column) for column in columns]
    for gap in GAPS:
        rows = [gap.join(cells).rstrip() for cells in zip(*padded, strict=True)]
        if max(map(cell_len, rows)) <= width:
            return _bold_first(rows)
    rows = zip(*(column.cells for column in columns), strict=True)
    blocks = (block([column.name for column in columns], cells, width) for cells in rows)
    return Text("\n\n").join(blocks)


def block(names: Sequence[str], cells: Sequence[str], width: int | None = None) -> Text:
    """A row as lines of a name and a cell each, without empty ones; cut at the width, or free to be folded."""
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
    """A column's name and its cells, all of one width."""
    shown = [cut(single_line(cell), WIDE) for cell in [column.name, *column.cells]]
    width = max(map(cell_len, shown))
    return [" " * (width - cell_len(cell)) + cell if column.right else set_cell_size(cell, width) for cell in shown]


def _bold_first(lines: Sequence[str]) -> Text:
    # One text of lines: for every cell of a table of its own, `rich` takes a millisecond.
    head, *rest = lines
    return Text("\n", no_wrap=True, overflow="ellipsis").join([Text(head, style="bold"), *map(Text, rest)])


COLOURS = {"truecolor": truecolour, "256": of_256}  # and all others of `rich` have 16
CHIPS = 6  # of the legend, from no colour to the deepest
INDENT = 2
TAB = "→   "


def terminal(
    attribution: Attribution | SpanAttribution,
    *,
    marked: Collection[int] = (),
    top: int = 8,
    coloured: bool = True,
    special: bool = False,
) -> "TerminalView":
    """Something for `rich` to print: ``rich.print(terminal(attribution))``.

    The prompt has its tokens coloured by score, as far as the terminal can, or marked with brackets where it has no
    colours or ``coloured=False``. ``marked`` positions are underlined; the ``top`` highest scores are listed with their
    parts, in the order of `Attribution.top`, and the messages of a chat. A span has the scores of all of its targets
    together. Special tokens and a chat template's have no colour and are not listed, except with ``special=True``.
    """
    return TerminalView(attribution, frozenset(marked), top, coloured, special)


@dataclass(frozen=True, eq=False, repr=False)
class TerminalView:
    """What `terminal` returns; the console that prints it says which colours there are, and how much room."""

    attribution: Attribution | SpanAttribution
    marked: frozenset[int]
    top: int
    coloured: bool
    special: bool

    def __repr__(self) -> str:
        return f"TerminalView({self.attribution.title!r}): rich.print(view) shows it"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text | Padding]:
        attribution, width = self.attribution.summed, options.max_width
        system = console.color_system if self.coloured and not console.no_color else None
        manner = Manner.of(attribution, system, special=self.special)
        below = held(attribution)
        yield Text(attribution.title, style="bold")
        yield from (Text(single_line(line)) for line in self.attribution.notes if line != below)
        yield Text()
        yield Padding(_prompt(attribution, manner, self.marked), (0, 0, 1, INDENT), expand=False)
        yield _legend(attribution, manner, underlined=not self.marked.isdisjoint(attribution.positions.tolist()))
        yield Text()
        yield _tokens(attribution, self.top, width, special=self.special)
        yield from [Text(single_line(below))] if below else []
        errors = (
            "± is one standard error"
            if any(error is not None for error in attribution.standard_errors.values())
            else ""
        )
        if below := "; ".join(filter(None, [score_formula(attribution), errors])):
            yield Text(below)
        if attribution.messages is not None:
            yield Text()
            yield _messages(attribution, width, special=self.special)


class Manner(NamedTuple):
    """How depth is shown: as a look; if there are but two levels of it, as these; and what underlines in the text."""

    end: float  # the size that has the deepest colour
    coloured: Sequence[bool]  # the tokens that have colours
    look: Looks
    levels: tuple[float, ...] = ()
    underline: str = ""

    @classmethod
    def of(cls, attribution: Attribution, system: str | None, *, special: bool) -> "Manner":
        scale = scale_end(attribution, special=special), (~attribution.hidden | special).tolist()
        if system in COLOURS:
            return cls(*scale, COLOURS[system])
        if system is not None:
            return cls(*scale, of_16, (MIDDLE, STRONG))
        text = "".join(attribution.tokens)
        return cls(*scale, in_brackets(unused(BRACKETS, text)), (MIDDLE, STRONG), unused(UNDERLINES, text))


# ---------------------------------------------------------------------------------------------------------- the prompt
def _prompt(attribution: Attribution, manner: Manner, marked: Collection[int]) -> Text:
    line = Text()
    underlined = [position in marked for position in attribution.positions.tolist()]
    neighbours = zip([False, *underlined], underlined, [*underlined[1:], False], strict=False)
    rows = zip(attribution.tokens, attribution.scores.tolist(), manner.coloured, neighbours, strict=True)
    for token, score, coloured, (before, now, after) in rows:
        look = manner.look(max(-1.0, min(1.0, score / manner.end))) if coloured else Look("dim")
        edges = manner.underline * (now and not before), manner.underline * (now and not after)
        line.append(_written(token, look, *edges), style=f"{look.style} underline" if now else look.style)
    return line


def _written(token: str, look: Look, begin: str, end: str) -> str:
    """The token with its marks, which stand around the word and not around the space before it."""
    shown = legible(token, keep="\n").replace("\n", "⏎\n").replace("\t", TAB)
    if look.opening and not token.strip():
        shown = visible(token) + "\n" * token.count("\n")
    parts = fullmatch(r"( *)(.*?)(\n*)", shown, DOTALL)
    assert parts is not None  # of which each may be empty
    space, word, line_ends = parts.groups()
    return f"{space}{begin}{look.opening}{word}{look.closing}{end}{line_ends}"


def _legend(attribution: Attribution, manner: Manner, *, underlined: bool) -> Text:
    """What colours or marks stand for, and what is beyond them."""
    if not attribution.scores.any():
        return Text("all scores are 0")
    scale = _levels(attribution, manner) if manner.levels else _chips(attribution, manner)
    if beyond := _beyond(attribution, manner):
        scale.append(f"; {'by far the largest' if manner.levels else 'beyond the deepest colour'}: {beyond}")
    if underlined and manner.underline:
        scale.append(f"; {manner.underline}word{manner.underline} underlined")
    return scale


def _chips(attribution: Attribution, manner: Manner) -> Text:
    """A row of colours between two numbers."""
    end, negative = manner.end, _has_negative(attribution, manner)
    depths = [step / (CHIPS - 1) for step in range(-CHIPS + 1 if negative else 0, CHIPS)]
    chips = [("  ", manner.look(depth).style) for depth in depths]
    return Text.assemble(
        "colour: ", f"{-end:.4g}" if negative else "0", " ", *chips, f" {end:.4g} ({_share(attribution, end)})"
    )


def _levels(attribution: Attribution, manner: Manner) -> Text:
    """Every level's mark, and from which score on it is there."""
    legend, end = Text(), manner.end
    signs = (1, -1) if _has_negative(attribution, manner) else (1,)
    for level in manner.levels:
        for sign in signs:
            look = manner.look(sign * level)
            legend.append(f"{look.opening}word{look.closing}", style=look.style)
            legend.append(" or " if sign != signs[-1] else " ")
        size = "a size of " if len(signs) > 1 else ""
        legend.append(f"{size}{level * end:.4g} or more ({_share(attribution, level * end)}), ")
    legend.right_crop(2)
    return legend


def _has_negative(attribution: Attribution, manner: Manner) -> bool:
    return any(
        score < 0 for score, coloured in zip(attribution.scores.tolist(), manner.coloured, strict=True) if coloured
    )


def _beyond(attribution: Attribution, manner: Manner) -> str:
    """The coloured tokens beyond the deepest colour, except an attention sink, which has a line of its own."""
    scaled = [own and not first for own, first in zip(manner.coloured, sink(attribution).tolist(), strict=True)]
    facts = attribution.tokens, attribution.positions.tolist(), attribution.scores.tolist(), scaled
    return ", ".join(
        f"{_quoted(visible(token))} at {position} with {score:.4g} ({_share(attribution, score)})"
        for token, position, score, coloured in zip(*facts, strict=True)
        if coloured and abs(score) > manner.end
    )


def _share(attribution: Attribution, score: float) -> str:
    return f"{percent_of(attribution.scores, score)} of the score"


# ---------------------------------------------------------------------------------------------------------- the tables
def _tokens(attribution: Attribution, top: int, width: int, *, special: bool) -> Text:
    """The highest scores, in the order of `Attribution.top`."""
    place = {position: row for row, position in enumerate(attribution.positions.tolist())}
    highest, end = attribution.top(top, special=special), last(attribution)
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
    """The scores of these rows, with standard errors where there are any."""
    errors = attribution.standard_errors.get("scores")
    shown = ["" if errors is None or isnan(errors[row]) else f" ± {float(errors[row]):.2g}" for row in rows]
    width = max(map(len, shown), default=0)  # so that the scores are below each other
    return [f"{float(attribution.scores[row]):.4g}{error:{width}}" for row, error in zip(rows, shown, strict=True)]


def _messages(attribution: Attribution, width: int, *, special: bool) -> Text:
    """Every message with its score, and how much of the whole score it holds."""
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
    """In the quotes that it does not have itself."""
    quote = '"' if "'" in text and '"' not in text else "'"
    return f"{quote}{text}{quote}"
