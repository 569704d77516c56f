"""Output of subcommands: tables in the terminal, pages, figures, saved attributions, and parts of JSON documents."""

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.text import Text
from typer import Option

from heta_lens.cli.app import add, note, say, show
from heta_lens.cli.flags import given, used
from heta_lens.cli.questions import Explained

if TYPE_CHECKING:
    from heta_lens._util.html_view import View
    from heta_lens.attribution import Scored


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]], **how: Any) -> None:
    """Print a table of `text_table`, with its options, unless ``--json`` was given."""
    from heta_lens._util.text import text_table

    show(text_table(columns, rows, **how))


PAGES = (".html", ".htm")
DRAWN = (".png", ".svg", ".pdf")  # with matplotlib
FIGURES = (*PAGES, *DRAWN, ".tex")  # suffixes of --figure

HTML = "Also write a standalone HTML page; of several methods, one that compares them."
FIGURE = f"Also write a figure ({', '.join((*PAGES, *DRAWN))}; of tokens, .tex too); of several methods, one of all."
SAVE = "Keep the attribution (safetensors), for heta-lens show and compare; of several, as FILE-heta.safetensors."


@dataclass(frozen=True)
class Files:
    """Output files of a result; ``--save`` is a flag of `SavedFiles` only."""

    html: Annotated[Path | None, Option("--html", metavar="FILE", help=HTML)] = None
    figure: Annotated[Path | None, Option("--figure", metavar="FILE", help=FIGURE)] = None
    save: Path | None = None

    def check(self, figures: Sequence[str] = FIGURES) -> None:
        """Refuse unwritable files and wrong suffixes, before long work."""
        from heta_lens._util.files import check_no_view
        from heta_lens._util.python import check_extra

        check_writable(used(self).values())
        if self.save is not None:
            check_no_view(self.save, "--figure or --json")
        for flag, path, kinds in ("--html", self.html, PAGES), ("--figure", self.figure, figures):
            if path is not None and path.suffix.lower() not in kinds:
                ends = ", ".join(kinds)
                raise ValueError(f"{flag} {path} cannot be written: give it a name that ends in one of {ends}")
        if self.figure is not None and self.figure.suffix.lower() in DRAWN:
            check_extra("matplotlib", f"--figure {self.figure}")

    def apart(self, labels: Collection[str]) -> "dict[str, Files]":
        """Return the files of several results, as ``a-lime_samples=200.html``; the files themselves for one result."""
        if len(labels) == 1:
            return dict.fromkeys(labels, self)
        named = dict[str, Files]()
        for number, label in enumerate(labels):
            name = re.sub(r"[^\w.=]+", "_", label)
            paths = {kind: path.with_name(f"{path.stem}-{name}{path.suffix}") for kind, path in used(self).items()}
            if Files(**paths) in named.values():
                paths = {kind: path.with_stem(f"{path.stem}_{number}") for kind, path in paths.items()}
            named[label] = Files(**paths)
        return named


@dataclass(frozen=True)
class SavedFiles(Files):
    save: Annotated[Path | None, Option(metavar="FILE", help=SAVE)] = None


def check_writable(paths: Iterable[Path], *, tensors: bool = False) -> None:
    """Refuse unwritable files, and names of pictures for ``tensors``, before long work."""
    from heta_lens._util.files import check_no_view

    for path in paths:
        if tensors:
            check_no_view(path, "--json")
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise ValueError(f"{path} cannot be written: give a file in a folder that exists")


def write_view(view: "Callable[[], View]", files: Files) -> None:
    """Write the requested page and figure, and name them; without a request, ``view`` is not called."""
    paths = [path for path in (files.html, files.figure) if path is not None]
    if paths:
        drawn = view()
        for path in paths:
            note(drawn.save(path))


def write_files(
    explained: Explained,
    files: Files,
    *,
    marked: Collection[int] = (),
    why: str = "",
    special: bool = False,
    by: str = "token",
) -> None:
    from heta_lens import plots

    write_view(lambda: plots.page(explained, marked=marked, note=why, special=special, by=by), files)
    if files.save is not None:
        explained.save(files.save)
        note(files.save)


