"""A table of texts in the terminal; where it is too narrow for the columns, each row as a list."""

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from io import TextIOWrapper
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias, get_args

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from heta_lens.cli.app import note, say, show, with_flags
from heta_lens.cli.questions import Explained

if TYPE_CHECKING:
    from collections.abc import Callable

    from heta_lens import Attribution, SpanAttribution
    from heta_lens._util.html_view import View
    from heta_lens.attribution import Order
    from heta_lens.evaluation.report import document
    from heta_lens.evaluation.report.leaderboard import Leaderboard
    from heta_lens.evaluation.report.results import Summary
    from heta_lens.grouped_scores import Scored


GAP = 2  # cells after each column
FOLDED = 24  # to how many cells a column of longer texts may shrink; numbers never do


@dataclass(frozen=True)
class TextTable:
    """Rows for `rich` to print; columns whose places are in ``right`` are numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Text]]
    right: frozenset[int] = frozenset()
    header: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        least = sum(min(width, FOLDED) if self.folds[at] else width for at, width in enumerate(self.widths))
        fits = least + GAP * (len(self.columns) - 1) <= options.max_width
        yield from [self._table()] if fits else self._lists()

    @cached_property
    def widths(self) -> list[int]:
        """The most cells of a line in each column."""
        names = self.columns if self.header else [""] * len(self.columns)
        cells = ([Text(name), *(row[at] for row in self.rows)] for at, name in enumerate(names))
        return [max(cell_len(line) for text in column for line in text.plain.split("\n")) for column in cells]

    @cached_property
    def folds(self) -> list[bool]:
        """Whether each column's texts may be broken into lines."""
        return [at not in self.right and at > 0 and width > FOLDED for at, width in enumerate(self.widths)]

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, GAP, 0, 0), show_header=self.header)
        for at, name in enumerate(self.columns):
            side = "right" if at in self.right else "left"
            table.add_column(Text(name), justify=side, no_wrap=not self.folds[at], overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table

    def _lists(self) -> Iterator[RenderableType]:
        """For each row a line for each cell with its column's name, and the long texts below, indented."""
        from heta_lens.plots.terminal import block

        short = [at for at, folds in enumerate(self.folds) if not folds]
        names = [self.columns[at] * self.header for at in short]
        for number, row in enumerate(self.rows):
            if number:
                yield Text()
            yield block(names, [row[at].plain for at in short])
            yield from (Padding(cell, (0, 0, 0, GAP)) for at, cell in enumerate(row) if self.folds[at] and cell.plain)


def text_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = (), *, header: bool = True
) -> TextTable:
    """A table of texts that cannot steer the terminal."""
    from heta_lens._util.text import legible

    cells = [[Text(legible(cell, keep="\n")) for cell in row] for row in rows]
    names = [legible(column) for column in columns]
    return TextTable(names, cells, frozenset(at for at, name in enumerate(columns) if name in right), header)


# -------------------------------------------------------------------------------------------------------- result files
# Files that a result is written to: a page, a figure, and the attribution itself.


PAGES = (".html", ".htm")
DRAWN = (".png", ".svg", ".pdf")  # with matplotlib
FIGURES = (*PAGES, *DRAWN, ".tex")  # as far as plots.page can be saved
"""The suffixes of what ``--figure`` writes."""
NUMBERS = (".json", ".jsonl", ".csv", ".txt")
"""Those of what ``--json`` prints, or other programs make of it."""

HTML = "Also write a standalone HTML page; of several methods, one that compares them."
FIGURE = f"Also write a figure, of the kind that its suffix says: {', '.join(FIGURES)}; of several methods, one of all."
SAVE = "Keep the attribution (safetensors), for heta-lens show and compare; of several, as FILE-heta.safetensors."
VIEW_FLAGS: dict[str, Any] = {
    "html": Annotated[Path | None, typer.Option("--html", metavar="FILE", help=HTML)],
    "figure": Annotated[Path | None, typer.Option("--figure", metavar="FILE", help=FIGURE)],
}
FLAGS: dict[str, Any] = {**VIEW_FLAGS, "save": Annotated[Path | None, typer.Option(metavar="FILE", help=SAVE)]}
"""What files are chosen by."""

with_view_flags = with_flags(VIEW_FLAGS, "files")
with_file_flags = with_flags(FLAGS, "files")
"""Give a command these flags; it gets those that were used as ``files``, for `Files`."""


