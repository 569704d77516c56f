"""Several attributions of one text as a page: their tokens one below another, and by how much their ranks differ."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch

from heta_lens._util.files import brief
from heta_lens._util.html_view import View
from heta_lens._util.text import cut, single_line
from heta_lens.attribution import Attribution
from heta_lens.plots.attribution_text import question
from heta_lens.plots.figures import Coloured, exports_of, stacked
from heta_lens.plots.latex_tokens import latex_of
from heta_lens.plots.page import HINTS, Shown, described, fragment, json_text
from heta_lens.plots.scales import last
from heta_lens.span_attribution import SpanAttribution


def compare(
    attributions: Iterable[Attribution | SpanAttribution], *, names: Iterable[str] | None = None, special: bool = False
) -> View:
    """Attributions of one text, one below another, each with its own scale; a table has their shares and ranks.

    They are named by their methods, and by the options in which attributions of one method differ, unless ``names``
    names them. A span has the scores of all of its targets together. It can also be saved as a figure (``.png``,
    ``.svg``, ``.pdf``), as LaTeX (``.tex``), and as its numbers (``.csv``, ``.json``). A switch shows special tokens
    and a chat template's; with ``special=True`` they are there from the start.
    """
    named = _named(attributions, names)
    check_comparable(named)
    summed = {name: own.summed for name, own in named.items()}
    values = [Shown(name, own.scores, own.standard_errors.get("scores")) for name, own in summed.items()]
    title = f"{', '.join(named)}: {'; '.join(dict.fromkeys(map(question, summed.values())))}"
    notes = [f"{name}: {'; '.join(own.notes)}" for name, own in named.items()]
    text = best_known(named)
    by_size = ranked_by_size(named)
    notes += ["ranks are by size, since not all scores have signs"] if by_size else []
    more = {"compare": True, "by_size": by_size, "hint": HINTS[0], "last": last(text), "special": special}
    page = fragment(text, title, notes, values, text.hidden, more=more)
    return View(title, page, _exports(title, named, special=special))


def best_known(named: Mapping[str, Attribution | SpanAttribution]) -> Attribution:
    """The attribution that says most about its tokens: one that knows a chat's messages, if there is one."""
    return max((own.summed for own in named.values()), key=lambda own: own.messages is not None)


def _exports(
    title: str, named: Mapping[str, Attribution | SpanAttribution], *, special: bool
) -> dict[str, Callable[[], str | bytes]]:
    """What makes each kind of file, by its suffix: the coloured texts one below another, or the numbers."""

    def texts() -> list[Coloured]:
        coloured = {name: Coloured.of(own, special=special) for name, own in named.items()}
        return [replace(own, title=f"{name}: {question(named[name].summed)}") for name, own in coloured.items()]

    def document() -> str:
        first = next(iter(named.values())).summed
        ranks = _ranks(named)
        compared = [
            {"name": name, **described(own), "scores": own.summed.scores.tolist(), "ranks": ranks[name]}
            for name, own in named.items()
        ]
        where = {"positions": first.positions.tolist(), "tokens": first.tokens, "special": first.special.tolist()}
        return json_text({"title": title, **where, "compared": compared})

    return {
        **exports_of(lambda: stacked(texts())),
        ".tex": lambda: "\\par\\medskip\n".join(map(latex_of, texts())),
        ".csv": lambda: frame_of(named).to_csv(index=False),
        ".json": document,
    }


def frame_of(named: Mapping[str, Attribution | SpanAttribution]) -> pd.DataFrame:
    """A row per token, with each attribution's score and rank."""
    first = next(iter(named.values())).summed
    columns: list[tuple[str, Any]] = [
        ("position", first.positions.tolist()),
        ("token", first.tokens),
        ("special", first.special.tolist()),
    ]
    for name, ranks in _ranks(named).items():
        columns += [(name, named[name].summed.scores.tolist()), (f"rank by {name}", ranks)]
    # Not by a dict, in which a name such as "token" would replace another column.
    return pd.DataFrame(zip(*(values for _, values in columns), strict=True), columns=[name for name, _ in columns])


