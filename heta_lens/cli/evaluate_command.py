"""``heta-lens evaluate`` and ``heta-lens report``: methods side by side on a suite."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heta_lens.cli.application import MODELS, Retry, command
from heta_lens.cli.comma_lists import listed
from heta_lens.cli.errors_and_messages import errors_in_a_line, note, resumable
from heta_lens.cli.failed_prompts import print_failures
from heta_lens.cli.json_output import add
from heta_lens.cli.loading_flags import facts_of, loading_options, with_loading_flags
from heta_lens.cli.quiet_flag import quiet
from heta_lens.cli.report_tables import show_standings, show_summary
from heta_lens.cli.suite_arguments import OF_SUITE, suite_options
from heta_lens.cli.worker_flags import distribution_options, results_folder, with_worker_flags

if TYPE_CHECKING:
    from heta_lens.evaluation.report.summary_tables import Summary

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
        from heta_lens._util.extras import check_extra
        from heta_lens.data import suites
        from heta_lens.evaluation import Entry, evaluate
        from heta_lens.evaluation.given_scores import given_methods
        from heta_lens.evaluation.prompt_drawing import drawn
        from heta_lens.metrics.metric_registry import default_metrics
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
    from heta_lens._util.file_writing import check_distinct
    from heta_lens.evaluation.report.folder_report import FILES
    from heta_lens.evaluation.run_records import RECORDS, RUN

    check_distinct({"--path": path, **{f"{name} of --out": out / name for name in (RUN, RECORDS, *FILES)}})


def _write_report(folder: Path, against: str | None = None) -> None:
    from heta_lens.evaluation.report.folder_report import result_rows, write_summary
    from heta_lens.evaluation.report.summary_tables import summary

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
