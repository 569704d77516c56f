"""Several results of one text side by side: the highest tokens of each, and how their ranks correlate."""

from collections.abc import Collection, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

from rich.text import Text

from heta_lens.cli.errors_and_messages import note, say, show
from heta_lens.cli.prompt_running import Explained
from heta_lens.cli.result_files import Files
from heta_lens.cli.result_views import write_view
from heta_lens.cli.text_table import TextTable, text_table

if TYPE_CHECKING:
    from heta_lens import Attribution
    from heta_lens.attribution import Order


def show_comparison(results: Mapping[str, Explained], top: int, *, special: bool = False) -> None:
    """Print what each result puts highest, and how the results correlate."""
    from heta_lens.plots.attribution_text import question
    from heta_lens.plots.comparison_page import ranked_by_size

    for label, result in results.items():
        say(f"{label}: {question(result.summed)}")
        note(f"  {'; '.join(result.notes)}")
    sizes = ranked_by_size(results)
    by_size = "by size, since not all have signs, " if sizes else ""
    show(Text(f"\nscores, and their ranks {by_size}in brackets; the best mean rank first", style="bold"))
    show(highest_table(results, top, special=special))
    of_sizes = "the sizes of all scores, since not all have signs"
    show(Text(f"\nrank correlation of {of_sizes if sizes else 'all scores'}", style="bold"))
    show(correlation_table(results))


def write_comparison(results: Mapping[str, Explained], files: Files, *, special: bool = False) -> None:
    """Write the page and the figure of all results that are wanted."""
    from heta_lens import plots

    write_view(lambda: plots.compare([*results.values()], names=[*results], special=special), files)


def highest_table(results: Mapping[str, Explained], top: int, *, special: bool = False) -> TextTable:
    """A row for every token among the highest of any result: its score and rank in each."""
    from heta_lens.plots.comparison_page import best_known, ranked_by_size

    order: Order = "size" if ranked_by_size(results) else "score"
    known = best_known(results)
    listed = known.positions[~known.hidden | special].tolist()
    ranked = {label: _ranks(result.summed, order, {*listed}) for label, result in results.items()}
    texts, rows = _texts(results), []
    chosen = {place for ranks in ranked.values() for place, rank in ranks.items() if rank <= top}
    for place in sorted(chosen, key=lambda place: sum(ranks[place] for ranks in ranked.values())):
        cells = [f"{_score(result, place):.4g} ({ranked[label][place]})" for label, result in results.items()]
        rows.append([str(place), repr(texts[place]), *cells])
    columns = ["position", "token", *results]
    return text_table(columns, rows, right=[*results])


def correlations(results: Mapping[str, Explained]) -> dict[tuple[str, str], float]:
    """Spearman's, of all tokens' scores, or of their sizes; NaN where the scores of one are all equal."""
    from heta_lens.diagnostics import rank_correlation
    from heta_lens.plots.comparison_page import ranked_by_size

    scores = {label: result.summed.scores.double() for label, result in results.items()}
    if ranked_by_size(results):
        scores = {label: own.abs() for label, own in scores.items()}
    return {(one, other): rank_correlation(scores[one], scores[other]) for one, other in combinations(scores, 2)}


def correlation_table(results: Mapping[str, Explained]) -> TextTable:
    known = correlations(results)
    both = known | {(other, one): value for (one, other), value in known.items()}
    rows = [[one, *("" if one == other else _written(both[one, other]) for other in results)] for one in results]
    return text_table(["", *results], rows, right=[*results])


def comparison_document(results: Mapping[str, Explained]) -> list[dict[str, Any]]:
    """The correlations, a row for each pair."""
    return [{"first": one, "second": other, "rank_correlation": r} for (one, other), r in correlations(results).items()]


def _written(value: float) -> str:
    return "undefined" if value != value else f"{value:.2f}"


def _ranks(attribution: "Attribution", by: "Order", listed: Collection[int]) -> dict[int, int]:
    """The place of every listed position in the order of `Attribution.top`, from 1."""
    order = [token.positions[0] for token in attribution.top(len(attribution), by, special=True)]
    return {place: rank for rank, place in enumerate(filter(listed.__contains__, order), 1)}


def _texts(results: Mapping[str, Explained]) -> dict[int, str]:
    first = next(iter(results.values())).summed
    return dict(zip(first.positions.tolist(), first.tokens, strict=True))


def _score(result: Explained, place: int) -> float:
    of = result.summed
    return float(of.scores[of.positions.tolist().index(place)])