@dataclass(frozen=True)
class Files:
    """Where results are written to, if anywhere."""

    html: Path | None = None
    figure: Path | None = None
    save: Path | None = None

    @property
    def names(self) -> list[str]:
        """The flags of those that are written."""
        return [f"--{field.name}" for field in fields(self) if getattr(self, field.name) is not None]

    @property
    def paths(self) -> list[Path]:
        return [path for field in fields(self) if (path := getattr(self, field.name)) is not None]

    def check(self, kinds: Sequence[str] = FIGURES) -> None:
        """Refuse a page that is named as something else, and a figure of a kind that the view cannot be saved as."""
        check_page(self.html)
        if self.save is not None:
            from heta_lens._util.files import check_no_view

            check_no_view(self.save, "--json" if self.save.suffix.lower() in NUMBERS else "--figure")
        if self.figure is None or (self.figure.exists() and not self.figure.is_file()):
            return  # a folder is refused as one, and a stream gets a page
        suffix = self.figure.suffix.lower()
        if suffix not in kinds:
            ends = ", ".join(kinds)
            raise ValueError(f"--figure {self.figure} cannot be written: give it a name that ends in one of {ends}")
        if suffix in DRAWN:
            from heta_lens._util.python import check_extra

            check_extra("matplotlib", f"--figure {self.figure}")

    def check_apart(self, labels: Mapping[str, Any], others: Mapping[str, Path | None]) -> None:
        """Refuse files of several results that are one file, or one of ``others``, by the names of these."""
        from heta_lens._util.files import check_distinct

        paths = {**others}
        for label in labels:
            own, of = self.of(label, labels), f" of {label}" if len(labels) > 1 else ""
            paths |= {f"{name}{of}": path for name, path in zip(own.names, own.paths, strict=True)}
        check_distinct(paths)

    def of(self, label: str, labels: Mapping[str, Any]) -> "Files":
        """Those of one of several results: its label is put before each suffix."""
        if len(labels) == 1:
            return self
        return Files(*(path and _labelled(path, label) for path in (self.html, self.figure, self.save)))

    @property
    def views(self) -> "Files":
        """The page and the figure, which may be of several results together."""
        return replace(self, save=None)

    @property
    def without_views(self) -> "Files":
        return replace(self, html=None, figure=None)


def numbered(inputs: Sequence[Path]) -> dict[str, Path | None]:
    """The files that a command reads, by what its help calls them."""
    return {f"FILE {number}": path for number, path in enumerate(inputs, 1)}


def check_page(path: Path | None) -> None:
    """Refuse a page that is not named as one."""
    if path is not None and path.suffix.lower() not in PAGES and not (path.exists() and not path.is_file()):
        raise ValueError(f"--html {path} is a page: give it a name that ends in one of {', '.join(PAGES)}")


def _labelled(path: Path, label: str) -> Path:
    """``a.html`` as ``a-lime_samples=200.html``."""
    return path.with_name(f"{path.stem}-{_in_names(label)}{path.suffix}")


def _in_names(label: str) -> str:
    """As much of a label as file names take."""
    return re.sub(r"[^A-Za-z0-9.=]+", "_", label)


# -------------------------------------------------------------------------------------------------------- result views
# A result in the terminal, as files and as JSON: of a token or a span, by token, word, sentence, message or role.


By: TypeAlias = Literal["token", "word", "sentence", "message", "role"]
GROUPS = get_args(By)
OF_CHATS = "message", "role"
BY = "What the highest scores are listed by: token, word, sentence, or, of a chat, message or role."
TOP = "How many rows to list."
SPECIAL = "List and colour special tokens, and a chat template's, too."
HIGHEST = 8


def check_by(by: str, chat: bool | None = None) -> None:
    """Refuse a group that there is none of; ``chat`` says whether the prompt is one, if that is known."""
    if by not in GROUPS:
        raise ValueError(f"--by {by} is not one of {', '.join(GROUPS)}")
    if by in OF_CHATS and chat is False:
        raise ValueError(f"--by {by} is for a chat, and this prompt is a text: give --chat or --user, or --by sentence")


def groups_of(explained: Explained, by: str) -> "list[Scored]":
    """Words and the like with their scores, the highest first."""
    from heta_lens.grouped_scores import Scored

    if by in OF_CHATS:
        check_by(by, explained.summed.messages is not None)
    groups = [
        Scored(getattr(group, "role", "") + ": " * hasattr(group, "role") + group.text, group.score, group.positions)
        for group in getattr(explained, f"by_{by}")()
    ]
    return sorted(groups, key=lambda group: -group.score)


