"""``heta-lens reproduce``: a table of the paper."""

from pathlib import Path
from typing import Annotated, Any

import typer

from heta_lens.cli.application import Retry, command
from heta_lens.cli.errors_and_messages import errors_in_a_line, note, resumable, show
from heta_lens.cli.json_output import add, wanted
from heta_lens.cli.loading_flags import loading_options, with_loading_flags
from heta_lens.cli.quiet_flag import quiet
from heta_lens.cli.text_table import TextTable, text_table

PLACE = ("block", "row", "column")  # of a figure
TABLES = (
    *("main", "qwen", "dsa", "components", "beta_gamma", "robustness", "hessian", "long_context", "decoding"),
    *("compute_quality", "causal_gate", "causal_downstream", "runtime_gptj", "runtime_phi", "runtime_qwen"),
    *("runtime_llama", "extended_faithfulness"),
)
OF_HETA = "An option of HETA in all its rows, like balance=sum; may be repeated."
REPRODUCED = Path("reproduced")


@command("reproduce")
@with_loading_flags
def reproduce_table(
    table: Annotated[str, typer.Argument(help=f"One of {', '.join(TABLES)}.")],
    quick: Annotated[bool, typer.Option("--quick", help="The demo model, few prompts: minutes.")] = False,
    model: Annotated[str | None, typer.Option(help="A name on the Hugging Face hub, or a folder.")] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where it is written; an interrupted run resumes.")
    ] = REPRODUCED,
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts of each data set (100; quick: 3).")] = None,
    path: Annotated[list[str] | None, typer.Option(metavar="NAME=FILE", help="A data set's file.")] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help=OF_HETA)] = None,
    seed: Annotated[int, typer.Option(help="Which prompts are drawn.")] = 0,
    retry_failed: Retry = False,
    *,
    loading: dict[str, Any],
) -> None:
    """Reproduce a table of the paper.

    It has the same rows and columns, and the printed figures beside ours.
    """
    with resumable(), errors_in_a_line():
        from heta_lens._util.option_text import keywords
        from heta_lens.evaluation.reproduce import reproduce

        paths, options = {name: str(file) for name, file in keywords(path or []).items()}, keywords(option or [])
        _check_distinct_from_pages(paths, out, table)
        how: dict[str, Any] = {
            "load_options": loading_options(loading),
            "quick": quick,
            "model": model,
            "out": out,
            "limit": limit,
            "seed": seed,
            "progress": not quiet(),
        }
        written = reproduce(table, **how, paths=paths, options=options, retry_failed=retry_failed)
        add(table=table, files=written)
        if not wanted():
            show(measured_table(next(path for path in written if path.suffix == ".csv")))
            note("With the paper's figures and 95 % intervals:")
        for path_written in written:
            note(path_written)


def measured_table(page: Path) -> TextTable:
    """What was measured here, in the rows and columns of the paper."""
    import pandas as pd

    lines = pd.read_csv(page)
    ours = lines[lines["ours"].notna()]
    columns = [*dict.fromkeys(ours["column"])]
    cells = {place: f"{value:.3g}" for place, value in ours.set_index([*PLACE])["ours"].items()}
    rows = [
        [row, block, *(cells.get((block, row, column), "") for column in columns)]
        for block, row in dict.fromkeys(zip(ours["block"], ours["row"], strict=True))
    ]
    return text_table(["row", "measured on", *columns], rows, right=columns)


def _check_distinct_from_pages(paths: dict[str, str], out: Path, table: str) -> None:
    from heta_lens._util.file_writing import check_distinct

    for page in (out / f"{table}.md", out / f"{table}.csv"):
        for name, file in paths.items():
            check_distinct({f"--path {name}": file, "--out's": page})
