"""Several attributions of one text as a page: their tokens one below another, and by how much their ranks differ."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch

from heta_lens._util.html_view import View
from heta_lens.attribution import Attribution
from heta_lens.plots.html_page import HINTS, fragment
from heta_lens.plots.view_data import Shown


def compare(attributions: Sequence[Attribution]) -> View:
    """Attributions of one text, one below another, each with its own scale; a table has their shares and ranks."""
    first, names = attributions[0], names_of(attributions)
    check_comparable(attributions)
    named = [*zip(names, attributions, strict=True)]
    values = [Shown(name, own.scores, own.standard_errors.get("scores")) for name, own in named]
    questions = dict.fromkeys(own.title.partition(": ")[2] for own in attributions)
    title = f"{', '.join(names)}: {'; '.join(questions)}"
    notes = [f"{name}: {'; '.join(own.notes)}" for name, own in named]
    exports = {".csv": lambda: frame_of(attributions).to_csv(index=False)}
    return View(title, fragment(first, title, notes, values, more={"compare": True, "hint": HINTS[0]}), exports)


def frame_of(attributions: Sequence[Attribution]) -> pd.DataFrame:
    """A row per token, with each attribution's score and rank."""
    columns: dict[str, Any] = {"position": attributions[0].positions.tolist(), "token": attributions[0].tokens}
    for name, own in zip(names_of(attributions), attributions, strict=True):
        order = own.scores.argsort(descending=True, stable=True)
        columns |= {name: own.scores.tolist(), f"rank by {name}": (order.argsort() + 1).tolist()}
    return pd.DataFrame(columns)


def check_comparable(attributions: Sequence[Attribution]) -> None:
    """Refuse fewer than two, and attributions of different texts, by the first difference."""
    if len(attributions) < 2:
        raise ValueError(f"there are {len(attributions)} attributions to compare: give two or more of the same text")
    first = attributions[0]
    for number, other in enumerate(attributions[1:], 1):
        if not (torch.equal(first.positions, other.positions) and torch.equal(first.ids, other.ids)):
            raise ValueError(f"attribution {number} is of another text than attribution 0: {_difference(first, other)}")


def _difference(first: Attribution, other: Attribution) -> str:
    pairs = zip(first.positions.tolist(), other.positions.tolist(), first.tokens, other.tokens, strict=False)
    for position, place, token, word in pairs:
        if position != place:
            return f"it has position {place} where the first has {position}; leave out the same tokens of both"
        if token != word:
            return f"at position {position} it has {word!r} instead of {token!r}"
    return f"it has {len(other)} tokens instead of {len(first)}"


def names_of(attributions: Sequence[Attribution]) -> list[str]:
    """Their methods, with the options in which attributions of one method differ."""
    names = [_name(own, [other for other in attributions if other.method == own.method]) for own in attributions]
    counts = Counter(names)
    numbers = Counter[str]()
    for place, name in enumerate(names):
        if counts[name] > 1:
            numbers[name] += 1
            names[place] = f"{name} ({numbers[name]})"
    return names


def _name(own: Attribution, others: Sequence[Attribution]) -> str:
    differing = {
        option: value
        for option, value in own.options.items()
        if any(other.options.get(option) != value for other in others)
    }
    return " ".join([own.method, *(f"{option}={value}" for option, value in differing.items())])
