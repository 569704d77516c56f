"""An attribution in a terminal: its tokens coloured or marked by score, and the highest of them in numbers."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from re import DOTALL, fullmatch
from typing import NamedTuple

from rich.console import Console, ConsoleOptions
from rich.padding import Padding
from rich.text import Text

from heta_lens._util.printable_text import legible, single_line, visible
from heta_lens.attribution import Attribution
from heta_lens.plots.attribution_text import LAST
from heta_lens.plots.score_formula import score_formula
from heta_lens.plots.shares import held, last, message_shares, percent_of, scale_end, sink
from heta_lens.plots.terminal_styles import (
    BRACKETS,
    MIDDLE,
    STRONG,
    UNDERLINES,
    Look,
    Looks,
    in_brackets,
    of_16,
    of_256,
    truecolour,
    unused,
)
from heta_lens.plots.terminal_table import Column, table
from heta_lens.span_attribution import SpanAttribution

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
