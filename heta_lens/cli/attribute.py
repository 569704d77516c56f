"""``heta-lens attribute``: explain what a model says after a prompt, by one method or several."""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from heta_lens._util.work import progress_in_lines
from heta_lens.cli.app import (
    MODELS,
    Retry,
    add,
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
    methods_of,
    print_failures,
    prompt_of,
    results_folder,
    suite_options,
    with_hub_flags,
    with_loading_flags,
    with_method_flags,
    with_prompt_flags,
    with_worker_flags,
)
from heta_lens.cli.questions import Explained, Question, question_of, read_prompt, with_question_flags
from heta_lens.cli.views import (
    BY,
    GROUPS,
    HIGHEST,
    SPECIAL,
    TOP,
    Files,
    Saved,
    TextTable,
    check_by,
    check_page,
    comparison_document,
    document_of,
    name_files,
    numbered,
    saved_results,
    show_comparison,
    show_result,
    show_written,
    text_table,
    with_file_flags,
    with_view_flags,
    write_comparison,
    write_files,
)

if TYPE_CHECKING:
    from heta_lens import Method
    from heta_lens.methods.memory import MemoryEstimate


@command("attribute")
@with_loading_flags
@with_file_flags
@with_method_flags
@with_question_flags
@with_prompt_flags
def attribute_text(
    model: Annotated[str, typer.Option(help=MODELS)] = "demo",
    by: Annotated[str, typer.Option(metavar="|".join(GROUPS), help=BY)] = "token",
    top: Annotated[int, typer.Option(metavar="N", min=1, help=TOP)] = HIGHEST,
    special: Annotated[bool, typer.Option("--special", help=SPECIAL)] = False,
    *,
    prompt_flags: dict[str, Any],
    question_flags: dict[str, Any],
    method_flags: dict[str, Any],
    files: dict[str, Any],
    loading: dict[str, Any],
) -> None:
    """Explain a model's next token, or its answer.

    The prompt is a text of your own, or a chat.
    """
    written = Files(**files)
    with errors_in_a_line(*written.paths, names=written.names):
        prompt = prompt_of(**prompt_flags)
        written.check()
        check_by(by, not isinstance(prompt, str))
        question = question_of(question_flags)
        methods = _checked(methods_of(method_flags), question, by)
        written.without_views.check_apart(methods, {"--html": written.html, "--figure": written.figure})
        read = read_prompt(model, prompt, question, **loading_options(loading))
        with progress_in_lines():
            results = {label: read.explained(question, method) for label, method in methods.items()}
        if read.written is not None:
            add(generated=read.written)
        _put_out(results, written, by, top, read.written or "", special=special)


def _checked(methods: "dict[str, Method]", question: Question, by: str) -> "dict[str, Method]":
    """The methods, refused if they do not fit the question, or the way it is to be answered."""
    for method in methods.values():
        question.check(method)
    if len(methods) > 1 and by != "token":
        raise ValueError(f"--by {by} lists the groups of one method, and there are {len(methods)}: give one")
    return methods


def _put_out(results: Mapping[str, Explained], files: Files, by: str, top: int, written: str, *, special: bool) -> None:
    """Files first, so that a terminal that cannot show something loses nothing."""
    if len(results) > 1:
        _put_out_several(results, files, top, written, special=special)
        return
    (explained,) = results.values()
    write_files(explained, files, special=special)
    if wanted():
        add(**document_of(explained, files, by))
    show_result(explained, by=by, top=top, special=special, written=written)
    name_files(files)


def _put_out_several(results: Mapping[str, Explained], files: Files, top: int, written: str, *, special: bool) -> None:
    """One page and one figure of all of them, and a file of each, where those are wanted."""
    apart = {label: files.without_views.of(label, results) for label in results}
    for label, explained in results.items():
        write_files(explained, apart[label], special=special)
    write_comparison(results, files.views, special=special)
    if wanted():
        each = [{"method": label, **document_of(result, apart[label])} for label, result in results.items()]
        add(methods=each, correlations=comparison_document(results), page=files.html, figure=files.figure)
    show_written(written)
    show_comparison(results, top, special=special)
    for own in apart.values():
        name_files(own)
    name_files(files.views)


# ------------------------------------------------------------------------------------------- attribute dataset command
# ``heta-lens attribute-dataset``: the scores of many prompts by several methods, kept in a folder.


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
        from heta_lens.evaluation.prompt_evaluation import Entry
        from heta_lens.evaluation.runner import attribute_dataset
        from heta_lens.evaluation.saved_scores import SCORES, WRITERS
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


# ---------------------------------------------------------------------------------------------------- estimate command
# ``heta-lens estimate``: how much memory HETA takes on a model that is not there, and what takes less.


