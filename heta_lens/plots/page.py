"""What the script of a page knows: values of every token as packed numbers, and which tokens belong together."""

import json
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float
from markupsafe import Markup
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from heta_lens._util.chat_messages import Messages
from heta_lens._util.html_view import View, html_from, source
from heta_lens._util.text import plain, single_line
from heta_lens.attribution import Attribution
from heta_lens.grouped_scores import Scored, ScoredMessage
from heta_lens.plots.figures import Cell, cells, exports_of, runs, token_figure
from heta_lens.plots.latex_tokens import latex
from heta_lens.plots.scales import BLUE, ORANGE, Shade, deepest, held, hidden_in, last, score_formula, sink
from heta_lens.span_attribution import SpanAttribution

MEANINGS = {
    "score": "how much each token mattered",
    "gate": "the share of the attention-weighted value flow that comes from this token (M)",
    "curvature": "how strongly the second derivatives of the prediction depend on this embedding (S)",
    "information": "how far the prediction moves when this embedding is masked, in nats (I)",
}


class Shown(NamedTuple):
    """Values that a page can colour tokens by."""

    name: str
    values: Float[Tensor, "pos"]
    errors: Float[Tensor, "pos"] | None = None
    what: str = ""


def shown(attribution: Attribution) -> list[Shown]:
    """The scores, and the parts that they are made of, with their standard errors."""
    errors = attribution.standard_errors
    parts = [Shown(name, part, errors.get(name), MEANINGS.get(name, "")) for name, part in attribution.parts.items()]
    signs = "blue speaks for the target, orange against it" if attribution.signed else ""
    spread = "± is one standard error" if any(error is not None for error in errors.values()) else ""
    what = "; ".join(filter(None, [MEANINGS["score"], signs, spread, score_formula(attribution)]))
    return [Shown("score", attribution.scores, errors.get("scores"), what), *parts]


def page_data(
    attribution: Attribution,
    cells: Sequence[Cell],
    values: Sequence[Shown],
    hidden: Bool[Tensor, "pos"],
    marked: Collection[int] = (),
) -> dict[str, Any]:
    """What the script needs beside the tokens, which are on the page already."""
    positions = attribution.positions.tolist()
    return {
        "count": len(attribution),
        "positions": None if positions == [*range(len(positions))] else positions,
        "cells": None if len(cells) == len(attribution) else packed_counts([len(cell.rows) for cell in cells]),
        "values": [*map(_colouring, values)],
        "units": units(attribution),
        "first": [0] if positions[0] == 0 and not hidden[0] else [],
        "hidden": hidden.nonzero()[:, 0].tolist(),
        "hidden_name": "the chat template" if (hidden & attribution.template).any() else "special tokens",
        "marked": [row for row, position in enumerate(positions) if position in marked],
    }


def _colouring(own: Shown) -> dict[str, Any]:
    packs = {"values": _floats(own.values), "errors": _floats(own.errors)}
    return {"name": single_line(own.name), "what": own.what, **packs}


def units(attribution: Attribution) -> dict[str, dict[str, Any]]:
    """Of words, sentences and messages: which of them each token belongs to, and whose the messages are."""
    groups: dict[str, Sequence[Scored | ScoredMessage]] = {
        "words": attribution.by_word(),
        "sentences": attribution.by_sentence(),
    }
    if attribution.messages is not None:
        groups["messages"] = attribution.by_message()
    row_at = {position: row for row, position in enumerate(attribution.positions.tolist())}
    return {name: _unit(group, row_at) for name, group in groups.items() if name == "messages" or len(group) > 1}


def _unit(group: Sequence[Scored | ScoredMessage], row_at: Mapping[int, int]) -> dict[str, Any]:
    owners = np.zeros(len(row_at), int)
    for number, member in enumerate(group):
        owners[[row_at[position] for position in member.positions]] = number
    roles = [single_line(member.role) for member in group if isinstance(member, ScoredMessage)]
    return {"of": packed_counts(owners)} | ({"roles": roles} if roles else {})


def packed(values: Any) -> str:
    """Numbers in 32 bits each as text, of which a page makes the same numbers again."""
    return b64encode(np.asarray(values, np.dtype("<f4")).tobytes()).decode()


def packed_counts(values: Sequence[int] | NDArray[np.int_]) -> str:
    """Whole numbers in 16 bits each, or in 32 if any is larger."""
    counts = np.asarray(values)
    return b64encode(counts.astype("<u2" if counts.max(initial=0) < 2**16 else "<u4").tobytes()).decode()


