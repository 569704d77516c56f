"""The subcommands ``causal validate``, ``causal patch`` and ``causal components``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from heta_lens.cli import flags, views
from heta_lens.cli.app import add, app, bars, command, note, say
from heta_lens.cli.flags import Prompt, given, used, with_text
from heta_lens.cli.questions import Question, ReadPrompt, TargetFlags, read_by, read_prompt
from heta_lens.cli.views import Files, Top, show_table

if TYPE_CHECKING:
    from heta_lens._util.html_view import View

causal = typer.Typer(help="Patch activations, and read the prediction.", no_args_is_help=True)
app.add_typer(causal, name="causal", rich_help_panel=None)

HOW = (
    "edge_patch: the values that the last position reads; resid_patch: what enters --layer; input: embeddings; delete: "
    "the text without the token; resample: the text with the token drawn from the model's prediction."
)
SCALE = "Of the effects: log_prob, prob, logit or log_odds (log_prob)."

Scale = Annotated[str | None, Option(metavar="SCALE", help=SCALE)]


@dataclass(frozen=True)
class PatchFlags:
    how: Annotated[str | None, Option(metavar="HOW", help=HOW)] = None
    layer: Annotated[int | None, Option(metavar="L", min=0, help="Where resid_patch patches.")] = None


WHAT = "resid_pre, attn_out, mlp_out (a column per position), or head_out, head_q, head_k, head_v (per head)."
CORRUPTED = (
    "A prompt of as many tokens (of a chat, another last message): its run is patched with the clean one's "
    "activations, layer by layer."
)


def refuse(flags: Mapping[str, Any], why: str) -> None:
    """Refuse the first given flag."""
    for name, value in given(**flags).items():
        raise ValueError(f"--{name} {value} {why}")


def _list(name: str, rows: Sequence[Mapping[Any, Any]], top: int, columns: Mapping[str, str]) -> None:
    """Add rows to the JSON document, and print the first; ``columns`` are the forms of values."""
    add(**{name: rows})
    numbers = [column for column, form in columns.items() if ":" in form]
    show_table(
        [*columns], [[form.format(row[at]) for at, form in columns.items()] for row in rows[:top]], right=numbers
    )


def _write_view(view: "Callable[[], View]", files: Files) -> None:
    add(page=files.html, figure=files.figure)
    views.write_view(view, files)


SPECIAL = "Evaluate special tokens too, which often are attention sinks."


@command("causal validate", causal)
def validate_scores(
    *,
    model: flags.Model = "demo",
    patching: PatchFlags,
    scale: Scale = None,
    special: Annotated[bool, Option("--special", help=SPECIAL)] = False,
    top: Top = 10,
    html: flags.Page = None,
    prompts: flags.PromptFlags,
    questions: TargetFlags,
    chosen: flags.MethodFlags,
    loading: flags.LoadingFlags,
) -> None:
    """Compare scores with the effects of patching.

    Every token is patched, and the effects are compared with the scores of one method.
    """
    files = Files(html=html)
    files.check()
    prompt, question, (label, method) = prompts.read(), questions.question(), chosen.one()
    question.check(method)
    options = used(patching) | given(scale=scale)
    from heta_lens.causal import validate

    read = read_prompt(model, prompt, question, **loading.options())
    explained: Any = read.explained(question, method)
    options |= {"position": question.position, "tokens": read.tokens, "special": special, "progress": bars()}
    result = validate(read.cache, explained, **options)
    agrees = result.agreement
    add(
        method=label,
        verdict=agrees.verdict,
        patch_correlation={"value": agrees.correlation, "low": agrees.low, "high": agrees.high, "n": agrees.tokens},
        joint=result.joint,
        mean_single=result.mean_single,
        misattribution=result.misattribution,
    )
    rows = result.to_frame().sort_values("score", ascending=False, kind="stable")
    forms = {"position": "{}", "token": "{!r}", "score": "{:.4g}", "effect": "{:.4g}"}
    _list("tokens", rows.to_dict("records"), top, forms)
    say(f"\n{result}")
    note("A single prompt is weak evidence: heta-lens evaluate --metrics patch_correlation does this for many.")
    _write_view(result.plot, files)


@command("causal patch", causal)
def patch_prompt(
    *,
    model: flags.Model = "demo",
    patching: PatchFlags,
    corrupted: Annotated[str | None, Option(metavar="TEXT", help=CORRUPTED)] = None,
    what: Annotated[str | None, Option(metavar="WHAT", help=f"With --corrupted: {WHAT}")] = None,
    scale: Scale = None,
    top: Top = 10,
    prompts: flags.PromptFlags,
    questions: TargetFlags,
    files: Files,
    loading: flags.LoadingFlags,
) -> None:
    """List what patching a prompt changes most.

    Patches each token, or with --corrupted each layer and position.
    """
    files.check((*views.PAGES, *views.DRAWN))
    prompt, question = prompts.read(), questions.question()
    if corrupted is None:
        refuse({"what": what, "figure": files.figure}, "needs --corrupted, the prompt whose run is patched")
        options = used(patching) | given(scale=scale)
    else:
        refuse(used(patching), "has no effect with --corrupted, whose run is patched as --what says")
        refuse({"position": question.position}, "has no effect with --corrupted: the next token is explained")
        options = given(what=what, scale=scale)
    read = read_prompt(model, prompt, question, **loading.options())
    if corrupted is None:
        _patch_tokens(read, question, options, files, top)
    else:
        other = read_by(read.cache.model, with_text(prompt, corrupted), question)
        _patch_grid(read, other, question, options, files, top)


def _patch_tokens(read: ReadPrompt, question: Question, options: dict[str, Any], files: Files, top: int) -> None:
    from heta_lens.causal import effects
    from heta_lens.plots.html_page import heat

    prediction = read.prediction(question)
    values = effects(prediction, **options).cpu().double()
    title, tokens = f"without each token: {prediction.target_words}", prediction.written
    order = values.argsort(descending=True, stable=True).tolist()
    rows = [{"position": at, "token": tokens[at], "effect": float(values[at])} for at in order]
    add(target=prediction.target_words)
    say(f"{title} (effect: by how much its {_quantity(question, options)} falls)")
    _list("effects", rows, top, {"position": "{}", "token": "{!r}", "effect": "{:.4g}"})
    _write_view(lambda: heat(title, ["effect"], tokens, values[None], "", [*range(len(tokens))]), files)


def _patch_grid(
    clean: ReadPrompt, corrupted: ReadPrompt, question: Question, options: dict[str, Any], files: Files, top: int
) -> None:
    from heta_lens.causal import patch

    tokens = {"tokens": clean.tokens, "corrupted_tokens": corrupted.tokens}
    grid = patch(clean.cache, corrupted.cache, question.target, **tokens, **options, progress=bars())
    grid.check_something_lost()
    patches = [patch._asdict() for patch in grid.top(grid.values.numel())]
    add(title=grid.title, clean=grid.clean, corrupted=grid.corrupted)
    clean_and_corrupted = f"{grid.clean:.4g} in the clean run, {grid.corrupted:.4g} in the corrupted one"
    say(f"{grid.title}, its {_quantity(question, options)}: {clean_and_corrupted}")
    forms = {"layer": "{}", "column": "{}", "label": "{!r}", "value": "{:.4g}", "restored": "{:.0%}"}
    _list("patches", patches, top, forms)
    _write_view(grid.plot, files)


def _quantity(question: Question, options: Mapping[str, Any]) -> str:
    return "value" if callable(question.target) else options.get("scale", "log_prob")


PASSAGE = "The words of the prompt that are changed, as ' Lisbon'; they must occur once, or --at says where."
AT = "The position of a changed token, instead of --passage; may be repeated."
SAVE = "Keep the result (safetensors), for heta_lens.causal.Components.load."
CHANGE = "What replaces the words: zero, mean, vocab_mean, pad or space (masks), a token's id, or resample."
COUNTERFACTUAL = "Instead of --passage: a prompt of as many tokens (of a chat, another last message) that differs."
KNOCK_OUT = "Put changed outputs into the clean run, instead of clean outputs into the changed run."


@dataclass(frozen=True)
class ChangeFlags:
    """The change of a prompt whose way to the answer is searched."""

    passage: Annotated[str | None, Option(metavar="WORDS", help=PASSAGE)] = None
    at: Annotated[list[int] | None, Option(metavar="P", min=0, help=AT)] = None
    change: Annotated[str | None, Option(metavar="CHANGE", help=CHANGE)] = None
    corrupted: Annotated[str | None, Option(metavar="TEXT", help=COUNTERFACTUAL)] = None

    def check(self) -> None:
        """Refuse contradictory flags."""
        if self.corrupted is not None:
            refuse({"passage": self.passage, "at": self.at, "change": self.change}, "has no effect with --corrupted")
        elif (self.passage is None) == (self.at is None):
            said = "nothing says" if self.at is None else "--passage and --at both say"
            raise ValueError(f"{said} what is changed: give one of --passage WORDS, --at P and --corrupted TEXT")

    def options(self, prompt: Prompt, read: ReadPrompt, question: Question) -> dict[str, Any]:
        """Return the options ``positions`` and ``change`` of `components`."""
        if self.corrupted is not None:
            other = read_by(read.cache.model, with_text(prompt, self.corrupted), question).tokens
            return {"change": getattr(other, "tokens", other)}  # of a chat, too
        change = int(self.change) if self.change is not None and self.change.isdecimal() else self.change
        return {
            "positions": self.at or read.prediction(question).positions_of(str(self.passage)),
            **given(change=change),
        }


@command("causal components", causal)
def list_components(
    *,
    model: flags.Model = "demo",
    changed: ChangeFlags,
    knock_out: Annotated[bool, Option("--knock-out", help=KNOCK_OUT)] = False,
    verify: Annotated[int, Option(min=1, help="How many components to patch.")] = 32,
    scale: Scale = None,
    top: Top = 10,
    prompts: flags.PromptFlags,
    questions: TargetFlags,
    save: Annotated[Path | None, Option(metavar="FILE", help=SAVE)] = None,
    files: Files,
    loading: flags.LoadingFlags,
) -> None:
    """List the heads and MLPs that carry a passage.

    The passage is changed, and clean outputs of heads and MLPs are patched back in.
    """
    files.check((*views.PAGES, *views.DRAWN))
    views.check_writable([] if save is None else [save], tensors=True)
    changed.check()
    prompt, question = prompts.read(), questions.question()
    if changed.corrupted is not None:
        refuse({"position": question.position}, "has no effect with --corrupted: the next token is explained")
    from heta_lens.causal import components

    read = read_prompt(model, prompt, question, **loading.options())
    options = changed.options(prompt, read, question) | given(scale=scale)
    options |= {"direction": "knock_out" if knock_out else "restore", "verify": verify, "progress": bars()}
    found = components(read.cache, target=question.target, position=question.position, tokens=read.tokens, **options)
    rows = [{"name": each.name, **each._asdict()} for each in found.top(verify)]
    add(claim=found.claim, route=found.route_in_words, together=found.together, saved=save)
    say(f"{found}\n")
    forms = {"name": "{}", "position": "{}", "token": "{!r}", "effect": "{:.3g}", "estimate": "{:.3g}"}
    _list("components", rows, top, forms)
    _write_view(found.plot, files)
    if save is not None:
        found.save(save)
        note(save)