CONFIG = "A folder with a config.json, or a name on the Hugging Face hub. Weights are neither needed nor read."
MEMORY = "How much memory the GPUs have, all together, such as 80GB or 640GiB."
DTYPE = "float32, bfloat16, float16 or float64; by default the model's own."
OPTIONS = "An option of HETA, such as variant=win; may be repeated."
UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@command("estimate")
@with_hub_flags
def estimate(
    config: Annotated[str, typer.Option(help=CONFIG)],
    tokens: Annotated[int, typer.Option(help="How long the prompt is.")],
    gpu_memory: Annotated[str, typer.Option(metavar="SIZE", help=MEMORY)],
    dtype: Annotated[str | None, typer.Option(help=DTYPE)] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help=OPTIONS)] = None,
    *,
    hub: dict[str, Any],
) -> None:
    """Predict the memory and the runs of HETA.

    The model need not be there. Lists what takes less memory too.
    """
    with errors_in_a_line():
        size = bytes_of(gpu_memory)
        from heta_lens import Heta, estimate_memory
        from heta_lens._util.options import check_names, keywords

        options = keywords(option or [])
        check_names(Heta, options)

        with Console(stderr=True, quiet=quiet()).status("running every step on tensors without data …"):
            predicted = estimate_memory(config, tokens, memory=size, dtype=dtype, **hub, **options)
        add(model=predicted.model, tokens=tokens, memory=size, choices=[*map(_choice, _choices(predicted))])
        say(f"{predicted.model}, {tokens:,} tokens; {gpu_memory} is {size / 2**30:.1f} GiB. Predicted:")
        show(_table(predicted))


def bytes_of(size: str) -> int:
    """``"80GB"`` in bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MGT]i?B)", size, re.IGNORECASE)
    units = {name.lower(): factor for name, factor in UNITS.items()}
    if match is None:
        raise ValueError(f"--gpu-memory {size}: give a number and a unit, one of {', '.join(UNITS)}")
    return int(float(match[1]) * units[match[2].lower()])


def _choices(predicted: "MemoryEstimate") -> "list[MemoryEstimate]":
    """What was asked for, and what takes less."""
    return [predicted, *predicted.smaller]


def _choice(each: "MemoryEstimate") -> dict[str, Any]:
    parts = {"weights": each.weights, "cache": each.cache, "steps": each.steps, "batches": each.batches}
    return {
        "options": each.options,
        "bytes": each.needed,
        "fits": each.fits,
        "forwards": each.forwards,
        "hvps": each.hvps,
        **parts,
    }


def _table(predicted: "MemoryEstimate") -> TextTable:
    """A row for each choice of options."""
    choices = _choices(predicted)
    rows = [
        (
            each.name,
            f"{each.needed / 2**30:,.3g}",
            "yes" if each.fits else "no",
            str(each.forwards),
            str(each.hvps),
            each.sum,
        )
        for each in choices
    ]
    columns = ["options", "GiB", "fits", "forwards", "HVPs", "made of"]
    return text_table(columns, rows, right=["GiB", "forwards", "HVPs"])


# ----------------------------------------------------------------------------------------------------- compare command
# ``heta-lens compare``: attributions of one text that were saved, side by side.


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
    from heta_lens._util.files import check_distinct
    from heta_lens.plots.comparison import check_comparable

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


# -------------------------------------------------------------------------------------------------------- demo command
# ``heta-lens demo``: explain the answer of the small model that ships with heta_lens.


PAGE = "Where the page is written."
SEED = "Which story (by default one whose explanation is easy to read)."
EASY = {1: 0, 2: 8}  # seeds, by hops


@command("demo")
def demo(
    seed: Annotated[int | None, typer.Option(help=SEED, show_default=False)] = None,
    hops: Annotated[int, typer.Option(min=1, max=2, help="1 asks for the place, 2 for the room it is in.")] = 1,
    html: Annotated[Path, typer.Option("--html", metavar="FILE", help=PAGE)] = Path("heta_lens_demo.html"),
) -> None:
    """Explain an answer of the small demo model.

    The model ships with heta_lens, and answers a question about a short story.
    """
    with errors_in_a_line(html):
        check_page(html)
        from heta_lens.data import recall

        chosen = EASY[hops] if seed is None else seed
        story = next(recall.stories("test", seed=chosen, hops=2 if hops == 2 else 1, facts=4))
        marked = {position for stretch in story.evidence for position in stretch.tokens}
        (method,) = methods_of({}).values()
        explained: Any = read_prompt("demo", story.text, Question()).explained(Question(), method)
        answers = "answers" if explained.target_text == story.answer else "does not answer"
        evidence = " ".join(story.text[slice(*stretch.characters)] for stretch in story.evidence)
        why = f"Underlined: the evidence for{story.answer}, which the model {answers}: {evidence}"
        files = Files(html=html)
        write_files(explained, files, marked, why)
        add(answer=story.answer, evidence=sorted(marked), **(document_of(explained, files) if wanted() else {}))
        show_result(explained, marked=marked)
        note(why)
        name_files(files)


# -------------------------------------------------------------------------------------------------------- show command
# ``heta-lens show``: attributions that were saved, in the terminal, as a page or as a figure.


SHOWN_FILE = "What --save wrote; or a folder or file of attribute-dataset."
SHOWN_PROMPT = "Of a file of many prompts, only this one."
METHOD = "Of a file of many methods, only this one."


@command("show")
@with_view_flags
def show_saved(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE…", help=SHOWN_FILE)],
    prompt: Annotated[str | None, typer.Option(metavar="NAME", help=SHOWN_PROMPT)] = None,
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
    from heta_lens._util.text import legible

    if heading:
        show(Text(f"\n{legible(saved.name)}", style="reverse"))
    show_result(saved.result, by=by, top=top, special=special)