def packed_halves(values: Any) -> str:
    """The same in 16 bits: three digits, which is what a page shows."""
    return b64encode(np.asarray(values, np.dtype("<f2")).tobytes()).decode()


def _floats(values: Float[Tensor, "pos"] | None) -> str | None:
    return None if values is None else packed(values.detach().cpu().float())


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the script that it is in."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


# -------------------------------------------------------------------------------------------------------- view exports
# What a view of an attribution can be saved as beside a page: a figure, LaTeX, or its numbers.


def exports(
    attribution: Attribution | SpanAttribution, marked: Collection[int] = (), note: str = "", *, special: bool = False
) -> dict[str, Callable[[], str | bytes]]:
    """What makes each kind of file, by its suffix."""
    return {
        **exports_of(lambda: token_figure(attribution, marked=marked, note=note, special=special)),
        ".tex": lambda: latex(attribution, marked=marked, note=note, special=special),
        **number_files(attribution),
    }


def number_files(attribution: Attribution | SpanAttribution) -> dict[str, Callable[[], str | bytes]]:
    """What makes the files that are no pictures."""
    return {
        ".csv": lambda: attribution.to_frame().to_csv(index=False),
        ".json": lambda: as_json(attribution),
    }


def as_json(attribution: Attribution | SpanAttribution) -> str:
    """The question, how to read the scores, and the rows of `to_frame`: for other programs, not to be read back."""
    return json_text({**described(attribution), "rows": attribution.to_frame().to_dict("records")})


def described(attribution: Attribution | SpanAttribution) -> dict[str, Any]:
    """The question, and how to read the scores."""
    summed = attribution.summed
    return {
        "title": attribution.title,
        "method": summed.method,
        "text": summed.text,
        "target": summed.target_text,
        "signed": summed.signed,
        "options": summed.options,
        "formula": score_formula(summed),
        "notes": attribution.notes,
    }


