"""Results as HTML pages that need no network: tokens in colour with switches and a table, and tables as heat maps."""

import json
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from math import ceil
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from markupsafe import Markup
from torch import Tensor
from torch.nn.functional import pad

from heta_lens._util.html_view import View, html_from
from heta_lens._util.options import check_choice
from heta_lens._util.text import legible, plain, single_line, visible
from heta_lens.attribution import Attribution
from heta_lens.plots.coloured_text import LONG, pieces
from heta_lens.plots.figures import exports_of, token_figure
from heta_lens.plots.latex import latex
from heta_lens.plots.scales import BLUE, ORANGE, deepest, hidden_in, last_row, sink, tint
from heta_lens.plots.titles_and_notes import Predicted, headline, in_vain, kicker, part_name, predicted, score_formula
from heta_lens.span_attribution import SpanAttribution

CONTROLS = ("random", "recency")
MEANINGS = {
    "score": "how much the prediction depends on each token, no direction",
    "contrast": "how much the prediction depends on each token; without a direction, a token may speak for either side",
    "signed": "how far each token speaks for the target, or against it",
    "signed in vain": "how much each token matters; the sign predicts no effect",
    "control": "a control: these scores do not depend on the model",
    "gate": "the share of the attention-weighted value flow that comes from this token (M)",
    "curvature": "how strongly the second derivatives of the prediction depend on this embedding (S)",
    "squared gradient": "how steeply the prediction changes with this embedding (G, in place of the curvature S)",
    "information": "how far the prediction moves when this embedding is masked, in nats (I)",
}
ADDED_UP = (
    "the scores of the prompt's tokens, added up over {} targets: a target with high scores counts more; click a "
    "target for its own scores"
)
HINT = "Point at a token, or move with the arrow keys. A click or Enter pins it, Escape unpins it."
SPAN_HINT = (
    "Targets are outlined. Click a target to see which tokens it depends on, or choose “the targets of a source” and "
    "click any token to see which targets it influences. Escape shows all targets together."
)
HEAT_COLUMNS = 38  # that a page of a notebook has room for
UNITS = {"token": "tokens", "word": "words", "sentence": "sentences", "message": "messages", "role": "messages"}


def page(
    attribution: Attribution | SpanAttribution,
    *,
    marked: Iterable[int] = (),
    note: str = "",
    special: bool = False,
    by: str = "token",
) -> View:
    """Return everything about a result: a notebook shows the view, ``.open()`` a browser, and ``.save`` keeps a page.

    ``marked`` positions are underlined, as evidence, and ``note`` may say why. Beside ``.save("page.html")`` the view
    can be saved as a figure (``.png``, ``.svg``, ``.pdf``), as LaTeX (``.tex``), and as numbers (``.csv``, ``.json``).
    A switch shows special tokens and a chat template's; with ``special=True`` the page starts with these tokens.
    ``by`` is what the page adds up first: ``token``, ``word``, ``sentence``, ``message`` or ``role`` (its messages).
    """
    positions = frozenset(marked)
    more: dict[str, Any] = {"last": last_row(attribution.summed), "special": special, "hint": HINT}
    check_choice("by", by, UNITS)
    more["unit"] = UNITS[by]
    if isinstance(attribution, SpanAttribution):
        text, values = with_answer(attribution), span_values(attribution)
        more |= {"hint": SPAN_HINT, "matrix": packed_matrix(attribution)}
    else:
        text, values = attribution, score_values(attribution)
    html = fragment(
        text,
        (kicker(attribution.summed), headline(attribution.summed)),
        attribution.notes,
        values,
        hidden_in(attribution),
        positions,
        more,
        caption=note or ("Underlined: evidence" if positions else ""),
        predicted=predicted(attribution) if isinstance(attribution, Attribution) else None,
        contract=attribution.contract()._asdict(),
    )
    exports = {
        **exports_of(lambda: token_figure(attribution, marked=positions, note=note, special=special)),
        ".tex": lambda: latex(attribution, marked=positions, note=note, special=special),
        ".csv": lambda: attribution.to_frame().to_csv(index=False),
        ".json": lambda: json_text({**facts(attribution), "rows": attribution.to_frame().to_dict("records")}),
    }
    return View(attribution.title, html, exports)


