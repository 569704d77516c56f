"""An attribution in a terminal: tokens coloured or marked by score, and a table of the highest scores."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from math import isnan
from re import DOTALL, fullmatch
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from heta_lens._util.text import cut, legible, single_line, text_table, visible
from heta_lens.attribution import TEMPLATE, Attribution
from heta_lens.plots.attribution_text import LAST, score_formula
from heta_lens.plots.scales import ColouredScores, last_row, percent_at, percent_of, shade_of, share_note, tint
from heta_lens.span_attribution import SpanAttribution

STRONG, MIDDLE = 0.5, 0.25  # depths for brackets
BRACKETS = ("[]", "{}", "<>", "⟦⟧")  # the first that the text does not use is taken
CHIPS = 6  # colours of the legend per sign
INDENT = 2
TAB = "→   "
MESSAGE_CELLS = 40  # of a message's text


class Look(NamedTuple):
    """A style for `rich`, and the marks around a word."""

    style: str = ""
    opening: str = ""
    closing: str = ""


def on_paper(depth: float) -> Look:
    """Return black on coloured paper, so that the terminal's background does not matter; rich rounds to 256 colours."""
    return Look(f"color(16) on rgb({tint(shade_of(depth)).numbers})")


def in_brackets(brackets: str, depth: float) -> Look:
    """Return a pair of brackets for a middle depth and two pairs for a strong depth, with a minus below 0."""
    opening, closing = brackets
    pairs = (abs(depth) >= MIDDLE) + (abs(depth) >= STRONG)
    return Look("", opening * pairs + ("-" if pairs and depth < 0 else ""), closing * pairs)


def terminal(
    attribution: Attribution | SpanAttribution, *, marked: Collection[int] = (), top: int = 8, special: bool = False
) -> "TerminalView":
    """Return a view for `rich` to print: ``rich.print(terminal(attribution))``.

    The view shows the prompt with tokens coloured by score, or marked with brackets on a terminal with fewer than 256
    colours. ``marked`` positions are underlined. Below stand the ``top`` highest scores with their parts, in the order
    of `Attribution.top`, and the messages of a chat. A span shows the sums over all targets. Special tokens and a chat
    template's have no colour and are not listed, except with ``special=True``.
    """
    return TerminalView(attribution, frozenset(marked), top, special)


@dataclass(frozen=True, eq=False, repr=False)
class TerminalView:
    """A result for a `rich` console, which prints the result in the console's colours and width."""

    result: Attribution | SpanAttribution
    marked: frozenset[int]
    top: int
    special: bool

    def __repr__(self) -> str:
        return f"TerminalView({self.result.title!r}): rich.print(view) shows it"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        attribution = self.result.summed
        paper = not console.no_color and console.color_system in ("truecolor", "256")
        letters = set("".join(attribution.tokens))
        brackets = next((pair for pair in BRACKETS if letters.isdisjoint(pair)), BRACKETS[-1])
        look = on_paper if paper else partial(in_brackets, brackets)
        colours, below = ColouredScores(attribution, self.special), share_note(attribution)
        yield Text(attribution.title, style="bold")
        yield from (Text(single_line(line)) for line in self.result.notes if line != below)
        yield Text()
        yield Padding(_prompt(colours, look, self.marked), (0, 0, 1, INDENT), expand=False)
        yield _legend(colours, look, paper=paper)
        yield Text()
        yield _highest(attribution, self.top, special=self.special)
        errors = any(error is not None for error in attribution.standard_errors.values())
        explained = [score_formula(attribution), "± is one standard error" if errors else ""]
        for line in filter(None, [single_line(below), "; ".join(filter(None, explained))]):
            yield Text(line)
        if attribution.messages is not None:
            yield Text()
            yield _messages(attribution, special=self.special)


def _prompt(colours: ColouredScores, look: Callable[[float], Look], marked: Collection[int]) -> Text:
    line, attribution = Text(), colours.attribution
    coloured = (~attribution.hidden | colours.special).tolist()
    rows = zip(attribution.tokens, attribution.positions.tolist(), colours.depths, coloured, strict=True)
    for token, position, depth, has_colour in rows:
        shown = look(depth) if has_colour else Look("dim")
        line.append(_written(token, shown), style=shown.style + " underline" * (position in marked))
    return line


