"""A result in the terminal, as files and as JSON: of a token or a span, by token, word, sentence, message or role."""

import sys
from collections.abc import Collection, Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from heta_lens.cli.errors_and_messages import note, say, show
from heta_lens.cli.prompt_running import Explained
from heta_lens.cli.result_files import Files

if TYPE_CHECKING:
    from heta_lens import Attribution
    from heta_lens.grouped_scores import Scored

By: TypeAlias = Literal["token", "word", "sentence", "message", "role"]
GROUPS = get_args(By)
OF_CHATS = "message", "role"
BY = "What the highest scores are listed by: token, word, sentence, or, of a chat, message or role."
TOP = "How many of them."
HIGHEST = 8


def summed(explained: Explained) -> "Attribution":
    """One score per token of the prompt; of a span, for all its targets together."""
    from heta_lens import SpanAttribution

    return explained.summed if isinstance(explained, SpanAttribution) else explained


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
        check_by(by, summed(explained).messages is not None)
    groups = [
        Scored(getattr(group, "role", "") + ": " * hasattr(group, "role") + group.text, group.score, group.positions)
        for group in getattr(explained, f"by_{by}")()
    ]
    return sorted(groups, key=lambda group: -group.score)


# ------------------------------------------------------------------------------------------------------- the terminal
def show_result(
    explained: Explained, *, by: str = "token", top: int = HIGHEST, marked: Collection[int] = (), written: str = ""
) -> None:
    """Print a result for people."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    show_written(written)
    for view in _views(explained, by, top, marked):
        show(view)


def show_written(written: str) -> None:
    """Print what the model wrote, if it did."""
    if written:
        say(f"written: {written}\n")


def _views(explained: Explained, by: str, top: int, marked: Collection[int]) -> "Sequence[RenderableType]":
    from heta_lens import SpanAttribution, plots

    of = summed(explained)
    if by != "token":
        return [Text(of.title, style="bold"), group_table(groups_of(explained, by), top, by)]
    main = plots.terminal(of, marked=marked, top=top)
    targets = [Text(), target_table(explained)] if isinstance(explained, SpanAttribution) else []
    return [main, *targets]


def group_table(groups: "Sequence[Scored]", top: int, by: str) -> Table:
    """The highest groups, each with its share of all scores by size."""
    whole = sum(abs(group.score) for group in groups) or 1.0
    rows = [(f"{group.score:.4g}", f"{group.score / whole:.0%}", group.text, _places(group)) for group in groups[:top]]
    return text_table(["score", "share", by, "positions"], rows, right=("score", "share"))


def _places(group: "Scored") -> str:
    first, *rest = group.positions or ("",)
    return f"{first}–{rest[-1]}" if rest else str(first)


def target_table(span: Any) -> Table:
    """Each target of a span with the tokens that it owes most to."""
    rows = []
    for step in span.steps:
        owed = ", ".join(f"{token.text!r} {token.score:.3g}" for token in step.top(3))
        target = step.target_text if isinstance(step.target_text, str) else " / ".join(step.target_text)
        rows.append((str(len(step)), repr(target), owed))
    return text_table(["position", "target", "most because of"], rows)


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> Table:
    """A table of texts that cannot steer the terminal."""
    from heta_lens._util.printable_text import legible

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in columns:
        justify = "right" if column in right else "left"
        table.add_column(Text(legible(column)), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(legible(cell)) for cell in row))
    return table


# ---------------------------------------------------------------------------------------------------- files and JSON
def write_files(explained: Explained, files: Files, marked: Collection[int] = (), why: str = "") -> None:
    """Write the page, the figure and the attribution that are wanted."""
    from heta_lens import plots

    if files.html is not None or files.figure is not None:
        view = plots.page(explained, marked=marked, note=why)
        for path in (files.html, files.figure):
            if path is not None:
                view.save(path)
    if files.save is not None:
        explained.save(files.save)


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
    total = {"token": of.tokens, "position": of.positions.tolist(), "score": of.scores.tolist()}
    return {"steps": [*map(_row, explained.steps)], "total": total, **groups, **written}


def _row(attribution: "Attribution") -> dict[str, Any]:
    from heta_lens.evaluation.score_rows import row_of

    return row_of("prompt", attribution.method, attribution).flat()
