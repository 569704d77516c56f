"""The command ``heta-lens``: explain a prompt in the terminal, and on a page."""

import os
import sys
import warnings
from ast import literal_eval
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from safetensors import SafetensorError

from heta_lens import models, plots
from heta_lens.attribution import Attribution
from heta_lens.data import recall
from heta_lens.lens import names_filter
from heta_lens.methods import METHODS, attribute

app = typer.Typer(
    help="Which tokens made the model say that?", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)
MODELS = "demo (knows the words of its stories), a name of the Hugging Face hub, or a folder."
OPTIONS = "An option of the method, like probes=20; may be given again. HETA's balance is sum here by default."
METHOD = "How to explain it: see heta-lens methods."
Page = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a page that needs nothing else.")]


@app.command()
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


@app.command("attribute")
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


@app.command("methods")
def list_methods() -> None:
    """List the ways to explain a prediction: what each does, what it costs, what its scores mean."""
    table = Table(Column("method", no_wrap=True), "what it does", "cost", "scores", box=None, padding=(0, 2, 0, 0))
    for name, method in METHODS.items():
        what, adapted = _summary(method), getattr(method, "adapted", "")
        told = f"{what} Adapted: {adapted}." if adapted else what
        table.add_row(name, Text(told), Text(method.cost), "±" if method.signed else "≥ 0")
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
    chosen: dict[str, Any] = {**({"balance": "sum"} if method == "heta" else {}), **options}
    with warnings.catch_warnings():
        if chosen.get("balance") != "none":  # balancing is what the warning advises
            warnings.filterwarnings("ignore", ".*makes up.*of this score", UserWarning)
        return attribute(cache, target, tokens=ids, method=method, **chosen)


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
            console.print(Text(line), soft_wrap=True)


def _options(given: list[str]) -> dict[str, Any]:
    """``["probes=20", "support=row"]`` as keywords: what reads as a Python value is one, anything else is text."""
    pairs = [one.partition("=") for one in given]
    for name, equals, value in pairs:
        if not (name.isidentifier() and equals and value):
            raise ValueError(f"--option {name + equals + value!r} is not of the form NAME=VALUE, like probes=20")
        if name in ("cache", "target", "tokens", "method"):
            raise ValueError(f"--option {name}=… is no option of a method: the text, --target and --method say it")
    return {name: _value(value) for name, _, value in pairs}


def _value(written: str) -> Any:
    try:
        return literal_eval(written)
    except (ValueError, SyntaxError):
        return written


@contextmanager
def _taught(*written: Path | None) -> Iterator[None]:
    """Say what was wrong in a line, not in a traceback; files that cannot be written before any long work."""
    try:
        paths = [path for path in written if path is not None]
        for path in paths:
            if path.is_dir() or not os.access(path.parent, os.W_OK):
                raise ValueError(f"{path} cannot be written: give a file in a folder that exists")
        if len(set(paths)) < len(paths):
            raise ValueError(f"--html and --save are both {paths[0]}: give two files")
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
    Console(stderr=True).print(Text(f"heta-lens: {what}", style=style), soft_wrap=True)
