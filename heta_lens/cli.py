"""The command ``heta-lens``: explain a prompt in the terminal, and on a page."""

import os
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from safetensors import SafetensorError
from typer.core import TyperCommand

from heta_lens import models, plots
from heta_lens.attribution import Attribution
from heta_lens.data import recall, suites
from heta_lens.diagnostics import quietly
from heta_lens.evaluation import Entry, evaluate, write_report
from heta_lens.evaluation.records import RECORDS, RUN, read_records
from heta_lens.evaluation.report import FILES as REPORT
from heta_lens.evaluation.reproduce import TABLES, reproduce
from heta_lens.files import check_distinct
from heta_lens.heta import Heta
from heta_lens.lens import names_filter
from heta_lens.methods import METHODS, attribute
from heta_lens.metrics import METRICS
from heta_lens.options import check_names, keywords
from heta_lens.text import legible


class Once(TyperCommand):
    """A command that takes an option of one value once, instead of its last value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args([*args])
        for name, count in Counter(one.opts[0] for one in given if not getattr(one, "multiple", False)).items():
            if count > 1:
                ctx.fail(f"{name} was given {count} times, and takes one value")
        return super().parse_args(ctx, args)


app = typer.Typer(
    help="Which tokens made the model say that?", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)
command = partial(app.command, cls=Once)
MODELS = "demo (knows the words of its stories), a name of the Hugging Face hub, or a folder."
OPTIONS = "An option of the method, like probes=20; may be given again. HETA's balance is sum here by default."
METHOD = "How to explain it: see heta-lens methods."
EVALUATED = ["heta balance=sum", "leave_one_out", "input_x_gradient", "attention_rollout", "random"]
ENTRIES = f"With its options, as in 'lime samples=200'; may be given again, or with commas ({', '.join(EVALUATED)})."
CHEAP = [name for name, metric in METRICS.items() if not metric.again]
JUDGED = "By what: see heta-lens metrics; may be given again, or with commas (all that ask a method but once)."
OF_HETA = "An option of HETA in all its rows, like balance=sum; may be given again."
REPRODUCED = Path("reproduced")
OF_SUITE = "An option of the suite, like hops=2; may be given again."
INSTEAD = {
    "name": "the suite is the first argument",
    **{name: f"use --{name}" for name in ("path", "split", "limit", "seed")},
    "says": "it is what the model of --model answers",
}
RETRY = "Do again what raised an error or was not finite (else it stays failed)."
Retry = Annotated[bool, typer.Option("--retry-failed", help=RETRY)]
Page = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a page that needs nothing else.")]


@command()
def demo(
    seed: Annotated[int, typer.Option(help="Which story.")] = 0,
    hops: Annotated[int, typer.Option(min=1, max=2, help="1 asks for the place, 2 for the room it is in.")] = 1,
    html: Page = Path("heta_lens_demo.html"),
) -> None:
    """Explain the answer of the small model that ships with heta_lens, to a question about a short story."""
    story = next(recall.stories("test", seed=seed, hops=2 if hops == 2 else 1, facts=4))
    marked = {position for stretch in story.evidence for position in stretch.tokens}
    with _taught(html):
        explained = _explained("demo", story.text, None, {})
        right = "as the model says" if explained.target_text == story.answer else "which the model gets wrong"
        told = " ".join(story.text[slice(*stretch.characters)] for stretch in story.evidence)
        note = f"Underlined is what tells the answer,{story.answer}, {right}: {told}"
        _show(explained, html, None, marked, note)


@command("attribute")
def attribute_text(
    text: Annotated[str, typer.Argument(help="The prompt, up to where the model goes on; - reads it from the input.")],
    target: Annotated[str | None, typer.Option(help="The token to explain (default: the most likely one).")] = None,
    model: Annotated[str, typer.Option(help=MODELS)] = "demo",
    method: Annotated[str, typer.Option(help=METHOD)] = "heta",
    option: Annotated[list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help=OPTIONS)] = None,
    html: Page = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Keep the attribution (safetensors).")] = None,
) -> None:
    """Explain why a model goes on as it does after a text of your own."""
    with _taught(html, save):
        options = _options(option or [])
        read = sys.stdin.read().removesuffix("\n") if text == "-" else text
        _show(_explained(model, read, target, options, method), html, save)


@command("evaluate")
def evaluate_suite(
    suite: Annotated[str, typer.Argument(help=f"One of {', '.join(suites.SUITES)}.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where figures are kept; begun there, it goes on.")],
    model: Annotated[str, typer.Option(help=MODELS)] = "demo",
    methods: Annotated[list[str] | None, typer.Option("--methods", "-m", metavar="METHOD", help=ENTRIES)] = None,
    metrics: Annotated[list[str] | None, typer.Option("--metrics", metavar="NAME", help=JUDGED)] = None,
    path: Annotated[Path | None, typer.Option(help="The file that the suite is read from.")] = None,
    split: Annotated[str | None, typer.Option(help="Which part of it, where it has parts (test).")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="How many prompts (recall, which has no end: 100).")] = None,
    seed: Annotated[int, typer.Option(help="Which prompts are drawn.")] = 0,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help=OF_SUITE)] = None,
    retry_failed: Retry = False,
) -> None:
    """Judge methods on the prompts of a suite, and report what is found."""
    with _resumable(), _taught():
        check_distinct({"--path": path, **{f"{name} of --out": out / name for name in (RUN, RECORDS, *REPORT)}})
        entries = [Entry.read(one) for one in _listed(methods, EVALUATED)]
        names, options = _listed(metrics, CHEAP), _suite_options(option or [])
        if suite == "recall":
            limit, split = limit or 100, split or "test"
        told = {"suite": suite, "suite_options": options, "model": model, "path": path and str(path), "split": split}
        told |= {"seed": seed, "limit": limit}
        loaded = models.load_model(model)
        if suite == "longra":  # which is of what a model answers with the distraction and without
            options = {"says": partial(models.next_word, loaded), **options}
        instances = suites.suite(suite, path, split=split, limit=limit, seed=seed, **options)
        evaluate(loaded, instances, entries, names, out, told=told, retry_failed=retry_failed)
        _report(out)
    _tell_failures(out)


@command("report")
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What evaluate was given as --out.")],
    against: Annotated[str | None, typer.Option(metavar="METRIC", help="What costs are drawn against.")] = None,
) -> None:
    """Write tables, figures and a page of what an evaluation has found so far."""
    with _taught():
        _report(folder, against)


@command("reproduce")
def reproduce_table(
    table: Annotated[str, typer.Argument(help=f"One of {', '.join(TABLES)}.")],
    quick: Annotated[bool, typer.Option("--quick", help="The demo model, few prompts: minutes.")] = False,
    model: Annotated[str | None, typer.Option(help="A name of the Hugging Face hub, or a folder.")] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where it is written; begun there, it goes on.")
    ] = REPRODUCED,
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts of each data set (100; quick: 3).")] = None,
    path: Annotated[list[str] | None, typer.Option(metavar="NAME=FILE", help="A data set's file.")] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help=OF_HETA)] = None,
    seed: Annotated[int, typer.Option(help="Which prompts are drawn.")] = 0,
    retry_failed: Retry = False,
) -> None:
    """Make a table of the paper again: the same rows and columns, its figures beside ours."""
    with _resumable(), _taught():
        paths, options = {name: str(file) for name, file in keywords(path or []).items()}, keywords(option or [])
        files = {f"--path {name}": file for name, file in paths.items()}
        for page in (out / f"{table}.md", out / f"{table}.csv"):
            for name, file in files.items():
                check_distinct({name: file, "--out's": page})
        how: dict[str, Any] = {"quick": quick, "model": model, "out": out, "limit": limit, "seed": seed}
        how["retry_failed"] = retry_failed
        for written in reproduce(table, **how, paths=paths, options=options):
            _say(written)


def _report(folder: Path, against: str | None = None) -> None:
    for path in write_report(folder, against):
        if path.parent == folder:
            _say(path)


def _tell_failures(folder: Path) -> None:
    """Nobody should have to open a report to see that there is nothing in it."""
    records = read_records(folder)
    failed = Counter(record.failed for record in records if record.failed)
    empty = not any(value is not None for record in records for value in record.values.values())
    for reason, count in failed.most_common(1):
        _say(f"{failed.total()} of {len(records)} failed, most often ({count}) by: {reason}", err=True)
    if empty:
        why = "" if failed else f": {next((why for one in records for why in one.reasons.values()), '')}"
        _say(f"no metric has a value of any prompt{why}", err=True)
        raise typer.Exit(1)


def _listed(given: list[str] | None, default: list[str]) -> list[str]:
    """What was asked for, one by one or with commas between (those in brackets belong to an option)."""
    return [part.strip() for one in given or default for part in _parted(one) if part.strip()]


def _parted(listed: str) -> list[str]:
    parts, depth = [""], 0
    for letter in listed:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


@command("metrics")
def list_metrics() -> None:
    """List what methods are judged by: what it is, which way is better, what it costs beside the explanation."""
    table = Table(Column("metric", no_wrap=True), "what it is", "better", "cost", box=None, padding=(0, 2, 0, 0))
    for name, metric in METRICS.items():
        cost = f"{metric.again} × the method" if metric.again else metric.cost
        told = f"{metric.title}: {metric.variant}. {metric.source}."
        table.add_row(*(Text(legible(cell)) for cell in (name, told, metric.better, cost)))
    Console().print(table)


@command("methods")
def list_methods() -> None:
    """List the ways to explain a prediction: what each does, what it costs, what its scores mean."""
    table = Table(Column("method", no_wrap=True), "what it does", "cost", "scores", box=None, padding=(0, 2, 0, 0))
    for name, method in METHODS.items():
        what, adapted = _summary(method), getattr(method, "adapted", "")
        told = f"{what} Adapted: {adapted}." if adapted else what
        cells = name, told, method.cost, "±" if method.signed else "≥ 0"
        table.add_row(*(Text(legible(cell)) for cell in cells))
    console = Console()
    console.print(Text("F: forwards, B: backwards, of N tokens and L layers. ±: above 0 speaks for the target.\n"))
    console.print(table)


def _summary(method: type) -> str:
    """The first line of the file that a method is in."""
    return (sys.modules[method.__module__].__doc__ or "").partition("\n")[0]


def _explained(model: str, text: str, target: str | None, options: dict[str, Any], method: str = "heta") -> Attribution:
    loaded = models.load_model(model)
    ids = models.encode(loaded, text)
    with torch.no_grad():
        _, cache = loaded.run_with_cache(ids, names_filter=names_filter)
    chosen = _balanced(options) if method == "heta" else options
    with warnings.catch_warnings():
        if chosen.get("balance") != "none":  # balancing is what the warning advises
            warnings.filterwarnings("ignore", ".*makes up.*of this score", UserWarning)
        return attribute(cache, target, tokens=ids, method=method, **chosen)


def _balanced(options: dict[str, Any]) -> dict[str, Any]:
    """HETA's options with this command's default, left out where it has no effect: a warning is for what was given."""
    check_names(Heta, options)
    method = quietly(partial(Heta, **options))  # `attribute` will warn of the user's own options
    return options if "balance" in method.without_effect else {"balance": "sum", **options}


def _show(
    explained: Attribution, html: Path | None, save: Path | None, marked: Collection[int] = (), note: str = ""
) -> None:
    """Files first, so that a terminal that cannot show something loses nothing."""
    if html is not None:
        plots.page(explained, marked=marked, note=note).save(html)
    if save is not None:
        explained.save(save)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    console = Console()
    console.print(plots.terminal(explained, marked=marked, coloured=console.color_system is not None))
    written = {"The same as a page": html, "The attribution": save}
    for line in [note, *(f"{what}: {path}" for what, path in written.items() if path is not None)]:
        if line:
            _say(line)


def _options(given: list[str]) -> dict[str, Any]:
    """``["probes=20", "support=row"]`` as keywords."""
    options = keywords(given)
    for name in options:
        if name in ("cache", "target", "tokens", "method"):
            raise ValueError(f"--option {name}=… is no option of a method: the text, --target and --method say it")
    return options


def _suite_options(given: list[str]) -> dict[str, Any]:
    """``["hops=2"]`` as keywords; what the command has an option of its own for is refused."""
    options = keywords(given)
    for name, value in options.items():
        if name in INSTEAD:
            raise ValueError(f"-o {name}={value} is not an option of a suite: {INSTEAD[name]}")
    return options


@contextmanager
def _resumable() -> Iterator[None]:
    """Say of an interrupted command that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        _tell("interrupted: what is finished is kept, and the same command resumes there", "yellow")
        raise typer.Exit(130) from None


@contextmanager
def _taught(*written: Path | None) -> Iterator[None]:
    """Say what was wrong in a line, not in a traceback; files that cannot be written before any long work."""
    try:
        paths = [path for path in written if path is not None]
        for path in paths:
            if path.is_dir() or not os.access(path.parent, os.W_OK):
                raise ValueError(f"{path} cannot be written: give a file in a folder that exists")
        check_distinct(dict(zip(("--html", "--save"), written, strict=False)))
        with warnings.catch_warnings():
            warnings.showwarning = _warned
            yield
    except (ValueError, TypeError, OSError, RuntimeError, MemoryError, SafetensorError) as error:
        _tell(error, "red")
        raise typer.Exit(2) from None


def _warned(message: Warning | str, *_: Any, **__: Any) -> None:
    """Without the line of code a warning came from, which says nothing here."""
    _tell(message, "yellow")


def _tell(what: object, style: str) -> None:
    _say(f"heta-lens: {what}", err=True, style=style)


def _say(what: object, *, err: bool = False, style: str = "") -> None:
    """Print a line as it is: what it quotes of files, tokens and arguments cannot steer the terminal."""
    Console(stderr=err).print(Text(legible(str(what), keep="\n"), style=style), soft_wrap=True)
