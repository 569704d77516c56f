"""``heta-lens compare``: attributions of one text that were saved, side by side."""

from pathlib import Path
from typing import Annotated, Any

import typer

from heta_lens.cli.aligned_scores import comparison_document, show_comparison, write_comparison
from heta_lens.cli.application import command
from heta_lens.cli.errors_and_messages import errors_in_a_line
from heta_lens.cli.json_output import add, wanted
from heta_lens.cli.result_files import Files, numbered, with_view_flags
from heta_lens.cli.result_views import HIGHEST, SPECIAL, TOP, document_of, name_files
from heta_lens.cli.saved_results import Saved, saved_results

FILE = "What --save wrote, several; or a folder or file of attribute-dataset."
PROMPT = "Of a file of many prompts, only this one."


@command("compare")
@with_view_flags
def compare_saved(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE…", help=FILE)],
    prompt: Annotated[str | None, typer.Option(metavar="NAME", help=PROMPT)] = None,
    top: Annotated[int, typer.Option(metavar="N", min=1, help=TOP)] = HIGHEST,
    special: Annotated[bool, typer.Option("--special", help=SPECIAL)] = False,
    *,
    files: dict[str, Any],
) -> None:
    """Compare saved attributions of one text.

    Lists the highest tokens of each, and how their ranks correlate.
    """
    from heta_lens._util.file_writing import check_distinct
    from heta_lens.plots.comparison_page import check_comparable

    written = Files(**files)
    with errors_in_a_line(*written.paths, names=written.names):
        written.check()
        check_distinct({**numbered(paths), "--html": written.html, "--figure": written.figure})
        saved = [each for path in paths for each in saved_results(path, prompt)]
        if len(saved) < 2:
            held = f"{paths[0]} holds {len(saved) or 'none'}"
            raise ValueError(f"a comparison takes two attributions or more, and {held}: name another file too")
        if len(prompts := {each.prompt: None for each in saved if each.prompt}) > 1:
            raise ValueError(f"these are of the prompts {', '.join(prompts)}: choose one with --prompt")
        check_comparable({each.name: each.result for each in saved})
        results = dict(zip(_labels(saved), (each.result for each in saved), strict=True))
        write_comparison(results, written, special=special)
        if wanted():
            compared = _documents(saved, [*results])
            add(compared=compared, correlations=comparison_document(results), page=written.html, figure=written.figure)
        show_comparison(results, top, special=special)
        name_files(written)


def _labels(saved: list[Saved]) -> list[str]:
    """The methods, where they tell the results apart; else the files' names."""
    methods = [each.result.summed.method for each in saved]
    stems = [each.path.stem for each in saved]
    return next((names for names in (methods, stems) if len({*names}) == len(names)), [each.name for each in saved])


def _documents(saved: list[Saved], labels: list[str]) -> list[dict[str, Any]]:
    return [
        {"file": each.path, "label": label, **document_of(each.result, Files())}
        for label, each in zip(labels, saved, strict=True)
    ]