OF_CHATS = ("message", "role")
HIGHEST = 8
BY = "What the highest scores are listed by: token, word, sentence, or, of a chat, message or role."
By = Annotated[Literal["token", "word", "sentence", "message", "role"], Option(help=BY)]
Top = Annotated[int, Option(metavar="N", min=1, help="How many rows to list.")]
Special = Annotated[bool, Option("--special", help="List and colour special tokens, and a chat template's, too.")]


def check_by(by: str, *, chat: bool) -> None:
    """Refuse a group of chats if the prompt is a text."""
    if by in OF_CHATS and not chat:
        raise ValueError(f"--by {by} is for a chat, and this prompt is a text: give --chat or --user, or --by sentence")


def groups_of(explained: Explained, by: str) -> "list[Scored]":
    """Return words, sentences, messages or roles with scores, the highest first."""
    from heta_lens.attribution import Scored

    check_by(by, chat=explained.summed.messages is not None)
    groups = [
        Scored(f"{group.role}: {group.text}" if hasattr(group, "role") else group.text, group.score, group.positions)
        for group in getattr(explained, f"by_{by}")()
    ]
    return sorted(groups, key=lambda group: -group.score)


def show_result(
    explained: Explained, *, by: str = "token", top: int = HIGHEST, special: bool = False, marked: Collection[int] = ()
) -> None:
    from heta_lens import SpanAttribution, plots
    from heta_lens.plots.scales import percent_of

    if by != "token":
        summed, rows = explained.summed, []
        hidden = {*(() if special else summed.positions[summed.hidden].tolist())}
        for group in groups_of(explained, by):
            if not group.positions or {*group.positions} - hidden:
                ends = "–".join(map(str, dict.fromkeys((*group.positions[:1], *group.positions[-1:]))))
                rows.append((f"{group.score:.4g}", percent_of(summed.scores, group.score), group.text, ends))
        show(Text(explained.title, style="bold"))
        show(Text("\n".join(explained.notes) + "\n", style="dim"))
        show_table(["score", "share", by, "positions"], rows[:top], right=("score", "share"))
        return
    show(plots.terminal(explained, marked=marked, top=top, special=special))
    if isinstance(explained, SpanAttribution):
        rows = [
            (str(len(step)), repr(target), ", ".join(f"{t.text!r} {t.score:.3g}" for t in step.top(3, special=special)))
            for step, target in zip(explained.steps, explained.targets, strict=True)
        ]
        show(Text())
        show_table(["position", "target", "top sources"], rows)


def document_of(explained: Explained, files: Files, by: str = "token") -> dict[str, Any]:
    """Return the parts of a JSON document: rows of columns, groups, and written files."""
    from heta_lens import SpanAttribution
    from heta_lens.evaluation.saved_scores import row_of

    written: dict[str, Any] = {"page": files.html, "figure": files.figure, "saved": files.save}
    written["contract"] = explained.contract()._asdict()
    groups = {} if by == "token" else {"groups": [group._asdict() for group in groups_of(explained, by)]}
    if not isinstance(explained, SpanAttribution):
        return {"attribution": row_of(explained), **groups, **written}
    of = explained.summed
    columns = {"position": of.positions, "special": of.special, "score": of.scores}
    total = {"token": of.tokens, **{name: values.tolist() for name, values in columns.items()}}
    return {"steps": [*map(row_of, explained.steps)], "total": total, **groups, **written}


MOST = 20  # shown results of a file


@dataclass(frozen=True)
class Saved:
    """A saved result with a file and a name; ``prompt`` is set for a file of many prompts."""

    path: Path
    name: str
    result: Explained
    prompt: str | None = None


def read_saved(paths: Sequence[Path], prompt: str | None = None, method: str | None = None) -> list[Saved]:
    """Read the results of files; ``prompt`` and ``method`` choose among the scores of many prompts."""
    if not any(map(_is_run, paths)):
        for name, value in given(prompt=prompt, method=method).items():
            raise ValueError(f"--{name} {value} is for a folder or file of attribute-dataset: leave it out")
    return [result for path in paths for result in _read_file(path.expanduser(), prompt, method)]


def _is_run(path: Path) -> bool:
    from heta_lens._util.files import RUN

    return path.name == RUN or path.expanduser().is_dir()


