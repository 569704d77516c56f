"""The subcommands ``evaluate``, ``report``, ``merge``, ``reproduce`` and ``fit-at2``."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.text import Text
from typer import Argument, Option

from heta_lens.cli import flags
from heta_lens.cli.app import add, as_json, bars, command, note, quiet, say, show
from heta_lens.cli.views import check_writable, print_failures, show_table

if TYPE_CHECKING:
    from heta_lens.evaluation.report import document

SUITES = (
    *("recall", "curated", "longra", "tellmewhy", "wikibio", "jsonl", "key_value", "in_context_qa", "needle"),
    *("two_hop", "variable_tracking", "ioi", "agreement", "squad", "known_facts"),
)
METHODS = ["heta", "leave_one_out", "input_x_gradient", "attention_rollout", "random"]
ENTRIES = (
    f"With its options, as in 'lime samples=200', or a preset; may be repeated, or with commas ({', '.join(METHODS)})."
)
SCORES = "Also evaluate the scores in a file: ours, inseq's, or tokens and scores; may be repeated."
BUDGET = "At most so many forwards for every method and prompt; a backward counts as two."
METRICS = (
    "See heta-lens metrics; may be repeated, or with commas (all that run a method only once and that some prompt "
    "has the evidence for, except soft_ns and soft_ns_raw)."
)


Intervals = Annotated[bool, Option("--intervals", help="Print intervals too, in several tables.")]


@command("evaluate", resumes=True)
def evaluate_suite(
    *,
    suite: Annotated[str, Argument(help=f"One of {', '.join(SUITES)}.")],
    out: Annotated[Path, Option(metavar="DIR", help="Where results are kept; an interrupted run resumes.")],
    model: flags.Model = "demo",
    methods: Annotated[list[str] | None, Option("--methods", "-m", metavar="METHOD", help=ENTRIES)] = None,
    metrics: Annotated[list[str] | None, Option("--metrics", metavar="NAME", help=METRICS)] = None,
    scores: Annotated[list[Path] | None, Option("--scores", metavar="FILE", help=SCORES)] = None,
    budget: Annotated[float | None, Option(metavar="FORWARDS", help=BUDGET)] = None,
    choice: flags.SuiteFlags,
    export: flags.Export = None,
    intervals: Intervals = False,
    retry_failed: flags.Retry = False,
    loading: flags.LoadingFlags,
    workers: flags.WorkerFlags,
) -> None:
    """Evaluate methods on the prompts of a suite.

    Writes a report of the results too.
    """
    from heta_lens._util.python import check_extra
    from heta_lens.data import suites
    from heta_lens.evaluation import Entry, evaluate
    from heta_lens.evaluation.runner import drawn
    from heta_lens.metrics.registry import default_metrics
    from heta_lens.model.loading import load_model

    check_extra("matplotlib", "the report of an evaluation")
    out = out.expanduser()
    entries = [replace(Entry.read(entry), budget=budget) for entry in flags.listed(methods, METHODS)]
    labels = {entry.label for entry in entries}
    external = []
    if scores:
        from heta_lens.evaluation.external_scores import external_methods

        external = [method for file in scores for method in external_methods(file)]
        external = [replace(one, label=f"{one.label} (scores)") if one.label in labels else one for one in external]
    options, load, distribution = choice.options(), loading.options(), workers.options()
    split, limit = choice.split, choice.limit
    if suite == "recall":
        limit, split = limit or 100, split or "test"
    draw = partial(suites.suite, suite, choice.path, split=split, limit=limit, seed=choice.seed, **options)
    prompts, explained = drawn(suite, partial(load_model, model, **load), distribution["workers"], draw)
    names = flags.listed(metrics, default_metrics(prompts))
    facts = {"suite": suite, "suite_options": options, "model": model, "path": choice.path and str(choice.path)}
    facts |= {"split": split, "seed": choice.seed, "limit": limit, **flags.given(budget=budget), **flags.facts_of(load)}
    kept = {"facts": facts, "retry_failed": retry_failed, "progress": not quiet()}
    evaluate(explained, prompts, [*entries, *external], names, out, **kept, **distribution)
    if shard := distribution["shard"]:
        out /= shard.folder
    _write_report(out, intervals=intervals)
    flags.write_export(out, export)
    print_failures(out)


@command("report")
def report(
    *,
    folder: Annotated[Path, Argument(metavar="DIR", help="What evaluate was given as --out.")],
    intervals: Intervals = False,
) -> None:
    """Write the report of an evaluation so far.

    It has tables, figures and a page.
    """
    _write_report(folder.expanduser(), intervals=intervals)


def _write_report(folder: Path, *, intervals: bool) -> None:
    from heta_lens.evaluation.report.folder_report import overview, result_rows, write_summary
    from heta_lens.evaluation.report.results import summary

    results = summary(folder)
    written = write_summary(results, folder)
    costs = results.costs.reindex([method for method in results.methods if method in results.costs.index])
    rows = [{"method": str(method), **row} for method, row in costs.to_dict("index").items()]
    add(folder=folder, files=written, results=[*result_rows(results)], costs=rows)
    _show_blocks(overview(results, intervals=intervals), written, folder)


def _show_blocks(blocks: "Iterable[document.Block]", written: list[Path], folder: Path) -> None:
    """Print the tables and the notes of a report, and the names of files in its folder."""
    from heta_lens.evaluation.report import document

    for block in blocks:
        if isinstance(block, document.Table):
            show_table(block.columns, block.rows, right=block.columns[block.texts :], bold=block.bold)
            show(Text())
        elif isinstance(block, document.Notes):
            show(Text("\n".join(block.lines), style="dim"))
    for path in written:
        if path.parent == folder:
            note(path)


SHARDS = "The folders of its shards; by default those inside DIR."
PARTIAL = "Merge what there is, although shards are missing or not finished."


@command("merge")
def merge_shards(
    *,
    folder: Annotated[Path, Argument(metavar="DIR", help="The --out of all shards.")],
    shards: Annotated[list[Path] | None, Argument(metavar="SHARD", help=SHARDS)] = None,
    partial: Annotated[bool, Option("--partial", help=PARTIAL)] = False,
) -> None:
    """Merge the shards of an evaluation.

    evaluate --shard or attribute-dataset --shard wrote them; they stay.
    """
    from heta_lens.evaluation import merge

    count = merge(folder.expanduser(), [shard.expanduser() for shard in shards or ()], partial=partial)
    add(folder=folder, merged=count)
    say(f"{count} results of methods on prompts: {folder}")


TABLES = (
    *("main", "qwen", "dsa", "components", "beta_gamma", "robustness", "hessian", "long_context", "decoding"),
    *("compute_quality", "causal_gate", "causal_downstream", "runtime_gptj", "runtime_phi", "runtime_qwen"),
    *("runtime_llama", "extended_faithfulness"),
)
OF_HETA = "An option of HETA in all its rows, like balance=sum; may be repeated."
REPRODUCED = Path("reproduced")


@command("reproduce", resumes=True)
def reproduce_table(
    *,
    table: Annotated[str, Argument(help=f"One of {', '.join(TABLES)}.")],
    quick: Annotated[bool, Option("--quick", help="The demo model, few prompts: minutes.")] = False,
    model: Annotated[str | None, Option(help="A name on the Hugging Face hub, or a folder.")] = None,
    out: Annotated[Path, Option(metavar="DIR", help="Where it is written; an interrupted run resumes.")] = REPRODUCED,
    limit: Annotated[int | None, Option(min=1, help="Prompts of each data set (100; quick: 3).")] = None,
    path: Annotated[list[str] | None, Option(metavar="NAME=FILE", help="A data set's file.")] = None,
    option: Annotated[list[str] | None, Option("--option", "-o", metavar="NAME=VALUE", help=OF_HETA)] = None,
    seed: Annotated[int, Option(help="Which prompts are drawn.")] = 0,
    retry_failed: flags.Retry = False,
    loading: flags.LoadingFlags,
) -> None:
    """Reproduce a table of the paper.

    It has the same rows and columns, and the printed figures beside ours.
    """
    from heta_lens._util.options import assignments, keywords
    from heta_lens.evaluation.reproduce import reproduce

    paths, options = assignments(path or []), keywords(option or [])
    prompts: Any = {"paths": paths, "limit": limit, "seed": seed, "options": options}
    run: Any = {"load_options": loading.options(), "retry_failed": retry_failed, "progress": not quiet()}
    written = reproduce(table, quick=quick, model=model, out=out, **prompts, **run)
    add(table=table, files=written)
    if not as_json():
        _show_measured(next(file for file in written if file.suffix == ".csv"))
        note("With the paper's figures and 95 % intervals:")
    for file in written:
        note(file)


def _show_measured(page: Path) -> None:
    """Print the measured figures of a table, in the rows and columns of the paper."""
    import pandas as pd

    lines = pd.read_csv(page).dropna(subset="ours")
    columns = [*lines["column"].unique()]
    wide = lines.assign(ours=lines["ours"].map("{:.3g}".format)).pivot(
        index=["row", "block"], columns="column", values="ours"
    )
    rows = lines[["row", "block"]].drop_duplicates().merge(wide.fillna(""), on=["row", "block"])
    show_table(["row", "measured on", *columns], rows[["row", "block", *columns]].to_numpy().tolist(), right=columns)


@command("fit-at2")
def fit_head_weights(
    *,
    source: flags.Source,
    out: Annotated[Path, Option(metavar="FILE", help="Where the weights are written, a .safetensors file.")],
    model: flags.Model = "demo",
    suite: flags.SuiteFlags,
    samples: Annotated[int, Option(min=2, help="How many ablations of each, one forward each.")] = 32,
    loading: flags.LoadingFlags,
) -> None:
    """Fit the weights of attention heads, for at2.

    The method at2 takes the file: weights=FILE.
    """
    check_writable([out], tensors=True)
    from heta_lens._util.python import Lazy
    from heta_lens.data.suites import prompts
    from heta_lens.evaluation.prompt_evaluation import ask
    from heta_lens.methods.at2 import fit_at2
    from heta_lens.model.loading import load_model

    options, load = suite.options(), loading.options()
    given = prompts(source, path=suite.path, split=suite.split, limit=suite.limit or 300, seed=suite.seed, **options)
    ready = load_model(model, **load)
    predictions = Lazy(len(given), lambda number: ask(ready, given[number]))
    fitted = fit_at2(predictions, samples=samples, seed=suite.seed, progress=bars())
    fitted.save(out)
    facts = fitted.fitted
    add(weights=out, **facts)
    note(out)
    say(
        f"weighted attention and the effect of ablations correlate by {facts['held_out']:.2f} on held-out prompts, "
        f"{facts['correlation']:.2f} on all {facts['prompts']}, and with equal weights by {facts['equal']:.2f}"
    )
