"""An attribution in a terminal: tokens coloured or marked by score, and a table of the highest scores."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import isnan
from re import DOTALL, fullmatch
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from heta_lens._util.text import cut, legible, single_line, visible
from heta_lens._util.text_table import text_table
from heta_lens.attribution import Attribution
from heta_lens.plots.attribution_text import LAST, score_formula
from heta_lens.plots.scales import Shade, last_row, message_shares, percent_of, scale_end, shade_of, share_note, sink
from heta_lens.span_attribution import SpanAttribution

STRONG, MIDDLE = 0.5, 0.25  # depths for brackets and 16 colours
BRACKETS, UNDERLINES = ("[]", "{}", "<>", "⟦⟧"), ("_", "~", "‗")  # the first that the text does not use is taken
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
    """Return ink on coloured paper, so that the terminal's background does not matter; rich rounds to 256 colours."""
    shade = shade_of(depth)
    return Look(f"{_ink(shade)} on {shade.css}")


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

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        attribution = self.result.summed
        system = console.color_system if self.coloured and not console.no_color else None
        prompt = ColouredPrompt(attribution, self.marked, system, self.special)
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
    def look(self) -> Callable[[float], Look]:
        """The look of a depth between -1 and 1."""
        if self.system is None:
            return partial(in_brackets, unused(BRACKETS, "".join(self.attribution.tokens)))
        return of_16 if self.has_levels else on_paper

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
    for number, message in enumerate(message_shares(attribution)):
        text = cut(_quoted(single_line(message.text)), MESSAGE_CELLS)
        numbers = message.percent, f"{message.score:.4g}"
        if not message.template:
            rows.append((str(number), message.role, *numbers, text))
        elif special:
            rows.append(("", message.role, *numbers, ""))
    return text_table(["message", "role", "share", "score", "text"], rows, ["share", "score"])


def _quoted(text: str) -> str:
    quote = '"' if "'" in text and '"' not in text else "'"
    return f"{quote}{text}{quote}"
