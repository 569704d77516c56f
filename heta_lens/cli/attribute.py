"""The subcommands that explain prompts, ``attribute`` and others; and ``show``, ``compare``, ``estimate``, ``demo``."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from heta_lens.cli import flags, views
from heta_lens.cli.app import add, as_json, command, note, quiet, say
from heta_lens.cli.questions import Question, QuestionFlags, read_prompt


@command("attribute")
def attribute_text(
    *,
    model: flags.Model = "demo",
    by: views.By = "token",
    top: views.Top = views.HIGHEST,
    special: views.Special = False,
    prompts: flags.PromptFlags,
    questions: QuestionFlags,
    chosen: flags.MethodFlags,
    files: views.SavedFiles,
    loading: flags.LoadingFlags,
) -> None:
    """Explain a model's next token, or its answer.

    The prompt is a text of your own, or a chat.
    """
    files.check()
    prompt = prompts.read()
    views.check_by(by, chat=not isinstance(prompt, str))
    question, methods = questions.question(), chosen.methods()
    for method in methods.values():
        question.check(method)
    several = len(methods) > 1
    if several and by != "token":
        raise ValueError(f"--by {by} lists the groups of one method, and there are {len(methods)}: give one")
    compared = replace(files, save=None) if several else views.Files()
    own = (replace(files, html=None, figure=None) if several else files).apart(methods)
    read = read_prompt(model, prompt, question, **loading.options())
    results = {label: read.explained(question, method) for label, method in methods.items()}

    # Files are written first: an error of the terminal then loses nothing.
    for label, result in results.items():
        views.write_files(result, own[label], special=special, by=by)
    documents = dict[str, dict[str, Any]]()
    if as_json():  # whose columns import what evaluates
        documents = {label: views.document_of(result, own[label], by) for label, result in results.items()}
    if read.written is not None:
        add(generated=read.written)
        say(f"written: {read.written}\n")
    if several:
        add(methods=[{"method": label, **parts} for label, parts in documents.items()])
        views.show_comparison(results, compared, top, special=special)
    else:
        ((label, result),) = results.items()
        add(**documents.get(label, {}))
        views.show_result(result, by=by, top=top, special=special)


CONTEXT = "A passage of the prompt, which is deleted: which tokens of the answer depend on it?"
ANSWER = "The answer, if the model is not to write it."
MOST_TOKENS = "How many tokens the model may write; without --answer, 20."


@command("attribute-context")
def attribute_context(
    *,
    model: flags.Model = "demo",
    prompts: flags.PromptFlags,
    context: Annotated[str, Option(metavar="TEXT", help=CONTEXT)],
    answer: Annotated[str | None, Option(metavar="TEXT", help=ANSWER)] = None,
    generate: Annotated[int | None, Option(metavar="N", min=1, help=MOST_TOKENS)] = None,
    method: Annotated[
        str, Option("--method", "-m", metavar="METHOD", help="What explains them, with options.")
    ] = "fast",
    html: flags.Page = None,
    loading: flags.LoadingFlags,
) -> None:
    """Tell which tokens of an answer need a passage.

    Each of them is explained by the prompt: why it, rather than the token without the context?
    """
    files, (_, chosen) = views.Files(html), flags.MethodFlags([method]).one()
    files.check()
    if answer is not None and generate is not None:
        raise ValueError("--answer gives the answer, and --generate lets the model write it: give one")
    prompt = prompts.read()
    from heta_lens._util.work import in_lines
    from heta_lens.evaluation.saved_scores import row_of
    from heta_lens.model.loading import load_model
    from heta_lens.reliance import COLUMNS, context_reliance

    in_lines.set(True)
    loaded = load_model(model, **loading.options())
    given = generate or 20 if answer is None else answer
    found = context_reliance(loaded, prompt, context, given, method=chosen)
    views.write_view(found.plot, files)
    add(
        answer=found.answer,
        context=found.context,
        threshold=found.threshold,
        tokens=found.to_frame().to_dict("records"),
    )
    add(steps=[*map(row_of, found.steps)] if as_json() else [], page=html)
    if answer is None:
        say(f"written: {found.answer}")
    say(found.title)
    views.show_table(COLUMNS, found.rows, right=("nats",))
    say(found.rule)


METHODS = "With its options, as in 'lime samples=200', or a preset; may be repeated, or with commas (heta)."
FIELD = "Which column is which field, as in text=question; may be repeated."


@command("attribute-dataset", resumes=True)
def attribute_prompts(
    *,
    source: flags.Source,
    out: Annotated[Path, Option(metavar="DIR", help="Where scores are kept; an interrupted run resumes.")],
    model: flags.Model = "demo",
    methods: Annotated[list[str] | None, Option("--methods", "-m", metavar="METHOD", help=METHODS)] = None,
    field: Annotated[list[str] | None, Option("--field", metavar="FIELD=COLUMN", help=FIELD)] = None,
    suite: flags.SuiteFlags,
    export: flags.Export = None,
    retry_failed: flags.Retry = False,
    loading: flags.LoadingFlags,
    workers: flags.WorkerFlags,
) -> None:
    """Explain many prompts, and keep all scores.

    The prompts are those of a file, a data set or a suite.
    """
    out = out.expanduser()
    from heta_lens._util.files import RUN
    from heta_lens._util.options import assignments
    from heta_lens.evaluation.runner import attribute_dataset
    from heta_lens.model.loading import load_model

    load, distribution = loading.options(), workers.options()
    scores = attribute_dataset(
        partial(load_model, model, **load),
        source,
        flags.listed(methods, ["heta"]),
        out=out,
        fields=assignments(field or []),
        path=suite.path,
        split=suite.split,
        limit=suite.limit or (100 if source == "recall" else None),
        seed=suite.seed,
        facts={"source": source, "model": model, **flags.facts_of(load)},
        retry_failed=retry_failed,
        progress=not quiet(),
        **distribution,
        **suite.options(),
    )
    if shard := distribution["shard"]:
        out /= shard.folder
    add(folder=out, scores=out / RUN, attributions=len(scores), prompts=len(scores.prompts))
    say(f"{len(scores)} attributions of {len(scores.prompts)} prompts: {out / RUN}")
    flags.write_export(out, export)
    views.print_failures(out, "no prompt was explained")


CONFIG = "A folder with a config.json, or a name on the Hugging Face hub. Weights are neither needed nor read."
MEMORY = "How much memory the GPUs have, all together, in GB: tells what fits."


@command("estimate")
def estimate(
    *,
    config: Annotated[str, Option(help=CONFIG)],
    tokens: Annotated[int, Option(help="How long the prompt is.")],
    gpu_memory: Annotated[float | None, Option(metavar="GB", help=MEMORY)] = None,
    chosen: flags.MethodFlags,
    dtype: Annotated[str | None, Option(help="Of the weights; by default the model's own.")] = None,
    revision: flags.Revision = None,
    trust_remote_code: flags.TrustRemoteCode = False,
) -> None:
    """Predict the memory of a method.

    The model need not be there. Lists what takes less memory too.
    """
    size, (_, method) = None if gpu_memory is None else int(gpu_memory * 10**9), chosen.one()
    from heta_lens import estimate_memory

    how = {"revision": revision, "trust_remote_code": trust_remote_code}
    predicted = estimate_memory(config, tokens, memory=size, method=method, dtype=dtype, **how)
    choices = [predicted, *predicted.smaller]
    documents = [
        {"method": each.method, "options": each.options, "bytes": each.needed, "fits": each.fits}
        | {"weights": each.weights, "cache": each.cache}
        | {"steps": {name: step._asdict() for name, step in each.steps.items()}}
        for each in choices
    ]
    add(model=predicted.model, tokens=tokens, memory=size, choices=documents)
    say(repr(predicted))


COMPARED = "What --save wrote, several; or a folder or file of attribute-dataset."
SHOWN = "What --save wrote; or a folder or file of attribute-dataset."
METHOD = "Of a file of many methods, only this one."

OnePrompt = Annotated[str | None, Option(metavar="NAME", help="Of a file of many prompts, only this one.")]


@command("compare")
def compare_saved(
    *,
    paths: Annotated[list[Path], Argument(metavar="FILE…", help=COMPARED)],
    prompt: OnePrompt = None,
    top: views.Top = views.HIGHEST,
    special: views.Special = False,
    files: views.Files,
) -> None:
    """Compare saved attributions of one text.

    Lists the highest tokens of each, and how their ranks correlate.
    """
    files.check()
    saved = views.read_saved(paths, prompt)
    prompts = dict.fromkeys(of.prompt for of in saved if of.prompt)
    if len(prompts) > 1:
        raise ValueError(f"these are of the prompts {', '.join(prompts)}: choose one with --prompt")
    from heta_lens.plots.comparison import check_comparable, names_of

    labels = names_of([of.result.summed for of in saved])
    results = dict(zip(labels, (of.result for of in saved), strict=True))
    check_comparable(results)
    documents = [{"file": of.path, **views.document_of(of.result, views.Files())} for of in saved]
    add(compared=[{"label": label, **parts} for label, parts in zip(labels, documents, strict=True)])
    views.show_comparison(results, files, top, special=special)


DEMO_PAGE = Path("heta_lens_demo.html")
DEMO_ANSWER = " box"


@command("demo")
def demo(
    *,
    html: Annotated[Path, Option("--html", metavar="FILE", help="Where the page is written.")] = DEMO_PAGE,
) -> None:
    """Explain an answer of the small demo model.

    The model ships with heta_lens, and answers a question about a short story.
    """
    from heta_lens.model.loading import DEMO_STORY

    files = views.Files(html=html)
    files.check()
    _, method = flags.MethodFlags().one()
    explained: Any = read_prompt("demo", DEMO_STORY, Question()).explained(Question(), method)
    evidence = next(sentence for sentence in explained.by_sentence() if DEMO_ANSWER in sentence.text)
    why = f"The model answers{DEMO_ANSWER}; the evidence: {evidence.text.strip()}"
    views.write_files(explained, files, marked={*evidence.positions}, why=why)
    add(answer=DEMO_ANSWER, evidence=[*evidence.positions], **views.document_of(explained, files))
    views.show_result(explained, marked={*evidence.positions})
    note(why)


@command("show")
def show_saved(
    *,
    paths: Annotated[list[Path], Argument(metavar="FILE…", help=SHOWN)],
    prompt: OnePrompt = None,
    method: Annotated[str | None, Option("--method", "-m", metavar="NAME", help=METHOD)] = None,
    by: views.By = "token",
    top: views.Top = views.HIGHEST,
    special: views.Special = False,
    files: views.Files,
) -> None:
    """Show saved attributions, without a model.

    attribute --save or attribute-dataset wrote them.
    """
    files.check()
    saved = views.read_saved(paths, prompt, method)
    if not saved:
        raise ValueError(
            f"{' '.join(map(str, paths))} holds no scores of this prompt and method, which may have failed"
        )
    for of in saved:
        views.check_by(by, chat=of.result.summed.messages is not None)
    apart = files.apart([of.name for of in saved])
    for of in saved:
        views.write_files(of.result, apart[of.name], special=special, by=by)
    if as_json():
        parts = [views.document_of(of.result, apart[of.name], by) for of in saved]
        add(shown=[{"file": of.path, "name": of.name, **own} for of, own in zip(saved, parts, strict=True)])
        return
    for of in saved:
        if len(saved) > 1:
            say(f"\n{of.name}", style="reverse")
        views.show_result(of.result, by=by, top=top, special=special)
