"""A result in the terminal, as files and as JSON: of a token or a span, by token, word, sentence, message or role."""

import sys
from collections.abc import Collection, Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from rich.console import RenderableType
from rich.text import Text

from heta_lens.cli.errors_and_messages import note, say, show
from heta_lens.cli.prompt_running import Explained
from heta_lens.cli.result_files import Files
from heta_lens.cli.text_table import TextTable, text_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from heta_lens import Attribution, SpanAttribution
    from heta_lens._util.html_view import View
    from heta_lens.grouped_scores import Scored

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
    from heta_lens.plots.shares import percent_of

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
    from heta_lens.evaluation.score_rows import row_of

    return row_of("prompt", attribution.method, attribution).flat()
