"""``heta-lens evaluate`` and ``heta-lens report``: methods side by side on a suite."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heta_lens.cli.app import (
    MODELS,
    Retry,
    add,
    bars,
    command,
    errors_in_a_line,
    listed,
    note,
    quiet,
    resumable,
    say,
    show,
    wanted,
)
from heta_lens.cli.flags import (
    OF_SUITE,
    SOURCE,
    distribution_options,
    facts_of,
    loading_options,
    print_failures,
    results_folder,
    suite_options,
    with_loading_flags,
    with_worker_flags,
)
from heta_lens.cli.views import TextTable, show_standings, show_summary, text_table

if TYPE_CHECKING:
    from heta_lens.evaluation.report.results import Summary


LEADERBOARD = Path("leaderboard")
OUT = f"Where the leaderboard of several DIRs is written ({LEADERBOARD})."
SUITES = ("recall", "curated", "longra", "tellmewhy", "wikibio", "jsonl")
METHODS = ["heta", "leave_one_out", "input_x_gradient", "attention_rollout", "random"]
ENTRIES = (
    f"With its options, as in 'lime samples=200', or a preset; may be repeated, or with commas ({', '.join(METHODS)})."
)
SCORES = "Also evaluate the scores in a file: ours, inseq's, or tokens and scores; may be repeated."
BUDGET = "At most so many forwards for every method and prompt, as 100F; a backward counts as two."
METRICS = (
    "See heta-lens metrics; may be repeated, or with commas (all that run a method only once, except soft_ns and "
    "soft_ns_raw, which rarely tell methods apart)."
)


@command("evaluate")
@with_worker_flags
@with_loading_flags
def evaluate_suite(
    suite: Annotated[str, typer.Argument(help=f"One of {', '.join(SUITES)}.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where results are kept; an interrupted run resumes.")],
    model: Annotated[str, typer.Option(help=MODELS)] = "demo",
    methods: Annotated[list[str] | None, typer.Option("--methods", "-m", metavar="METHOD", help=ENTRIES)] = None,
    metrics: Annotated[list[str] | None, typer.Option("--metrics", metavar="NAME", help=METRICS)] = None,
    scores: Annotated[list[Path] | None, typer.Option("--scores", metavar="FILE", help=SCORES)] = None,
    budget: Annotated[str | None, typer.Option(metavar="FORWARDS", help=BUDGET)] = None,
    path: Annotated[Path | None, typer.Option(help="The file that the suite is read from.")] = None,
    split: Annotated[str | None, typer.Option(help="Which part of it, where it has parts (test).")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="How many prompts (recall, which has no end: 100).")] = None,
    seed: Annotated[int, typer.Option(help="Which prompts are drawn.")] = 0,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help=OF_SUITE)] = None,
    retry_failed: Retry = False,
    *,
    loading: dict[str, Any],
    distribution: dict[str, Any],
) -> None:
    """Evaluate methods on the prompts of a suite.

    Writes a report of the results too.
    """
    with resumable(), errors_in_a_line():
        from heta_lens._util.python import check_extra
        from heta_lens.data import suites
        from heta_lens.evaluation import Entry, evaluate
        from heta_lens.evaluation.external_scores import given_methods
        from heta_lens.evaluation.runner import drawn
        from heta_lens.metrics.registry import default_metrics
        from heta_lens.model.loading import load_model

        check_extra("matplotlib", "the report of an evaluation")
        out = out.expanduser()
        _check_distinct_from_results(path, out)
        most = forwards_of(budget)
        entries = [replace(Entry.read(entry), budget=most) for entry in listed(methods, METHODS)]
        labels = {entry.label for entry in entries}
        given = [method.apart_from(labels) for file in scores or [] for method in given_methods(file)]
        names = listed(metrics, default_metrics())
        options = suite_options(option or [])
        if suite == "recall":
            limit, split = limit or 100, split or "test"
        facts = {"suite": suite, "suite_options": options, "model": model, "path": path and str(path), "split": split}
        facts |= {"seed": seed, "limit": limit, **({"budget": most} if most is not None else {})}
        how = loading_options(loading)
        facts |= facts_of(how)
        where = distribution_options(distribution)
        draw = partial(suites.suite, suite, path, split=split, limit=limit, seed=seed, **options)
        prompts, explained = drawn(suite, partial(load_model, model, **how), where["workers"], draw)
        kept = {"facts": facts, "retry_failed": retry_failed, "progress": not quiet(), **where}
        evaluate(explained, prompts, [*entries, *given], names, out, **kept)
        out = results_folder(out, where["shard"])
        _write_report(out)
    print_failures(out)


@command("report")
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…", help="What evaluate was given as --out.")],
    against: Annotated[
        str | None, typer.Option(metavar="METRIC", help="The metric that costs are drawn against.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help=OUT)] = None,
) -> None:
    """Write the report of an evaluation so far.

    It has tables, figures and a page; several evaluations make a leaderboard.
    """
    with errors_in_a_line():
        folders = [folder.expanduser() for folder in folders]
        if len(folders) == 1:
            if out is not None:
                raise ValueError(f"--out {out} is for a leaderboard of several DIRs: a report is written into its own")
            _write_report(folders[0], against)
        else:
            if against is not None:
                raise ValueError(f"--against {against} is for the report of one DIR: a leaderboard draws ranks")
            _write_leaderboard(folders, (out or LEADERBOARD).expanduser())


def forwards_of(budget: str | None) -> float | None:
    """``100F``, or ``100``."""
    if budget is None:
        return None
    try:
        return float(budget.removesuffix("F"))
    except ValueError:
        raise ValueError(f"--budget {budget} is no number of forwards: write 100F") from None


def _check_distinct_from_results(path: Path | None, out: Path) -> None:
    from heta_lens._util.files import check_distinct
    from heta_lens.evaluation.report.folder_report import FILES
    from heta_lens.evaluation.run_folder import RECORDS, RUN

    check_distinct({"--path": path, **{f"{name} of --out": out / name for name in (RUN, RECORDS, *FILES)}})


def _write_report(folder: Path, against: str | None = None) -> None:
    from heta_lens.evaluation.report.folder_report import result_rows, write_summary
    from heta_lens.evaluation.report.results import summary

    results = summary(folder)
    written = write_summary(results, folder, against)
    add(folder=folder, files=written, results=[*result_rows(results)], costs=_costs(results))
    show_summary(results)
    for path in written:
        if path.parent == folder:
            note(path)


def _costs(results: "Summary") -> list[dict[str, Any]]:
    costs = results.costs.reindex([method for method in results.methods if method in results.costs.index])
    return [{"method": str(method), **row} for method, row in costs.to_dict("index").items()]


def _write_leaderboard(folders: list[Path], out: Path) -> None:
    from heta_lens.evaluation.report.leaderboard import Leaderboard, write_leaderboard

    board = Leaderboard.of(folders)
    written = write_leaderboard(board, out)
    add(folder=out, files=written, standings=board.rows, results=board.cells)
    show_standings(board)
    for path in written:
        if path.parent == out:
            note(path)


# ------------------------------------------------------------------------------------------------------- merge command
# ``heta-lens merge``: makes one evaluation of its shards.


SHARDS = "The folders of its shards; by default those inside DIR."
PARTIAL = "Merge what there is, although shards are missing or not finished."


@command("merge")
def merge_shards(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The --out of all shards.")],
    shards: Annotated[list[Path] | None, typer.Argument(metavar="SHARD", help=SHARDS)] = None,
    partial: Annotated[bool, typer.Option("--partial", help=PARTIAL)] = False,
) -> None:
    """Merge the shards of an evaluation.

    evaluate --shard or attribute-dataset --shard wrote them; they stay.
    """
    with errors_in_a_line():
        from heta_lens.evaluation.run_folder import merge

        count = merge(folder.expanduser(), [shard.expanduser() for shard in shards or ()], partial=partial)
        add(folder=folder, merged=count)
        say(f"{count} results of methods on prompts: {folder}")


# --------------------------------------------------------------------------------------------------- reproduce command
# ``heta-lens reproduce``: a table of the paper.


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
        from heta_lens._util.options import keywords
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
    from heta_lens._util.files import check_distinct

    for page in (out / f"{table}.md", out / f"{table}.csv"):
        for name, file in paths.items():
            check_distinct({f"--path {name}": file, "--out's": page})


# ----------------------------------------------------------------------------------------------------- fit at2 command
# ``heta-lens fit-at2``: how much each attention head counts, fitted once for a model.


@command("fit-at2")
@with_loading_flags
def fit_head_weights(
    source: Annotated[str, typer.Argument(help=SOURCE)],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the weights are written, a .safetensors file.")],
    model: Annotated[str, typer.Option(help=MODELS)] = "demo",
    path: Annotated[Path | None, typer.Option(help="The file that a suite is read from.")] = None,
    split: Annotated[str | None, typer.Option(help="Which part of a suite or data set.")] = None,
    limit: Annotated[int, typer.Option(min=2, help="How many prompts at most.")] = 300,
    samples: Annotated[int, typer.Option(min=2, help="How many ablations of each, one forward each.")] = 32,
    seed: Annotated[int, typer.Option(help="Which prompts and ablations are drawn.")] = 0,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help=OF_SUITE)] = None,
    *,
    loading: dict[str, Any],
) -> None:
    """Fit the weights of attention heads, for at2.

    The method at2 takes the file: weights=FILE.
    """
    with errors_in_a_line(out):
        from heta_lens._util.python import Lazy
        from heta_lens.data.prompt_sources import prompts
        from heta_lens.evaluation.prompt_evaluation import ask
        from heta_lens.methods.at2 import fit_at2
        from heta_lens.model.loading import load_model

        options, how = suite_options(option or []), loading_options(loading)
        given = prompts(source, path=path, split=split, limit=limit, seed=seed, **options)
        ready = load_model(model, **how)
        explained = Lazy(len(given), lambda number: ask(ready, given[number]))
        fitted = fit_at2(explained, samples=samples, seed=seed, progress=bars())
        fitted.save(out)
        add(weights=out, **fitted.fitted)
        note(out)
        facts = fitted.fitted
        say(
            f"weighted attention and the effect of ablations correlate by {facts['held_out']:.2f} on held-out prompts, "
            f"{facts['correlation']:.2f} on all {facts['prompts']}, and with equal weights by {facts['equal']:.2f}"
        )