class Values(NamedTuple):
    """Named values that a page can colour tokens by, with standard errors and a meaning."""

    name: str
    values: Float[Tensor, "pos"]
    errors: Float[Tensor, "pos"] | None = None
    meaning: str = ""


def score_values(attribution: Attribution) -> list[Values]:
    """Return the scores and the parts of the scores, with their standard errors."""
    errors = attribution.standard_errors
    scores = Values("score", attribution.scores, errors.get("scores"), meaning_of(attribution))
    parts = [(name, part) for name, part in attribution.parts.items() if (part != part[0]).any()]
    named = ((part_name(attribution, name), part, errors.get(name)) for name, part in parts)
    return [scores, *(Values(name, part, error, MEANINGS.get(name, "")) for name, part, error in named)]


def meaning_of(attribution: Attribution) -> str:
    """Return what the scores say, in a line under the legend."""
    if attribution.method in CONTROLS:
        return MEANINGS["control"]
    if attribution.signed:
        return MEANINGS["signed in vain" if in_vain(attribution) else "signed"]
    return MEANINGS["contrast" if isinstance(attribution.target, tuple) else "score"]


def span_values(span: SpanAttribution) -> list[Values]:
    """Return the sums over all targets, through the reasoning if the span was followed, and the sums of the parts."""
    rows = {"through the reasoning": span.through} if span.reasoning else {}
    rows["all targets"] = span.total
    several = len(span.steps) > 1
    meanings = {"all targets": ADDED_UP.format(len(span.steps)) if several else meaning_of(span.summed)}
    for name in _common_parts(span):
        shown = part_name(span.summed, name)
        rows[shown] = torch.stack([step.parts[name][: span.start] for step in span.steps]).sum(0)
        meanings[shown] = f"{MEANINGS.get(shown, shown)}; added up over the targets, as the scores are"
    count = len(span.tokens)
    return [Values(name, pad(row, (0, count - len(row))), meaning=meanings.get(name, "")) for name, row in rows.items()]


def with_answer(span: SpanAttribution) -> Attribution:
    """Return the prompt and the answer as one attribution, with the sums over all targets as scores."""
    last, summed, count = span.steps[-1], span.summed, len(span.tokens)
    end = len(last.text)
    messages = last.messages
    if messages is not None:  # the last target belongs to the message of the token before
        messages = replace(messages, owners=torch.cat([messages.owners, messages.owners[-1:]]))
    return replace(
        summed,
        ids=torch.cat([last.ids, last.ids.new_tensor([last.target if isinstance(last.target, int) else 0])]),
        tokens=span.tokens,
        positions=torch.arange(count),
        offsets=torch.cat([last.offsets, last.offsets.new_tensor([[end, end + len(span.tokens[-1])]])]),
        special=pad(last.special, (0, 1)),
        text=last.text + span.tokens[-1],
        scores=pad(summed.scores, (0, count - len(summed))),
        messages=messages,
    )


def packed_matrix(span: SpanAttribution) -> dict[str, Any]:
    """Return each target's scores and parts for the script, with standard errors if every step has them."""
    steps = (*span.reasoning, *span.steps)
    errors = [error for step in steps if (error := step.standard_errors.get("scores")) is not None]
    likely = [log for step in steps if isinstance(log := step.diagnostics.target_log_prob, float)]
    return {
        "targets": [*map(len, steps)],
        "scores": packed(torch.cat([step.scores for step in steps])),
        "parts": {
            single_line(part_name(span.summed, name)): packed(torch.cat([step.parts[name] for step in steps]))
            for name in _common_parts(span)
        },
        "errors": packed(torch.cat(errors)) if len(errors) == len(steps) else None,
        "likely": packed(likely) if len(likely) == len(steps) else None,
    }


def _common_parts(span: SpanAttribution) -> list[str]:
    steps = (*span.steps, *span.reasoning)
    common = [name for name in steps[0].parts if all(name in step.parts for step in steps)]
    return [name for name in common if any((step.parts[name] != step.parts[name][0]).any() for step in steps)]


def packed(values: Tensor | Sequence[int | float], kind: str = "<f4") -> str:
    """Return numbers in base64, in 32 bits each (or 16, for ``<u2``); a page makes the same numbers again."""
    numbers = torch.as_tensor(values, dtype=torch.float32).detach().cpu().numpy()
    return b64encode(numbers.astype(kind).tobytes()).decode()


