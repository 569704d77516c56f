"""Several attributions of one text as a page: tokens one below another, and the differences of the tokens' ranks."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pandas as pd
import torch

from heta_lens._util.files import brief
from heta_lens._util.html_view import View
from heta_lens._util.text import cut, single_line
from heta_lens.attribution import Attribution
from heta_lens.plots.attribution_text import question
from heta_lens.plots.coloured_text import ColouredText, latex_of, stacked
from heta_lens.plots.figures import exports_of
from heta_lens.plots.page import HINT, Values, described, fragment, json_text
from heta_lens.plots.scales import last_row
from heta_lens.span_attribution import SpanAttribution

Named: TypeAlias = Mapping[str, Attribution | SpanAttribution]


def compare(
    attributions: Iterable[Attribution | SpanAttribution], *, names: Iterable[str] | None = None, special: bool = False
) -> View:
    """Return attributions of one text one below another, each on a scale of its own, with a table of shares and ranks.

    The names are the methods, with the options that differ between attributions of one method, unless ``names`` is
    given. A span shows the sums over all targets. Beside a page the view can be saved as a figure (``.png``, ``.svg``,
    ``.pdf``), as LaTeX (``.tex``), and as numbers (``.csv``, ``.json``). A switch shows special tokens and a chat
    template's; with ``special=True`` the page starts with these tokens.
    """
    named = _named(attributions, names)
    check_comparable(named)
    summed = {name: result.summed for name, result in named.items()}
    values = [Values(name, scored.scores, scored.standard_errors.get("scores")) for name, scored in summed.items()]
    title = f"{', '.join(named)}: {'; '.join(dict.fromkeys(map(question, summed.values())))}"
    notes = [f"{name}: {'; '.join(result.notes)}" for name, result in named.items()]
    text, by_size = best_known(named), ranked_by_size(named)
    notes += ["ranks are by size, since not all scores have signs"] if by_size else []
    more = {"compare": True, "by_size": by_size, "hint": HINT, "last": last_row(text), "special": special}
    page = fragment(text, title, notes, values, text.hidden, more=more)
    return View(title, page, _exports(title, named, special=special))


def best_known(named: Named) -> Attribution:
    """Return the attribution that says most about the tokens: the first with a chat's messages, or else the first."""
    return max((result.summed for result in named.values()), key=lambda scored: scored.messages is not None)


def ranked_by_size(named: Named) -> bool:
    """Return True if signed and unsigned scores are compared: then only sizes are comparable."""
    return len({result.summed.signed for result in named.values()}) > 1


def _exports(title: str, named: Named, *, special: bool) -> dict[str, Callable[[], str | bytes]]:
    def texts() -> list[ColouredText]:
        return [
            replace(ColouredText.of(result, special=special), title=f"{name}: {question(result.summed)}")
            for name, result in named.items()
        ]

    def document() -> str:
        first, ranks = next(iter(named.values())).summed, _ranks(named)
        compared = [
            {"name": name, **described(result), "scores": result.summed.scores.tolist(), "ranks": ranks[name]}
            for name, result in named.items()
        ]
        tokens = {"positions": first.positions.tolist(), "tokens": first.tokens, "special": first.special.tolist()}
        return json_text({"title": title, **tokens, "compared": compared})

    return {
        **exports_of(lambda: stacked(texts())),
        ".tex": lambda: "\\par\\medskip\n".join(map(latex_of, texts())),
        ".csv": lambda: frame_of(named).to_csv(index=False),
        ".json": document,
    }


def frame_of(named: Named) -> pd.DataFrame:
    """Return a row per token with the score and the rank in each attribution."""
    first = next(iter(named.values())).summed
    columns: list[tuple[str, Any]] = [
        ("position", first.positions.tolist()),
        ("token", first.tokens),
        ("special", first.special.tolist()),
    ]
    for name, ranks in _ranks(named).items():
        columns += [(name, named[name].summed.scores.tolist()), (f"rank by {name}", ranks)]
    # Not from a dict, in which an attribution with the name "token" would replace another column.
    return pd.DataFrame(zip(*(values for _, values in columns), strict=True), columns=[name for name, _ in columns])


def _ranks(named: Named) -> dict[str, list[int]]:
    """Return the ranks of the tokens in each attribution, with 1 for the highest score."""
    scores = {name: result.summed.scores for name, result in named.items()}
    if ranked_by_size(named):
        scores = {name: values.abs() for name, values in scores.items()}
    return {name: (own.argsort(descending=True, stable=True).argsort() + 1).tolist() for name, own in scores.items()}


def check_comparable(named: Named) -> None:
    """Raise for fewer than two attributions, and for attributions of different texts, with the first difference."""
    if len(named) < 2:
        raise ValueError(f"a comparison takes two or more attributions of one text: got {len(named)}")
    (name, reference), *others = ((name, result.summed) for name, result in named.items())
    for other_name, other in others:
        if difference := _difference(reference, other):
            raise ValueError(f"{name} and {other_name} explain different texts: {difference}")


def _difference(first: Attribution, other: Attribution) -> str:
    """Return the first difference between the texts of two attributions; empty for equal texts."""
    facts = [zip(own.positions.tolist(), own.tokens, own.ids.tolist(), strict=True) for own in (first, other)]
    for (position, token, number), (position_too, token_too, number_too) in zip(*facts, strict=False):
        if position != position_too:
            return f"{position} is the position of a token in the first only; leave out the same tokens of both"
        if (token, number) != (token_too, number_too):
            ids = f" (ids {number} and {number_too})" if token == token_too else ""
            return f"at position {position}, {token!r} in the first and {token_too!r} in the second{ids}"
    return "" if len(first) == len(other) else f"{len(first)} tokens in the first and {len(other)} in the second"


def _named(attributions: Any, names: Iterable[str] | None) -> dict[str, Attribution | SpanAttribution]:
    """Return the attributions by name; raise for wrong values and for names of a wrong number or type."""
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
    """Return the methods, with the options (or else numbers) by which attributions of a method differ."""
    names = []
    for own in attributions:
        others = [other.options for other in attributions if other.method == own.method]
        differing = [
            f"{option}={cut(single_line(str(value)), 40)}"
            for option, value in own.options.items()
            if any(not _same(options.get(option), value) for options in others)
        ]
        names.append(" ".join([own.method, *differing]))
    counts, numbers = Counter(names), Counter[str]()
    for place, name in enumerate(names):
        if counts[name] > 1:
            numbers[name] += 1
            names[place] = f"{name} ({numbers[name]})"
    return names


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return torch.equal(first, second)
    return repr(first) == repr(second)