def _read_file(path: Path, prompt: str | None, method: str | None) -> list[Saved]:
    if not _is_run(path):
        return [Saved(path, str(path), load_result(path))]
    from heta_lens.evaluation.saved_scores import load_scores

    scores = load_scores(path).of(prompt=prompt, method=method)
    if len(scores) > MOST:
        names = ", ".join(scores.prompts[:3])
        raise ValueError(
            f"{path} holds {len(scores)} attributions, of the prompts {names} …: choose with --prompt and --method"
        )
    return [Saved(path, f"{path} {of} {by}", result, of) for (of, by), result in zip(scores.names, scores, strict=True)]


def load_result(path: Path) -> Explained:
    from heta_lens import Attribution, SpanAttribution
    from heta_lens._util.storage import OtherKind

    for kind in (Attribution, SpanAttribution):
        with suppress(OtherKind):
            return kind.load(path)
    raise ValueError(f"{path} is a safetensors file without an attribution: give what --save or attribution.save wrote")


def show_comparison(results: Mapping[str, Explained], files: Files, top: int, *, special: bool = False) -> None:
    """Write and print the highest tokens of several results of one text, and the rank correlations of the results."""
    from heta_lens import plots
    from heta_lens.plots.comparison import ranked, ranked_by_size
    from heta_lens.plots.titles_and_notes import question

    write_view(lambda: plots.compare(results, special=special), files)
    (scores, _), sizes, pairs = ranked(results), ranked_by_size(results), combinations(results, 2)
    found = (scores.abs() if sizes else scores).corr("spearman")
    add(
        correlations=[{"first": a, "second": b, "rank_correlation": found.at[a, b]} for a, b in pairs],
        page=files.html,
        figure=files.figure,
    )
    for label, result in results.items():
        say(f"{label}: {question(result.summed)}")
        note(f"  {'; '.join(result.notes)}")
    by_size = "by size, since not all have signs, " if sizes else ""
    show(Text(f"\nscores, and their ranks {by_size}in brackets; the best mean rank first", style="bold"))
    show_table(["position", "token", *results], highest_rows(results, top, special=special), right=[*results])
    of_sizes = "the sizes of all scores, since not all have signs"
    show(Text(f"\nrank correlation of {of_sizes if sizes else 'all scores'}", style="bold"))
    words = found.apply(lambda column: column.map("{:.2f}".format)).replace("nan", "undefined")
    matrix = [[a, *("" if a == b else words.at[a, b] for b in results)] for a in results]
    show_table(["", *results], matrix, right=[*results])


def highest_rows(results: Mapping[str, Explained], top: int, *, special: bool = False) -> list[list[str]]:
    """Return every token among the highest of a result, with the score and rank in every result."""
    from heta_lens.plots.comparison import ranked

    known, (scores, ranks) = next(iter(results.values())).summed, ranked(results, special=special)
    texts = dict(zip(known.positions.tolist(), known.tokens, strict=True))
    mean_ranks = ranks[ranks.min(axis=1) <= top].mean(axis=1).sort_values(kind="stable")
    return [
        [str(at), repr(texts[at]), *(f"{scores.at[at, label]:.4g} ({ranks.at[at, label]})" for label in results)]
        for at in mean_ranks.index
    ]


def print_failures(folder: Path, nothing: str = "no metric has a value of any prompt") -> None:
    """Print the most frequent reason of failures; exit with 1 and the sentence ``nothing`` without a single result."""
    from heta_lens.evaluation.run_database import read_records

    records = read_records(folder)
    reasons = {kind: {r.key: getattr(r, kind) for r in records if getattr(r, kind)} for kind in ("failed", "skipped")}
    for kind, of in reasons.items():
        add(**{kind: [{"prompt": prompt, "method": method, "reason": why} for (prompt, method), why in of.items()]})
        for reason, count in Counter(of.values()).most_common(1):
            say(f"{len(of)} of {len(records)} {kind}, most often ({count}) by: {reason}", err=True)
    if records and not any(record.measured for record in records):  # a shard may have no prompts
        why = next((why for record in records for why in record.reasons.values()), "")
        sentence = nothing if any(reasons.values()) else f"{nothing}: {why}"
        add(error=sentence)
        say(sentence, err=True)
        raise typer.Exit(1)