# ------------------------------------------------------------------------------------------------------- the terminal
def show_result(
    explained: Explained,
    *,
    by: str = "token",
    top: int = HIGHEST,
    special: bool = False,
    marked: Collection[int] = (),
    written: str = "",
) -> None:
    """Print a result for people."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    show_written(written)
    for view in _views(explained, by, top, marked, special=special):
        show(view)


def show_written(written: str) -> None:
    """Print what the model wrote, if it did."""
    if written:
        say(f"written: {written}\n")


def _views(
    explained: Explained, by: str, top: int, marked: Collection[int], *, special: bool
) -> "Sequence[RenderableType]":
    from heta_lens import SpanAttribution, plots

    if by != "token":
        title, notes = Text(explained.title, style="bold"), Text("\n".join(explained.notes), style="dim")
        return [title, notes, Text(), group_table(explained, by, top, special=special)]
    main = plots.terminal(explained, marked=marked, top=top, special=special)
    targets = [Text(), target_table(explained, special=special)] if isinstance(explained, SpanAttribution) else []
    return [main, *targets]


def group_table(explained: Explained, by: str, top: int, *, special: bool = False) -> TextTable:
    """The highest groups with a token that is not hidden, each with the share of the whole score that it holds."""
    from heta_lens.plots.scales import percent_of

    of = explained.summed
    size_at = dict(zip(of.positions.tolist(), of.scores.abs().tolist(), strict=True))
    hidden = () if special else of.positions[of.hidden].tolist()
    groups = [group for group in groups_of(explained, by) if not group.positions or {*group.positions} - {*hidden}]
    rows = []
    for group in groups[:top]:
        held = percent_of(of.scores, sum(size_at[position] for position in group.positions))
        rows.append((f"{group.score:.4g}", held, group.text, _places(group)))
    return text_table(["score", "share", by, "positions"], rows, right=("score", "share"))


def _places(group: "Scored") -> str:
    first, *rest = group.positions or ("",)
    return f"{first}–{rest[-1]}" if rest else str(first)


def target_table(span: "SpanAttribution", *, special: bool = False) -> TextTable:
    """Each target of a span with the tokens that matter most to it."""
    rows = []
    for step, target in zip(span.steps, span.targets, strict=True):
        sources = ", ".join(f"{token.text!r} {token.score:.3g}" for token in step.top(3, special=special))
        rows.append((str(len(step)), repr(target), sources))
    return text_table(["position", "target", "top sources"], rows)


# ---------------------------------------------------------------------------------------------------- files and JSON
def write_files(
    explained: Explained, files: Files, marked: Collection[int] = (), why: str = "", *, special: bool = False
) -> None:
    """Write the page, the figure and the attribution that are wanted."""
    from heta_lens import plots

    write_view(lambda: plots.page(explained, marked=marked, note=why, special=special), files)
    if files.save is not None:
        explained.save(files.save)


def write_view(view: "Callable[[], View]", files: Files) -> None:
    """Write the page and the figure that are wanted of what a function draws."""
    paths = [path for path in (files.html, files.figure) if path is not None]
    if paths:
        drawn = view()
        for path in paths:
            drawn.save(path)


def name_files(files: Files) -> None:
    """Say which files were written."""
    named = {"The same as a page": files.html, "A figure": files.figure, "The attribution": files.save}
    for what, path in named.items():
        if path is not None:
            note(f"{what}: {path}")


def document_of(explained: Explained, files: Files, by: str = "token") -> dict[str, Any]:
    """What a JSON document has of a result: rows as in ``scores.jsonl``, groups, and the files that were written."""
    from heta_lens import SpanAttribution

    written = {"page": files.html, "figure": files.figure, "saved": files.save}
    groups = {} if by == "token" else {"groups": [group._asdict() for group in groups_of(explained, by)]}
    if not isinstance(explained, SpanAttribution):
        return {"attribution": _row(explained), **groups, **written}
    of = explained.summed
    total = {
        "token": of.tokens,
        "position": of.positions.tolist(),
        "special": of.special.tolist(),
        "score": of.scores.tolist(),
    }
    return {"steps": [*map(_row, explained.steps)], "total": total, **groups, **written}


def _row(attribution: "Attribution") -> dict[str, Any]:
    from heta_lens.evaluation.saved_scores import row_of

    return row_of("prompt", attribution.method, attribution).flat()


# ------------------------------------------------------------------------------------------------------- report tables
# The tables of a report in the terminal: methods as rows, a few metrics side by side.


def show_summary(results: "Summary") -> None:
    """Print what a report has at a glance."""
    from heta_lens.evaluation.report.folder_report import overview

    _show_blocks(overview(results))


def show_standings(board: "Leaderboard") -> None:
    """Print every method's rank over several evaluations, the best first."""
    names = {"method": "method", "rank": "mean rank", "ranked": "metrics", "better": "better", "worse": "worse"}
    names |= {"worth": "forwards", "seconds": "seconds"}
    rows = [[_written(row[name]) for name in names] for row in board.rows]
    show(text_table([*names.values()], rows, right=[*names.values()][1:]))
    show(Text(f"Mean rank: 0 is the best by every metric, 1 the worst. Better, worse: than {board.reference}."))


