"""Several attributions of one text as a page: tokens one below another, and the differences of the tokens' ranks."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import isnan
from typing import Any, TypeAlias, cast

import pandas as pd

from heta_lens._util.html_view import View
from heta_lens._util.presets import as_preset
from heta_lens._util.text import cut, single_line
from heta_lens.attribution import Attribution
from heta_lens.diagnostics import rank_correlation
from heta_lens.plots.coloured_text import ColouredText
from heta_lens.plots.figures import exports_of, stacked
from heta_lens.plots.html_page import HINT, Values, facts, fragment, json_text
from heta_lens.plots.latex import latex_of
from heta_lens.plots.scales import last_row
from heta_lens.plots.titles_and_notes import headline, predicted, question
from heta_lens.span_attribution import SpanAttribution

Named: TypeAlias = Mapping[str, Attribution | SpanAttribution]


def compare(attributions: Named | Iterable[Attribution | SpanAttribution], *, special: bool = False) -> View:
    """Return attributions of one text one below another, each on a scale of its own, with a table of shares and ranks.

    The names are the keys of a dict, ``{"before": one, "after": other}``. Without a dict, the names are the methods,
    with the options that differ between attributions of one method. A span shows the sums over all targets. Beside a
    page the view can be saved as a figure (``.png``, ``.svg``, ``.pdf``), as LaTeX (``.tex``), and as numbers
    (``.csv``, ``.json``). A switch shows special tokens and a chat template's; with ``special=True`` the page starts
    with these tokens.

    Example:
        >>> other = heta_lens.attribute(cache, " box", tokens=tokens, method="fast")
        >>> page = heta_lens.compare([attribution, other])  # shown, as the last line of a notebook's cell
        >>> saved = page.save("comparison.html")
    """
    named = cast(Named, attributions) if isinstance(attributions, Mapping) else by_name([*attributions])
    check_comparable(named)
    summed = {name: result.summed for name, result in named.items()}
    values = [
        Values(name, own.scores, own.standard_errors.get("scores"), "signed" if own.signed else "no direction")
        for name, own in summed.items()
    ]
    questions = "; ".join(dict.fromkeys(map(question, summed.values())))
    title = f"{', '.join(named)}: {questions}"
    notes = [f"{name}: {'; '.join(result.notes)}" for name, result in named.items()]
    text, by_size = next(iter(summed.values())), ranked_by_size(named)
    notes += ["ranks are by size, since not all scores have signs"] if by_size else []
    more = {"compare": True, "by_size": by_size, "hint": HINT, "last": last_row(text), "special": special}
    more["agreement"] = agreement(named)
    if any(own.diagnostics.masked_together != text.diagnostics.masked_together for own in summed.values()):
        more |= {"together": [], "measured": None}
    asked = dict.fromkeys(map(headline, summed.values()))
    page = fragment(
        text,
        (", ".join(named), " ".join(asked)),
        notes,
        values,
        text.hidden,
        more=more,
        predicted=predicted(text) if len(asked) == 1 else None,
    )
    return View(title, page, _exports(title, named, special=special))


def ranked_by_size(named: Named) -> bool:
    """Return True if signed and unsigned scores are compared: then only sizes are comparable."""
    return len({result.summed.signed for result in named.values()}) > 1


def agreement(named: Named) -> dict[str, Any]:
    """Return the mean rank correlation over pairs of attributions, and of each pair, but not of constant scores."""
    shown, by_size = ~next(iter(named.values())).summed.hidden, ranked_by_size(named)
    scores = {name: result.summed.scores[shown] for name, result in named.items()}
    sizes = {name: own.abs() if by_size else own for name, own in scores.items()}
    pairs = [(one, other, rank_correlation(sizes[one], sizes[other])) for one, other in combinations(sizes, 2)]
    pairs = [pair for pair in pairs if not isnan(pair[2])]
    return {"value": sum(own for *_, own in pairs) / len(pairs) if pairs else None, "pairs": pairs}


def _exports(title: str, named: Named, *, special: bool) -> dict[str, Callable[[], str | bytes]]:
    def texts() -> list[ColouredText]:
        return [
            replace(ColouredText.of(result, special=special), title=f"{name}: {headline(result.summed)}")
            for name, result in named.items()
        ]

    compared = [{"name": name, **facts(result)} for name, result in named.items()]
    return {
        **exports_of(lambda: stacked(texts())),
        ".tex": lambda: "\\par\\medskip\n".join(map(latex_of, texts())),
        ".csv": lambda: frame_of(named).to_csv(index=False),
        ".json": lambda: json_text({"title": title, "compared": compared, "rows": frame_of(named).to_dict("records")}),
    }


def frame_of(named: Named) -> pd.DataFrame:
    """Return a row per token with the score and the rank in each attribution."""
    first, (scores, ranks) = next(iter(named.values())).summed, ranked(named)
    tokens = pd.DataFrame({"token": first.tokens, "special": first.special.tolist()}, index=scores.index)
    return tokens.join([scores, ranks.add_prefix("rank by ")]).reset_index(names="position")


def ranked(named: Named, *, special: bool = True) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the scores and the ranks in each attribution, with 1 for the highest score, by position.

    Hidden tokens have no row and no rank with ``special=False``.
    """
    known = next(iter(named.values())).summed
    columns = {name: result.summed.scores.tolist() for name, result in named.items()}
    scores = pd.DataFrame(columns, index=known.positions.tolist()).loc[(~known.hidden | special).tolist(), :]
    sizes = scores.abs() if ranked_by_size(named) else scores
    return scores, sizes.rank(ascending=False, method="first").astype(int)


def check_comparable(named: Named) -> None:
    """Raise for fewer than two attributions, and for attributions of different texts, with the first difference."""
    if len(named) < 2:
        raise ValueError(f"a comparison takes two or more attributions of one text: got {len(named)}")
    if taken := named.keys() & {"position", "token", "special"}:
        raise ValueError(f"{min(taken)!r} is a column of the table of a comparison: give the attribution another name")
    (name, reference), *others = ((name, result.summed) for name, result in named.items())
    for other_name, other in others:
        if difference := _difference(reference, other):
            raise ValueError(f"{name} and {other_name} explain different texts: {difference}")


def _difference(first: Attribution, other: Attribution) -> str:
    """Return the first difference between the texts of two attributions; empty for equal texts."""
    places = [zip(own.positions.tolist(), own.tokens, strict=True) for own in (first, other)]
    for (position, token), (position_too, token_too) in zip(*places, strict=False):
        if (position, token) != (position_too, token_too):
            return f"at position {position}, {token!r} in the first and {token_too!r} in the second"
    return "" if len(first) == len(other) else f"{len(first)} tokens in the first and {len(other)} in the second"


def by_name(attributions: Sequence[Attribution | SpanAttribution]) -> Named:
    return dict(zip(names_of([own.summed for own in attributions]), attributions, strict=True))


def names_of(attributions: Sequence[Attribution]) -> list[str]:
    """Return the methods or presets, with the options (or else numbers) by which attributions of a method differ."""
    names, known = [], [as_preset(own.method, own.options) for own in attributions]
    for name, options in known:
        others = [other for same, other in known if same == name]
        differing = [
            f"{option}={cut(single_line(str(value)), 40)}"
            for option, value in options.items()
            if any(repr(other.get(option)) != repr(value) for other in others)
        ]
        names.append(" ".join([name, *differing]))
    counts = Counter(names)
    return [f"{name} ({names[: at + 1].count(name)})" if counts[name] > 1 else name for at, name in enumerate(names)]
