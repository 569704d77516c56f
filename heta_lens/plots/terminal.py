"""An attribution in a terminal: the highest scores as bars, or tokens coloured by score above a table."""

from collections.abc import Collection
from math import isnan, nan

from rich.cells import set_cell_size
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from heta_lens._util.text import cut, legible, single_line, text_table
from heta_lens.attribution import TEMPLATE, Attribution, ends
from heta_lens.plots.coloured_text import folds
from heta_lens.plots.scales import ColouredScores, last_row, percent_of, scaled_tokens, shade_of, share_note, tint
from heta_lens.plots.titles_and_notes import named_parts, notes, score_formula, title
from heta_lens.span_attribution import SpanAttribution

LAST = " (last)"  # the mark of the token that the prediction is read from
BAR_CELLS = 30
FAINT = 0.03  # a depth that is hardly seen: such tokens keep the terminal's own colours
CHIPS = 6  # colours of the legend per sign
INDENT = 2
TAB = "→   "
MESSAGE_CELLS = 40  # of a message's text


def summary(result: Attribution | SpanAttribution) -> str:
    """Return the title, the highest scores as bars, and the notes."""
    scored = result.summed
    every, row = scored.top(len(scored)), last_row(scored)
    largest = float(scored.scores[scaled_tokens(scored)].abs().max()) or 1.0
    largest = max([largest, *(abs(score) for _, score, positions in every if len(positions) > 1)])
    last, rows = None if row is None else int(scored.positions[row]), []
    width = max(5, *(len(ends(own.positions)) for own in every[:8]))
    for token, score, positions in every[:8]:
        mark, share = LAST if positions == (last,) else "", abs(score) / largest
        shown = set_cell_size(cut(repr(token), 24 - len(mark)) + mark, 24)
        bar = "█" * round(BAR_CELLS * min(1.0, share)) + "▶" * (share > 1)
        rows.append(f"{ends(positions):>{width}}  {shown} {score:>11.4g}  {bar}")
    units = "tokens" if scored.measured.all() else "tokens and spans"
    some = [f"the {len(rows)} highest of {len(every)} {units}"] if len(rows) < len(every) else []
    return "\n".join([title(scored), *rows, *some, *notes(result)])


def terminal(
    attribution: Attribution | SpanAttribution, *, marked: Collection[int] = (), top: int = 8, special: bool = False
) -> RenderableType:
    """Return a view for `rich` to print: ``rich.print(terminal(attribution))``.

    The view shows the prompt with tokens coloured by score; ``marked`` positions are underlined. Below stand the
    ``top`` highest scores with their parts, in the order of `Attribution.top`, and the messages of a chat. A span shows
    the sums over all targets. Special tokens and a chat template's have no colour and are not listed, except with
    ``special=True``.
    """
    scored = attribution.summed
    colours, below = ColouredScores(scored, special), share_note(scored)
    errors = any(error is not None for error in scored.standard_errors.values())
    explained = "; ".join(filter(None, [score_formula(scored), "± is one standard error" if errors else ""]))
    parts: list[RenderableType] = [
        Text(scored.title, style="bold"),
        *(Text(single_line(line)) for line in attribution.notes if line != below),
        Text(),
        Padding(_prompt(colours, marked), (0, 0, 1, INDENT), expand=False),
        _legend(colours),
        Text(),
        _highest(scored, top, special=special),
        *(Text(single_line(line)) for line in (below, explained) if line),
    ]
    if scored.messages is not None:
        parts += [Text(), _messages(scored, special=special)]
    return Group(*parts)


def paper(depth: float) -> str:
    """Return black on coloured paper, so that the terminal's background does not matter; rich rounds to 256 colours."""
    return f"color(16) on rgb({tint(shade_of(depth)).numbers})"


def _prompt(colours: ColouredScores, marked: Collection[int]) -> Text:
    line, attribution = Text(), colours.attribution
    coloured, alone = (~attribution.hidden | colours.special).tolist(), attribution.measured.tolist()
    rows = zip(attribution.tokens, attribution.positions.tolist(), colours.depths, coloured, strict=True)
    rows_of_evidence = [row for row, position in enumerate(attribution.positions.tolist()) if position in marked]
    hidden = folds(attribution, rows_of_evidence, special=colours.special)
    beginnings, left_out = {own.start: line for own, line in hidden.items()}, {row for own in hidden for row in own}
    for row, (token, position, depth, has_colour) in enumerate(rows):
        if row in left_out:
            line.append(f"\n{beginnings[row]}\n" if row in beginnings else "", style="dim")
            continue
        shown = legible(token, keep="\n").replace("\n", "⏎\n").replace("\t", TAB)
        look = " underline" * (position in marked) + " italic" * (has_colour and not alone[row])
        colour = paper(depth) if abs(depth) >= FAINT else ""
        line.append(shown, style=(colour if has_colour else "dim") + look)
    return line


def _legend(colours: ColouredScores) -> Text:
    """Return the scores that the colours stand for, and the score beyond the scale."""
    attribution, end = colours.attribution, colours.end
    if not attribution.scores.any():
        return Text("all scores are 0")
    negative = bool((colours.shown < 0).any())
    chips = [("  ", paper(step / (CHIPS - 1))) for step in range(-CHIPS + 1 if negative else 0, CHIPS)]
    low = f"{-end:.4g}" if negative else "0"
    beyond = f"; {colours.beyond}" if colours.beyond else ""
    alone = "" if attribution.measured.all() else "; italic: not measured alone"
    return Text.assemble("colour: ", low, " ", *chips, f" {end:.4g} ({colours.share(end)}){beyond}{alone}")


def _highest(attribution: Attribution, top: int, *, special: bool) -> Table:
    place = {position: row for row, position in enumerate(attribution.positions.tolist())}
    highest, end = attribution.top(top, special=special), last_row(attribution)
    groups = [[place[position] for position in token.positions] for token in highest]
    columns = {
        "position": [ends(token.positions) for token in highest],
        "token": [cut(repr(own.text), 40) + LAST * (rows == [end]) for own, rows in zip(highest, groups, strict=True)],
        "score": _with_errors(attribution, groups),
        "share": [percent_of(attribution.scores, token.score) for token in highest],
        **{of: [f"{float(part[rows].sum()):.4g}" for rows in groups] for of, part in named_parts(attribution).items()},
    }
    return text_table([*columns], zip(*columns.values(), strict=True), [*columns][2:])


def _with_errors(attribution: Attribution, groups: list[list[int]]) -> list[str]:
    errors = attribution.standard_errors.get("scores")
    alone = [rows[0] if len(rows) == 1 else None for rows in groups]  # the error of a sum is not known
    known = [nan if errors is None or row is None else float(errors[row]) for row in alone]
    shown = ["" if isnan(error) else f" ± {error:.1g}" for error in known]
    width = max(map(len, shown), default=0)  # aligns the scores
    sums = [float(attribution.scores[rows].sum()) for rows in groups]
    return [f"{score:.4g}{error:{width}}" for score, error in zip(sums, shown, strict=True)]


def _messages(attribution: Attribution, *, special: bool) -> Table:
    rows = []
    for number, message in enumerate(attribution.by_message()):
        numbers = percent_of(attribution.scores, message.score), f"{message.score:.4g}"
        if message.role != TEMPLATE:
            rows.append((str(number), message.role, *numbers, cut(repr(message.text), MESSAGE_CELLS)))
        elif special:
            rows.append(("", message.role, *numbers, ""))
    return text_table(["message", "role", "share", "score", "text"], rows, ["share", "score"])
