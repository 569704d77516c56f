"""An attribution in a terminal: tokens coloured or marked by score, and a table of the highest scores."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
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
    return Look(f"color(16) on {tint(shade_of(depth)).css}")


def in_brackets(brackets: str, depth: float) -> Look:
    """Return a pair of brackets for a middle depth and two pairs for a strong depth, with a minus below 0."""
    opening, closing = brackets
    pairs = (abs(depth) >= MIDDLE) + (abs(depth) >= STRONG)
    return Look("", opening * pairs + ("-" if pairs and depth < 0 else ""), closing * pairs)


def terminal(
    attribution: Attribution | SpanAttribution,
    *,
    marked: Collection[int] = (),
    top: int = 8,
    special: bool = False,
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
        prompt = ColouredPrompt(attribution, self.special, self.marked, paper)
        below = share_note(attribution)
        yield Text(attribution.title, style="bold")
        yield from (Text(single_line(line)) for line in self.result.notes if line != below)
        yield Text()
        yield Padding(prompt.text, (0, 0, 1, INDENT), expand=False)
        yield prompt.legend
        yield Text()
        yield _highest(attribution, self.top, special=self.special)
        errors = any(error is not None for error in attribution.standard_errors.values())
        explained = [score_formula(attribution), "± is one standard error" if errors else ""]
        for line in filter(None, [single_line(below), "; ".join(filter(None, explained))]):
            yield Text(line)
        if attribution.messages is not None:
            yield Text()
            yield _messages(attribution, special=self.special)


@dataclass(frozen=True)
class ColouredPrompt(ColouredScores):
    """The tokens of a prompt, on coloured ``paper`` or else in brackets, and the legend."""

    marked: frozenset[int]
    paper: bool

    @cached_property
    def brackets(self) -> str:
        letters = set("".join(self.attribution.tokens))
        return next((brackets for brackets in BRACKETS if letters.isdisjoint(brackets)), BRACKETS[-1])

    def look(self, depth: float) -> Look:
        return on_paper(depth) if self.paper else in_brackets(self.brackets, depth)

    @property
    def text(self) -> Text:
        line, attribution = Text(), self.attribution
        coloured = (~attribution.hidden | self.special).tolist()
        rows = zip(attribution.tokens, attribution.positions.tolist(), self.depths, coloured, strict=True)
        for token, position, depth, has_colour in rows:
            look = self.look(depth) if has_colour else Look("dim")
            line.append(_written(token, look), style=look.style + " underline" * (position in self.marked))
        return line

    @property
    def legend(self) -> Text:
        """The scores that colours or brackets stand for, and the score beyond the scale."""
        attribution, beyond = self.attribution, self.beyond
        if not attribution.scores.any():
            return Text("all scores are 0")
        legend = self._chips if self.paper else self._levels
        if beyond is not None:
            score = float(attribution.scores[beyond])
            where = f"{_quoted(visible(attribution.tokens[beyond]))} at {int(attribution.positions[beyond])}"
            legend.append(f"; {'beyond the deepest colour' if self.paper else 'by far the largest'}: ")
            legend.append(f"{where} with {score:.4g} ({self.share(score)})")
        return legend

    @property
    def _chips(self) -> Text:
        negative = bool((self.shown < 0).any())
        depths = [step / (CHIPS - 1) for step in range(-CHIPS + 1 if negative else 0, CHIPS)]
        chips = [("  ", self.look(depth).style) for depth in depths]
        low = f"{-self.end:.4g}" if negative else "0"
        return Text.assemble("colour: ", low, " ", *chips, f" {self.end:.4g} ({self.share(self.end)})")

    @property
    def _levels(self) -> Text:
        levels, negative = [], bool((self.shown < 0).any())
        for level in (MIDDLE, STRONG):
            looks = [self.look(depth) for depth in ((level, -level) if negative else (level,))]
            words = " or ".join(f"{look.opening}word{look.closing}" for look in looks)
            size = f"{'a size of ' * negative}{level * self.end:.4g}"
            levels.append(f"{words} {size} or more ({self.share(level * self.end)})")
        return Text(", ".join(levels))


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
    shown = ["" if errors is None or isnan(errors[row]) else f" ± {float(errors[row]):.2g}" for row in rows]
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