class Cell(NamedTuple):
    """A token, or several tokens that write one character together, as a page shows them.

    ``rows`` are the tokens' rows. ``gap`` says that tokens before the cell were left out. ``before`` is white space,
    which has no colour. ``breaks`` is the number of line ends after the cell. ``depth`` is the colour before the script
    runs, and ``kind`` has the letters n for a score below zero, e for evidence, g for special tokens or a chat
    template's, and w for white space.
    """

    rows: range
    gap: bool
    before: str
    text: str
    breaks: int
    kind: str = ""
    depth: str = ""


class Block(NamedTuple):
    """A message of a chat with the template's tokens before the message; without a chat the whole text."""

    role: str
    message: int
    cells: list[Cell]


def cells(attribution: Attribution) -> list[Cell]:
    """Return the tokens of an attribution, in order, as a page shows them."""
    spans, positions = attribution.spans, attribution.positions.tolist()
    starts = [
        row
        for row, (start, stop) in enumerate(spans)
        if row == 0 or start >= spans[row - 1].stop or start == stop or positions[row] > positions[row - 1] + 1
    ]
    found = []
    for first, end in pairwise([*starts, len(spans)]):
        start, stop = spans[first].start, max(span.stop for span in spans[first:end])
        written = attribution.text[start:stop] or "".join(attribution.tokens[first:end])
        text = written.lstrip(" ") or written
        gap = first > 0 and positions[first] > positions[first - 1] + 1
        before = "" if first == 0 or gap else attribution.text[spans[first - 1].stop : start]
        space = legible(before + written[: len(written) - len(text)], keep="\n")
        found.append(Cell(range(first, end), gap, space, visible(text) or "∅", text.count("\n")))
    return found


def fragment(
    attribution: Attribution,
    heading: tuple[str, str],
    notes: Sequence[str],
    values: Sequence[Values],
    hidden: Bool[Tensor, "pos"],
    marked: Collection[int] = (),
    more: Mapping[str, Any] = {},
    caption: str = "",
    predicted: Predicted | None = None,
    contract: Mapping[str, str] = {},
) -> str:
    """Return the tokens of an attribution, coloured by the first of the values, with the data for the script.

    The ``heading`` is the line above the question, and the question. The ``notes`` and the ``contract`` are shown by a
    click, and the ``caption`` always, under the tokens.
    """
    shown, positions = cells(attribution), attribution.positions.tolist()
    signs = ("", "") if in_vain(attribution) else ("against", "for")
    data = {
        "count": len(attribution),
        "positions": None if positions == [*range(len(positions))] else positions,
        "cells": None if len(shown) == len(attribution) else packed([len(cell.rows) for cell in shown], "<u2"),
        "values": [
            {
                "name": single_line(view.name),
                "what": view.meaning,
                "values": packed(view.values),
                "errors": None if view.errors is None else packed(view.errors),
            }
            for view in values
        ],
        "units": units(attribution),
        "pieces": packed(pieces(attribution), "<u2") if len(attribution) > LONG else None,
        "measured": None if attribution.measured.all() else attribution.measured.nonzero()[:, 0].tolist(),
        "together": [
            [bisect_left(positions, start), bisect_left(positions, stop)]
            for start, stop, _ in attribution.diagnostics.masked_together or ()
        ],
        "first": [0] if positions[0] == 0 and not hidden[0] else [],
        "hidden": hidden.nonzero()[:, 0].tolist(),
        "signs": signs,
        "hidden_name": "the chat template" if (hidden & attribution.template).any() else "special tokens",
        "marked": [row for row, position in enumerate(positions) if position in marked],
        **more,
    }
    script = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    first, sunk = values[0].values * (torch.ones_like(hidden) if more.get("special") else ~hidden), sink(attribution)
    most = deepest(first[~sunk] if (~sunk & ~hidden).any() else first)
    return html_from(
        "plots/view.html",
        kicker=heading[0],
        title=heading[1],
        notes=notes,
        first=values[0].name,
        signed=bool((first < 0).any()),
        signs=signs,
        end=f"{most:.3g}",
        caption=caption,
        predicted=predicted,
        contract=contract,
        blocks=[*_blocks(attribution, shown, first / most, hidden, marked)],
        data=Markup(script.replace("<", "\\u003c")),  # no text may end the script element
        above=tint(BLUE),
        below=tint(ORANGE),
    )


