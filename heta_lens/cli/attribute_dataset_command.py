"""``heta-lens attribute-dataset``: the scores of many prompts by several methods, kept in a folder."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from heta_lens.cli.application import MODELS, Retry, command
from heta_lens.cli.comma_lists import listed
from heta_lens.cli.errors_and_messages import errors_in_a_line, note, resumable, say
from heta_lens.cli.failed_prompts import print_failures
from heta_lens.cli.json_output import add
from heta_lens.cli.loading_flags import facts_of, loading_options, with_loading_flags
from heta_lens.cli.quiet_flag import quiet
from heta_lens.cli.suite_arguments import OF_SUITE, SOURCE, suite_options
from heta_lens.cli.worker_flags import distribution_options, results_folder, with_worker_flags

METHODS = "With its options, as in 'lime samples=200', or a preset; may be repeated, or with commas (heta)."
FIELD = "Which column is which field, as in text=question; may be repeated."
SAVE = "Also write all scores to a .parquet, .jsonl or .csv file; may be repeated."


@command("attribute-dataset")
@with_worker_flags
@with_loading_flags
def attribute_prompts(
    source: Annotated[str, typer.Argument(help=SOURCE)],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where scores are kept; an interrupted run resumes.")],
    model: Annotated[str, typer.Option(help=MODELS)] = "demo",
    methods: Annotated[list[str] | None, typer.Option("--methods", "-m", metavar="METHOD", help=METHODS)] = None,
    field: Annotated[list[str] | None, typer.Option("--field", metavar="FIELD=COLUMN", help=FIELD)] = None,
    path: Annotated[Path | None, typer.Option(help="The file that a suite is read from.")] = None,
    split: Annotated[str | None, typer.Option(help="Which part of a suite (test) or data set (train).")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="How many prompts (recall, which has no end: 100).")] = None,
    seed: Annotated[int, typer.Option(help="Which prompts of a suite are drawn.")] = 0,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help=OF_SUITE)] = None,
    save: Annotated[list[Path] | None, typer.Option("--save", metavar="FILE", help=SAVE)] = None,
    retry_failed: Retry = False,
    *,
    loading: dict[str, Any],
    distribution: dict[str, Any],
) -> None:
    """Explain many prompts, and keep all scores.

    The prompts are those of a file, a data set or a suite.
    """
    out = out.expanduser()
    with resumable(), errors_in_a_line(*(save or []), names=()):
        from heta_lens._util.options import check_choice
        from heta_lens.evaluation.dataset_attribution import attribute_dataset
        from heta_lens.evaluation.kept_scores import SCORES, WRITERS
        from heta_lens.evaluation.method_with_options import Entry
        from heta_lens.model.loading import load_model

        for file in save or []:
            check_choice(f"the suffix of --save {file}", file.suffix, [*WRITERS])
        names = listed(methods, ["heta"])
        _ = [Entry.read(name) for name in names]  # refuses a wrong one before a model is loaded
        options, how = suite_options(option or []), loading_options(loading)
        limit = limit or (100 if source == "recall" else None)
        which = {"fields": _fields(field or []), "path": path, "split": split, "limit": limit, "seed": seed, **options}
        facts = {"source": source, "model": model, **facts_of(how)}
        where = distribution_options(distribution)
        kept = {"out": out, "facts": facts, "retry_failed": retry_failed, "progress": not quiet(), **where}
        out = results_folder(out, where["shard"])
        scores = attribute_dataset(partial(load_model, model, **how), source, names, **kept, **which)
        add(folder=out, scores=out / SCORES, attributions=len(scores), prompts=len(scores.prompts), saved=save or [])
        say(f"{len(scores)} attributions of {len(scores.prompts)} prompts: {out / SCORES}")
        for file in save or []:
            scores.save(file)
            note(file)
    print_failures(out, "no prompt was explained")


def _fields(given: list[str]) -> dict[str, str]:
    """``["text=question"]`` as a mapping."""
    for pair in given:
        if "=" not in pair:
            raise ValueError(f"--field {pair} names no column: write FIELD=COLUMN, as in text=question")
    return dict(pair.split("=", 1) for pair in given)
