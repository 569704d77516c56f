"""``heta-lens demo`` and ``heta-lens attribute``: explain a prompt in the terminal, and on a page."""

import sys
from collections.abc import Collection
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from heta_lens.cli.application import MODELS, Page, command
from heta_lens.cli.errors_and_messages import errors_in_a_line, say, show
from heta_lens.cli.json_output import add, wanted
from heta_lens.cli.loading_flags import loading_options, with_loading_flags
from heta_lens.cli.prompt_arguments import Prompt, prompt_of

if TYPE_CHECKING:
    from heta_lens import Attribution, Method

METHOD = "How to explain it: see heta-lens methods (default: heta)."
PRESET = "In place of a method: fast, careful, long or no_gradients, each a method with its options."
TARGET = "The token to explain (default: the most likely one); repeated, any of several: their joint probability."
TEXT = "The prompt, up to where the model goes on; - reads it from the input."
CHAT = "Instead of the text: a JSON list of messages with role and content; - reads it from the input."
OPTIONS = "An option of the method, like probes=20; may be repeated."


@command("demo")
def demo(
    seed: Annotated[int, typer.Option(help="Which story.")] = 0,
    hops: Annotated[int, typer.Option(min=1, max=2, help="1 asks for the place, 2 for the room it is in.")] = 1,
    html: Page = Path("heta_lens_demo.html"),
) -> None:
    """Explain the answer of the small model that ships with heta_lens, to a question about a short story."""
    with errors_in_a_line(html):
        from heta_lens.data import recall

        story = next(recall.stories("test", seed=seed, hops=2 if hops == 2 else 1, facts=4))
        marked = {position for stretch in story.evidence for position in stretch.tokens}
        explained = _explained("demo", story.text, [], _method("heta", {}))
        right = "as the model says" if explained.target_text == story.answer else "which the model gets wrong"
        evidence = " ".join(story.text[slice(*stretch.characters)] for stretch in story.evidence)
        note = f"Underlined is what tells the answer,{story.answer}, {right}: {evidence}"
        add(answer=story.answer, evidence=sorted(marked))
        _show(explained, html, None, marked, note)


@command("attribute")
@with_loading_flags
def attribute_text(
    text: Annotated[str | None, typer.Argument(help=TEXT)] = None,
    chat: Annotated[Path | None, typer.Option("--chat", metavar="FILE", help=CHAT)] = None,
    system: Annotated[str | None, typer.Option(help="The system prompt of a chat; goes with --user.")] = None,
    user: Annotated[
        str | None, typer.Option(help="Instead of the text: the message that a chat model answers.")
    ] = None,
    target: Annotated[list[str] | None, typer.Option(help=TARGET)] = None,
    model: Annotated[str, typer.Option(help=MODELS)] = "demo",
    method: Annotated[str | None, typer.Option("--method", "-m", help=METHOD)] = None,
    preset: Annotated[str | None, typer.Option(metavar="NAME", help=PRESET)] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help=OPTIONS)] = None,
    html: Page = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Keep the attribution (safetensors).")] = None,
    *,
    loading: dict[str, Any],
) -> None:
    """Explain why a model goes on as it does after a text of your own, or answers a chat as it does."""
    with errors_in_a_line(html, save):
        prompt = prompt_of(text, chat, system, user)
        how, options = _method(method, _options(option or []), preset), loading_options(loading)
        _show(_explained(model, prompt, target or [], how, **options), html, save)


def _options(given: list[str]) -> dict[str, Any]:
    """``["probes=20", "support=row"]`` as keywords."""
    from heta_lens._util.option_text import keywords

    options = keywords(given)
    for name in options:
        if name in ("cache", "target", "tokens", "method"):
            raise ValueError(f"--option {name}=… is not an option of a method: the text, --target and --method say it")
    return options


def _method(name: str | None, options: dict[str, Any], preset_name: str | None = None) -> "Method":
    """The method with its options, checked before a model is loaded."""
    from heta_lens.api import method_of
    from heta_lens.methods.presets import preset

    if preset_name is None:
        return method_of(name or "heta", options)
    if name is not None:
        raise ValueError(f"--preset {preset_name} and --method {name} both say how to explain: give one of them")
    return preset(preset_name, **options)


def _explained(model: str, prompt: Prompt, targets: Collection[str], method: "Method", **loading: Any) -> "Attribution":
    from heta_lens.api import attribute
    from heta_lens.model.adapter import ModelAdapter
    from heta_lens.model.hook_sites import lean_names_filter
    from heta_lens.model.loading import load_model
    from heta_lens.model.prompt_encoding import encode, refuse_unknown
    from heta_lens.prediction.chat_prompt import chat

    loaded = load_model(model, **loading)
    if isinstance(prompt, str):
        tokens = ids = encode(loaded, prompt)
    else:
        tokens = chat(loaded, prompt)
        refuse_unknown(loaded, tokens.text)
        ids = tokens.tokens
    target = {*targets} if targets else None
    return attribute(ModelAdapter(loaded).cache(ids, lean_names_filter), target, tokens=tokens, method=method)


def _show(
    explained: "Attribution", html: Path | None, save: Path | None, marked: Collection[int] = (), note: str = ""
) -> None:
    """Files first, so that a terminal that cannot show something loses nothing."""
    from heta_lens import plots

    if wanted():
        from heta_lens.evaluation.score_rows import row_of

        add(attribution=row_of("prompt", explained.method, explained).flat(), page=html, saved=save)
    if html is not None:
        plots.page(explained, marked=marked, note=note).save(html)
    if save is not None:
        explained.save(save)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    show(plots.terminal(explained, marked=marked, coloured=Console().color_system is not None))
    written = {"The same as a page": html, "The attribution": save}
    for line in [note, *(f"{what}: {path}" for what, path in written.items() if path is not None)]:
        if line:
            say(line)