def ranked_by_size(named: Mapping[str, Attribution | SpanAttribution]) -> bool:
    """Whether only some have signs, so that only sizes can be compared."""
    return len({own.summed.signed for own in named.values()}) > 1


def _ranks(named: Mapping[str, Attribution | SpanAttribution]) -> dict[str, list[int]]:
    """Of the tokens in each, 1 the highest."""
    scores = {name: own.summed.scores for name, own in named.items()}
    if ranked_by_size(named):
        scores = {name: own.abs() for name, own in scores.items()}
    return {name: (own.argsort(descending=True, stable=True).argsort() + 1).tolist() for name, own in scores.items()}


def check_comparable(named: Mapping[str, Attribution | SpanAttribution]) -> None:
    """Refuse fewer than two, and attributions of different texts, by the first difference."""
    if len(named) < 2:
        raise ValueError(f"a comparison takes two or more attributions of one text: got {len(named)}")
    (name, reference), *others = ((name, own.summed) for name, own in named.items())
    for other_name, other in others:
        if difference := _difference(reference, other):
            raise ValueError(f"{name} and {other_name} explain different texts: {difference}")


def _difference(first: Attribution, other: Attribution) -> str:
    """The first in which two attributions' texts differ, if they do."""
    facts = [zip(own.positions.tolist(), own.tokens, own.ids.tolist(), strict=True) for own in (first, other)]
    for (position, token, number), (position_too, token_too, number_too) in zip(*facts, strict=False):
        if position != position_too:
            return f"{position} is the position of a token in the first only; leave out the same tokens of both"
        if (token, number) != (token_too, number_too):
            ids = f" (ids {number} and {number_too})" if token == token_too else ""
            return f"at position {position}, {token!r} in the first and {token_too!r} in the second{ids}"
    return "" if len(first) == len(other) else f"{len(first)} tokens in the first and {len(other)} in the second"


def _named(attributions: Any, names: Iterable[str] | None) -> dict[str, Attribution | SpanAttribution]:
    """The attributions by their names, both checked."""
    if isinstance(attributions, Mapping | str) or not isinstance(attributions, Iterable):
        raise TypeError(f"compare takes a list of attributions, and their names by names=: got {brief(attributions)}")
    given = [*attributions]
    for own in given:
        if not isinstance(own, Attribution | SpanAttribution):
            raise TypeError(f"compare takes attributions: got {brief(own)}")
    chosen = names_of([own.summed for own in given]) if names is None else [*names]
    if isinstance(names, str) or not all(isinstance(name, str) for name in chosen):
        raise TypeError(f"names={brief(names)} must be a list of texts, one per attribution")
    if len(chosen) != len(given):
        raise ValueError(f"names={chosen!r} must have one name per attribution: there are {len(given)}")
    if len({*chosen}) < len(chosen):
        twice = next(name for name, count in Counter(chosen).items() if count > 1)
        raise ValueError(f"names={chosen!r} must differ: {twice!r} is there twice")
    return dict(zip(chosen, given, strict=True))


def names_of(attributions: Sequence[Attribution]) -> list[str]:
    """Their methods, with the options in which attributions of one method differ."""
    names = [_name(own, [other for other in attributions if other.method == own.method]) for own in attributions]
    counts, numbers = Counter(names), Counter[str]()
    for place, name in enumerate(names):
        if counts[name] > 1:
            numbers[name] += 1
            names[place] = f"{name} ({numbers[name]})"
    return names


def _name(own: Attribution, others: Sequence[Attribution]) -> str:
    differing = [
        f"{option}={cut(single_line(str(value)), 40)}"
        for option, value in own.options.items()
        if any(not _same(other.options.get(option), value) for other in others)
    ]
    return " ".join([own.method, *differing])


def _same(first: Any, second: Any) -> bool:
    """Whether two values of an option are equal; they may be tensors, or hold some."""
    tensors = isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
    return torch.equal(first, second) if tensors else repr(first) == repr(second)