def json_text(content: Mapping[str, Any]) -> str:
    """As a file holds it."""
    return json.dumps(plain(content), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


# ------------------------------------------------------------------------------------------------------------ heat map
# A table of numbers as a heat map that needs nothing else: plain HTML, and if it is large a canvas; no network.


WIDE = 38  # columns that a page of a notebook has room for
MANY = 4000  # cells that a browser lays out at once; more of them are drawn where they are in view


def heat(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Float[Tensor, "row column"],
    notes: str = "",
    positions: Sequence[int] = (),
) -> View:
    """Every number as a colour: none at 0, deeper with size, blue above and orange below; pointed at, as itself.

    What is too wide goes on below, so that nothing is out of sight; a large table scrolls, and its names stay.
    ``positions`` are where columns stand in the text.
    """
    for row, column in (~values.isfinite()).nonzero().tolist():
        value = float(values[row, column])
        raise ValueError(f"{rows[row]!r}, {columns[column]!r} is {value}, which has no colour: leave it out, or put 0")
    flat = rearrange(values, "row column -> (row column)")
    table = _drawn(rows, columns, flat, positions) if len(flat) > MANY else _written(rows, columns, values, positions)
    fragment = html_from(
        "plots/heat_map.html",
        title=title,
        notes=notes,
        above=BLUE,
        below=ORANGE,
        scale=_scale(flat),
        beyond=bool((flat.abs() > deepest(flat)).any()),
        **{"parts": [], "lines": [], "columns": columns, "positions": positions, "data": "", "script": "", **table},
    )
    return View(title, fragment)


def _written(
    rows: Sequence[str], columns: Sequence[str], values: Float[Tensor, "row column"], positions: Sequence[int]
) -> Mapping[str, Any]:
    """Cells as HTML."""
    most, width = (
        deepest(rearrange(values, "row column -> (row column)")),
        ceil(len(columns) / ceil(len(columns) / WIDE)),
    )
    return {
        "parts": [slice(at, at + width) for at in range(0, len(columns), width)],
        "positions": positions,
        "lines": [(row, [*_cells(columns, line, most)]) for row, line in zip(rows, values.tolist(), strict=True)],
    }


def _cells(columns: Sequence[str], line: Sequence[float], most: float) -> Iterator[tuple[str, float, str]]:
    """Each column's name, value and colour, which lets the page's own through."""
    for column, value in zip(columns, line, strict=True):
        sign = "--neg" if value < 0 else "--pos"
        yield column, value, f"rgb(var({sign})/{min(1.0, abs(value) / most):.2f})"


def _drawn(
    rows: Sequence[str], columns: Sequence[str], values: Float[Tensor, "cell"], positions: Sequence[int]
) -> Mapping[str, Any]:
    """Cells as numbers, for a script that draws what is in view."""
    names = {"rows": [*map(single_line, rows)], "columns": [*map(single_line, columns)]}
    data = {**names, "deepest": deepest(values), "values": packed(values.detach().cpu().float())}
    own = embedded({**data, "positions": [*positions]})
    return {"data": Markup(own), "script": source("plots/table.js"), "positions": []}


def _scale(values: Float[Tensor, "cell"]) -> dict[float, Shade]:
    """What the deepest colours stand for, where there are values of their sign."""
    most = deepest(values)
    return {end: shade for end, shade in {most: BLUE, -most: ORANGE}.items() if (values / end > 0).any()}


# ---------------------------------------------------------------------------------------------------------- whole span
# A span as one text, the answer after its prompt, and what a page shows of every target.


def span_values(span: SpanAttribution) -> list[Shown]:
    """What its tokens can be coloured by: all targets together, through the model's reasoning if it was followed.

    And what the scores are made of, also added up over the targets.
    """
    through = {"through the reasoning": span.through} if span.reasoning else {}
    parts = {name: sum_before(span, [step.parts[name] for step in span.steps]) for name in common_parts(span)}
    rows = {**through, "all targets": span.total, **parts}
    what = {name: f"{MEANINGS.get(name, name)}; added up over the targets, as the scores are" for name in parts}
    return [Shown(name, _padded(row, len(span.tokens)), what=what.get(name, "")) for name, row in rows.items()]


def common_parts(span: SpanAttribution) -> list[str]:
    """The parts that every step has."""
    first, *others = (*span.steps, *span.reasoning)
    return [name for name in first.parts if all(name in step.parts for step in others)]


def sum_before(span: SpanAttribution, rows: Sequence[Float[Tensor, "_"]]) -> Float[Tensor, "pos"]:
    """Each target's values added up, of the tokens before the span."""
    return torch.stack([row[: span.start] for row in rows]).sum(0)


def whole_text(span: SpanAttribution) -> Attribution:
    """The prompt and the answer as one attribution, by the sum over all targets."""
    last, summed, count = span.steps[-1], span.summed, len(span.tokens)
    target = last.target if isinstance(last.target, int) else 0
    end = len(last.text)
    offsets = torch.cat([last.offsets, last.offsets.new_tensor([[end, end + len(span.tokens[-1])]])])
    return replace(
        summed,
        ids=torch.cat([last.ids, last.ids.new_tensor([target])]),
        tokens=span.tokens,
        positions=torch.arange(count),
        offsets=offsets,
        special=pad(last.special, (0, 1)),
        text=last.text + span.tokens[-1],
        scores=_padded(summed.scores, count),
        messages=_longer(last.messages),
    )


def _longer(messages: Messages | None) -> Messages | None:
    """The last target belongs to what the token before it belongs to."""
    if messages is None:
        return None
    return replace(messages, owners=torch.cat([messages.owners, messages.owners[-1:]]))


def _padded(scores: Float[Tensor, "pos"], count: int) -> Float[Tensor, "all"]:
    return pad(scores, (0, count - len(scores)))


def matrix(span: SpanAttribution) -> dict[str, Any]:
    """Each target's scores, their parts, and the standard errors of the scores, if all of them have some."""
    steps = (*span.reasoning, *span.steps)
    errors = [error for step in steps if (error := step.standard_errors.get("scores")) is not None]
    return {
        "targets": [*map(len, steps)],
        **_packed_rows([step.scores for step in steps]),
        "parts": {single_line(name): _packed_rows([step.parts[name] for step in steps]) for name in common_parts(span)},
        "errors": _packed_rows(errors) if len(errors) == len(steps) else None,
    }


def _packed_rows(rows: Sequence[Float[Tensor, "_"]]) -> dict[str, Any]:
    """In half precision, as shares of the largest size of each."""
    values = [row.detach().cpu().double().numpy() for row in rows]
    scales = [float(np.nanmax(np.abs(row), initial=0.0)) or 1.0 for row in values]
    shares = [row / scale for row, scale in zip(values, scales, strict=True)]
    return {"scales": scales, "halves": packed_halves(np.concatenate(shares))}


# ----------------------------------------------------------------------------------------------------------- html page
# An attribution as a page that needs nothing else: tokens in colour, switches and a table; no network.


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