def _legend(colours: ColouredScores, look: Callable[[float], Look], *, paper: bool) -> Text:
    """Return the scores that colours or brackets stand for, and the score beyond the scale."""
    attribution, end, beyond = colours.attribution, colours.end, colours.beyond
    if not attribution.scores.any():
        return Text("all scores are 0")
    negative = bool((colours.shown < 0).any())
    if paper:
        depths = [step / (CHIPS - 1) for step in range(-CHIPS + 1 if negative else 0, CHIPS)]
        chips = [("  ", look(depth).style) for depth in depths]
        low = f"{-end:.4g}" if negative else "0"
        legend = Text.assemble("colour: ", low, " ", *chips, f" {end:.4g} ({colours.share(end)})")
    else:
        levels = []
        for level in (MIDDLE, STRONG):
            looks = [look(depth) for depth in ((level, -level) if negative else (level,))]
            words = " or ".join(f"{each.opening}word{each.closing}" for each in looks)
            size = f"{'a size of ' * negative}{level * end:.4g}"
            levels.append(f"{words} {size} or more ({colours.share(level * end)})")
        legend = Text(", ".join(levels))
    if beyond is not None:
        score = float(attribution.scores[beyond])
        where = f"{_quoted(visible(attribution.tokens[beyond]))} at {int(attribution.positions[beyond])}"
        legend.append(f"; {'beyond the deepest colour' if paper else 'by far the largest'}: ")
        legend.append(f"{where} with {score:.4g} ({colours.share(score)})")
    return legend


def _written(token: str, look: Look) -> str:
    """Return the token with marks around the word, and not around the space before the word."""
    shown = legible(token, keep="\n").replace("\n", "⏎\n").replace("\t", TAB)
    if look.opening and not token.strip():
        shown = visible(token) + "\n" * token.count("\n")
    parts = fullmatch(r"( *)(.*?)(\n*)", shown, DOTALL)
    assert parts is not None  # the three groups match the empty text too
    space, word, line_ends = parts.groups()
    return f"{space}{look.opening}{word}{look.closing}{line_ends}"


def _highest(attribution: Attribution, top: int, *, special: bool) -> Table:
    place = {position: row for row, position in enumerate(attribution.positions.tolist())}
    highest, end = attribution.top(top, special=special), last_row(attribution)
    rows = [place[token.positions[0]] for token in highest]
    columns = {
        "position": [str(token.positions[0]) for token in highest],
        "token": [_quoted(visible(attribution.tokens[row])) + LAST * (row == end) for row in rows],
        "score": _with_errors(attribution, rows),
        "share": [percent_of(attribution.scores, token.score) for token in highest],
        **{name: [f"{part:.4g}" for part in part[rows].tolist()] for name, part in attribution.parts.items()},
    }
    return text_table([*columns], zip(*columns.values(), strict=True), [*columns][2:])


def _with_errors(attribution: Attribution, rows: list[int]) -> list[str]:
    errors = attribution.standard_errors.get("scores")
    shown = ["" if errors is None or isnan(errors[row]) else f" ± {float(errors[row]):.1g}" for row in rows]
    width = max(map(len, shown), default=0)  # aligns the scores
    return [f"{float(attribution.scores[row]):.4g}{error:{width}}" for row, error in zip(rows, shown, strict=True)]


def _messages(attribution: Attribution, *, special: bool) -> Table:
    rows = []
    for number, message in enumerate(attribution.by_message()):
        numbers = percent_at(attribution, message.positions), f"{message.score:.4g}"
        if message.role != TEMPLATE:
            rows.append((str(number), message.role, *numbers, cut(_quoted(single_line(message.text)), MESSAGE_CELLS)))
        elif special:
            rows.append(("", message.role, *numbers, ""))
    return text_table(["message", "role", "share", "score", "text"], rows, ["share", "score"])


def _quoted(text: str) -> str:
    quote = '"' if "'" in text and '"' not in text else "'"
    return f"{quote}{text}{quote}"