def units(attribution: Attribution) -> dict[str, dict[str, Any]]:
    """Return the word, the sentence and the message that each token belongs to, and the roles of the messages."""
    groups: dict[str, Sequence[Any]] = {"words": attribution.by_word(), "sentences": attribution.by_sentence()}
    groups = {name: group for name, group in groups.items() if len(group) > 1}
    if attribution.messages is not None:
        groups["messages"] = attribution.by_message()
    found: dict[str, dict[str, Any]] = {}
    for name, group in groups.items():
        owner_at = {position: number for number, member in enumerate(group) for position in member.positions}
        owners = [owner_at.get(position, 0) for position in attribution.positions.tolist()]
        found[name] = {"of": packed(owners, "<u2")}
        if name == "messages":
            found[name]["roles"] = [single_line(member.role) for member in group]
    return found


def _blocks(
    attribution: Attribution,
    shown: Sequence[Cell],
    depths: Float[Tensor, "pos"],
    hidden: Bool[Tensor, "pos"],
    marked: Collection[int],
) -> Iterator[Block]:
    """Yield the messages with their coloured cells; the template's tokens belong to the next message."""
    messages = attribution.messages
    positions, owners = attribution.positions.tolist(), [-1] * len(attribution)
    if messages is not None:
        owners = messages.owners.tolist()
        for row in reversed(range(len(owners) - 1)):
            owners[row] = owners[row] if owners[row] >= 0 else owners[row + 1]

    def blank(cell: Cell) -> bool:
        return not "".join(attribution.tokens[row] for row in cell.rows).strip()

    def coloured(cell: Cell) -> Cell:
        value = float(depths[cell.rows.start : cell.rows.stop].sum())
        evidence = any(positions[row] in marked for row in cell.rows)
        letters = {"n": value < 0, "e": evidence, "g": bool(hidden[cell.rows[0]]), "w": blank(cell)}
        depth = min(1.0, abs(value))
        kind = " ".join(letter for letter, holds in letters.items() if holds)
        return cell._replace(kind=kind, depth=f"{depth:.2f}".lstrip("0") if depth >= 0.005 else "")

    for message, group in groupby(shown, lambda cell: owners[cell.rows[0]]):
        role = "" if messages is None or message < 0 else messages.roles[message]
        yield Block(role, message, [*map(coloured, group)])


def facts(result: Attribution | SpanAttribution) -> dict[str, Any]:
    """Return the question and the notes on the scores, for a JSON file that other programs read."""
    summed = result.summed
    return {
        "title": result.title,
        "method": summed.method,
        "text": summed.text,
        "target": summed.target_text,
        "signed": summed.signed,
        "options": summed.options,
        "formula": score_formula(summed),
        "contract": result.contract()._asdict(),
        "notes": result.notes,
    }


def json_text(content: Mapping[str, Any]) -> str:
    return json.dumps(plain(content), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def heat(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Float[Tensor, "row column"],
    notes: str = "",
    positions: Sequence[int] = (),
) -> View:
    """Return a table of numbers as colours: no colour at 0, deeper with size, blue above and orange below.

    A pointer on a cell shows the number. A wide table continues below, so that no column is out of sight.
    ``positions`` are the places of the columns in the text.
    """
    for row, column in (~values.isfinite()).nonzero().tolist():
        value = float(values[row, column])
        raise ValueError(f"{rows[row]!r}, {columns[column]!r} is {value}, which has no colour: leave it out, or put 0")
    flat = values.flatten()
    most, width = deepest(flat), ceil(len(columns) / ceil(len(columns) / HEAT_COLUMNS))
    fragment = html_from(
        "plots/heat_map.html",
        title=title,
        notes=notes,
        above=tint(BLUE),
        below=tint(ORANGE),
        scale={end: shade for end, shade in {most: BLUE, -most: ORANGE}.items() if (flat / end > 0).any()},
        beyond={end for end in (most, -most) if (flat / end > 1).any()},
        most=most,
        columns=columns,
        positions=positions,
        parts=[slice(at, at + width) for at in range(0, len(columns), width)],
        lines=[*zip(rows, values.tolist(), strict=True)],
    )
    return View(title, fragment)
