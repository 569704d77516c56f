"""``heta-lens show``: attributions that were saved, in the terminal, as a page or as a figure."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from heta_lens.cli.application import command
from heta_lens.cli.errors_and_messages import errors_in_a_line, show
from heta_lens.cli.json_output import add, wanted
from heta_lens.cli.result_files import Files, numbered, with_view_flags
from heta_lens.cli.result_views import (
    BY,
    GROUPS,
    HIGHEST,
    SPECIAL,
    TOP,
    check_by,
    document_of,
    name_files,
    show_result,
    write_files,
)
from heta_lens.cli.saved_results import Saved, saved_results

FILE = "What --save wrote; or a folder or file of attribute-dataset."
PROMPT = "Of a file of many prompts, only this one."
METHOD = "Of a file of many methods, only this one."


@command("show")
@with_view_flags
def show_saved(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE…", help=FILE)],
    prompt: Annotated[str | None, typer.Option(metavar="NAME", help=PROMPT)] = None,
    method: Annotated[str | None, typer.Option("--method", "-m", metavar="NAME", help=METHOD)] = None,
    by: Annotated[str, typer.Option(metavar="|".join(GROUPS), help=BY)] = "token",
    top: Annotated[int, typer.Option(metavar="N", min=1, help=TOP)] = HIGHEST,
    special: Annotated[bool, typer.Option("--special", help=SPECIAL)] = False,
    *,
    files: dict[str, Any],
) -> None:
    """Show saved attributions, without a model.

    attribute --save or attribute-dataset wrote them.
    """
    written = Files(**files)
    with errors_in_a_line(*written.paths, names=written.names):
        check_by(by)
        written.check()
        saved = [each for path in paths for each in saved_results(path, prompt, method)]
        labels = {each.name: each for each in saved}
        written.check_apart(labels, numbered(paths))
        shown = [_shown(each, written.of(each.name, labels), by, special=special) for each in saved]
        add(shown=shown)
        for each in saved if not wanted() else ():
            _print(each, by, top, special=special, heading=len(saved) > 1)
        for each in saved:
            name_files(written.of(each.name, labels))


def _shown(saved: Saved, files: Files, by: str, *, special: bool) -> dict[str, Any]:
    """Its files are written; what a document has of it."""
    write_files(saved.result, files, special=special)
    return {"file": saved.path, "name": saved.name, **document_of(saved.result, files, by)} if wanted() else {}


def _print(saved: Saved, by: str, top: int, *, special: bool, heading: bool) -> None:
    from heta_lens._util.printable_text import legible

    if heading:
        show(Text(f"\n{legible(saved.name)}", style="reverse"))
    show_result(saved.result, by=by, top=top, special=special)