def _written(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) and value == value else "none" if value != value else str(value)


def _show_blocks(blocks: "Iterable[document.Block]") -> None:
    """Tables and the notes below them; what else a report has is for its page."""
    from heta_lens.evaluation.report import document

    for block in blocks:
        if isinstance(block, document.Table):
            show(as_rich(block))
            show(Text())
        elif isinstance(block, document.Notes):
            show(Text("\n".join(block.lines), style="dim"))


def as_rich(table: "document.Table") -> TextTable:
    """A table of a report for `rich` to print."""
    from heta_lens._util.text import legible

    def styled(row: int, column: int, cell: str) -> Text:
        return Text(legible(cell), style="bold" if (row, column) in table.bold else "")

    rows = [[styled(row, column, cell) for column, cell in enumerate(cells)] for row, cells in enumerate(table.rows)]
    return TextTable([*map(legible, table.columns)], rows, frozenset(range(table.texts, len(table.columns))))


# ------------------------------------------------------------------------------------------------------- saved results
# Results that were saved: attributions and spans as safetensors, or the scores of many prompts.


MOST = 20  # results of one file that a terminal is worth


class Saved(NamedTuple):
    """A result, the file it is in, and a name for it; of a file of many prompts, the prompt's too."""

    path: Path
    name: str
    result: Explained
    prompt: str | None = None


def saved_results(path: Path, prompt: str | None = None, method: str | None = None) -> list[Saved]:
    """What is in a file; of one that holds many, those of this prompt and method."""
    from heta_lens._util.files import regular_file
    from heta_lens.evaluation.saved_scores import READERS

    path = path.expanduser()
    if path.is_dir() or path.suffix in READERS:
        return _of_scores(path, prompt, method)
    regular_file(path, f"{path}: there is no such file")
    for flag, name in {"--prompt": prompt, "--method": method}.items():
        if name is not None:
            raise ValueError(f"{flag} {name} chooses among the scores of many prompts, and {path} is one attribution")
    return [Saved(path, str(path), load_result(path))]


def load_result(path: Path) -> Explained:
    """The attribution, of a token or of a span, that ``--save`` wrote."""
    from heta_lens import Attribution, SpanAttribution
    from heta_lens._util.files import regular_file
    from heta_lens._util.storage import OtherKind

    regular_file(path, f"{path}: there is no such file")
    for kind in (Attribution, SpanAttribution):
        try:
            return kind.load(path)
        except OtherKind:
            pass
    raise ValueError(f"{path} is a safetensors file without an attribution: give what --save or attribution.save wrote")


def _of_scores(path: Path, prompt: str | None, method: str | None) -> list[Saved]:
    from heta_lens.evaluation.saved_scores import load_scores

    scores = load_scores(path).of(prompt=prompt, method=method)
    if len(scores) > MOST:
        names = ", ".join(scores.prompts[:3])
        raise ValueError(
            f"{path} holds {len(scores)} attributions, of the prompts {names} …: choose with --prompt and --method"
        )
    named = zip(scores.names, scores, strict=True)
    return [Saved(path, f"{path} {of} {by}", attribution, of) for (of, by), attribution in named]


# ------------------------------------------------------------------------------------------------------ aligned scores
# Several results of one text side by side: the highest tokens of each, and how their ranks correlate.


def show_comparison(results: Mapping[str, Explained], top: int, *, special: bool = False) -> None:
    """Print what each result puts highest, and how the results correlate."""
    from heta_lens.plots.attribution_text import question
    from heta_lens.plots.comparison import ranked_by_size

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
    from heta_lens.plots.comparison import best_known, ranked_by_size

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
    from heta_lens.plots.comparison import ranked_by_size

    scores = {label: result.summed.scores.double() for label, result in results.items()}
    if ranked_by_size(results):
        scores = {label: own.abs() for label, own in scores.items()}
    return {(one, other): rank_correlation(scores[one], scores[other]) for one, other in combinations(scores, 2)}


def correlation_table(results: Mapping[str, Explained]) -> TextTable:
    known = correlations(results)
    both = known | {(other, one): value for (one, other), value in known.items()}
    rows = [[one, *("" if one == other else _written_cell(both[one, other]) for other in results)] for one in results]
    return text_table(["", *results], rows, right=[*results])


def comparison_document(results: Mapping[str, Explained]) -> list[dict[str, Any]]:
    """The correlations, a row for each pair."""
    return [{"first": one, "second": other, "rank_correlation": r} for (one, other), r in correlations(results).items()]


def _written_cell(value: float) -> str:
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
