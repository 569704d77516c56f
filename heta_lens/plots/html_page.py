"""An attribution as a page that needs nothing else: tokens in colour, switches and a table; no network."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from markupsafe import Markup
from torch import Tensor

from heta_lens._util.html_view import View, html_from, source
from heta_lens.attribution import Attribution
from heta_lens.plots.colours import BLUE, ORANGE, deepest
from heta_lens.plots.shares import held, hidden_in, last, sink
from heta_lens.plots.token_cells import Cell, cells, runs
from heta_lens.plots.view_data import Shown, embedded, page_data, shown
from heta_lens.plots.view_exports import exports, number_files
from heta_lens.plots.whole_span import matrix, span_values, whole_text
from heta_lens.span_attribution import SpanAttribution

HINTS = (
    "Point at a token, or use the arrow keys. A click or Enter pins it, Escape unpins it.",
    "Targets are outlined. Click a target to see which tokens it depends on, or choose “the targets of a source” and "
    "click any token to see which targets it influences. Escape shows all targets together.",
)
"""Of one target, and of a span."""


class Chip(NamedTuple):
    """A cell with its colour before any script runs."""

    gap: bool
    before: str
    text: str
    breaks: int
    kind: str
    """n below zero, e evidence, g special or the chat template's."""
    depth: str


class Block(NamedTuple):
    """A message of a chat with the template's tokens before it; all of the text, if it is no chat."""

    role: str
    message: int
    runs: list[tuple[bool, list[Chip]]]


def page(
    attribution: Attribution | SpanAttribution, *, marked: Iterable[int] = (), note: str = "", special: bool = False
) -> View:
    """All of an attribution to look at: a notebook shows it, ``.open()`` a browser, ``.save("page.html")`` keeps it.

    ``marked`` positions are underlined, as evidence, and ``note`` may say why. It can also be saved as a figure
    (``.png``, ``.svg``, ``.pdf``), as LaTeX (``.tex``), and as its numbers (``.csv``, ``.json``). A switch shows
    special tokens and a chat template's; with ``special=True`` they are there from the start.
    """
    return _page(attribution, frozenset(marked), note, special=special)


def messages(attribution: Attribution | SpanAttribution, *, special: bool = False) -> View:
    """The same, coloured by the messages of a chat; saved as a page, or as the tokens' numbers."""
    attribution.by_message()  # which refuses what is no chat
    return _page(attribution, by="messages", special=special)


def _page(
    attribution: Attribution | SpanAttribution,
    marked: Collection[int] = (),
    note: str = "",
    by: str = "tokens",
    *,
    special: bool,
) -> View:
    span = attribution if isinstance(attribution, SpanAttribution) else None
    scored = attribution if isinstance(attribution, Attribution) else whole_text(attribution)
    values, more = (shown(scored), {}) if span is None else (span_values(span), {"matrix": matrix(span)})
    below = held(attribution.summed)
    notes = [*(line for line in attribution.notes if line != below), *([note] if note else [])]
    end = last(attribution.summed)
    more |= {"by": by, "hint": HINTS[span is not None], "last": end, "special": special}
    own = fragment(scored, attribution.title, notes, values, hidden_in(attribution), marked, more, below)
    made = exports(attribution, marked, note, special=special) if by == "tokens" else number_files(attribution)
    return View(attribution.title, own, made)


def fragment(
    attribution: Attribution,
    title: str,
    notes: Sequence[str],
    values: Sequence[Shown],
    hidden: Bool[Tensor, "pos"],
    marked: Collection[int] = (),
    more: Mapping[str, Any] = {},
    below: str = "",
) -> str:
    """The tokens of an attribution coloured by the first of some values, and all that the script needs.

    What is said ``below`` the tokens is what ``hidden`` ones hold.
    """
    own = cells(attribution)
    data = {**page_data(attribution, own, values, hidden, marked), **more}
    coloured = torch.ones_like(hidden) if more.get("special") else ~hidden
    return html_from(
        "plots/view.html",
        title=title,
        notes=notes,
        lines=data.get("compare", False),
        first=values[0].name,
        held=below,
        blocks=[*_blocks(attribution, own, values[0].values * coloured, hidden, marked)],
        data=Markup(embedded(data)),
        above=BLUE,
        below=ORANGE,
        css=source("plots/view.css"),
        script=source("plots/view.js"),
    )


def _blocks(
    attribution: Attribution,
    own: Sequence[Cell],
    values: Float[Tensor, "pos"],
    hidden: Bool[Tensor, "pos"],
    marked: Collection[int],
) -> Iterator[Block]:
    owners, small = _owners(attribution), hidden.tolist()
    first = sink(attribution)
    most, positions = deepest(values[~first] if (~first & ~hidden).any() else values), attribution.positions.tolist()

    def chip(cell: Cell) -> Chip:
        evidence = any(positions[row] in marked for row in cell.rows)
        return _chip(cell, values, most, evidence, small[cell.rows[0]])

    for message, members in groupby(own, lambda cell: owners[cell.rows[0]]):
        chips = [(right_to_left, [*map(chip, run)]) for right_to_left, run in runs([*members])]
        role = "" if attribution.messages is None or message < 0 else attribution.messages.roles[message]
        yield Block(role, message, chips)


def _owners(attribution: Attribution) -> list[int]:
    """The message of each token, where the template's own belong to what follows them; -1 at the end."""
    if attribution.messages is None:
        return [-1] * len(attribution)
    owners, following = attribution.messages.owners.tolist(), -1
    for row in reversed(range(len(owners))):
        following = owners[row] if owners[row] >= 0 else following
        owners[row] = following
    return owners


def _chip(cell: Cell, values: Float[Tensor, "pos"], most: float, evidence: bool, small: bool) -> Chip:
    value = float(values[cell.rows.start : cell.rows.stop].sum())
    depth = min(1.0, abs(value) / most)
    kind = " ".join(letter for letter, true in (("n", value < 0), ("e", evidence), ("g", small)) if true)
    return Chip(
        cell.gap, cell.before, cell.text, cell.breaks, kind, f"{depth:.2f}".lstrip("0") if depth >= 0.005 else ""
    )
