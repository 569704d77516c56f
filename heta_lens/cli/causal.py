"""The subcommands ``causal validate``, ``causal patch`` and ``causal heads``."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer import Option

from heta_lens.cli import flags, views
from heta_lens.cli.app import add, app, bars, command, note, say, show
from heta_lens.cli.flags import given, used, with_text
from heta_lens.cli.questions import Question, ReadPrompt, TargetFlags, loaded_for, read_by, read_prompt
from heta_lens.cli.views import Files, Top, text_table

if TYPE_CHECKING:
    from heta_lens._util.html_view import View
    from heta_lens.causal import Validation

causal = typer.Typer(help="Patch activations, and read the prediction.", no_args_is_help=True)
app.add_typer(causal, name="causal", rich_help_panel=None)

HOW = "edge_patch: the values that the last position reads; resid_patch: what enters --layer; input: embeddings."
MASK = "What patched-in activations come from: tokens masked as zero, mean, vocab_mean, pad, space, or a token's id."
PATTERNS = "Whether edge_patch leaves attention as it was: frozen or recomputed (frozen)."
MEASURED = {"log_prob": "log-probability", "prob": "probability", "logit": "logit", "log_odds": "log-odds"}
SCALE = "Of the effects: log_prob, prob, logit or log_odds (log_prob)."

Scale = Annotated[str | None, Option(metavar="SCALE", help=SCALE)]


@dataclass(frozen=True)
class PatchFlags:
    """The patching of tokens."""

    how: Annotated[str | None, Option(metavar="HOW", help=HOW)] = None
    mask: Annotated[str | None, Option(metavar="MASK", help=MASK)] = None
    layer: Annotated[int | None, Option(metavar="L", min=0, help="Where resid_patch patches.")] = None
    patterns: Annotated[str | None, Option(metavar="PATTERNS", help=PATTERNS)] = None

    def options(self, scale: str | None) -> dict[str, Any]:
        """Return the options of `effects`; refuse contradictory flags before a model is loaded."""
        from heta_lens.model.mask import check_mask
        from heta_lens.prediction import patching, target

        check_flag("how", self.how, patching.How)
        check_flag("patterns", self.patterns, patching.Patterns)
        check_flag("scale", scale, target.Scale)
        if (self.layer is not None) != (self.how == "resid_patch"):
            raise ValueError("--layer goes with --how resid_patch, which needs one: give both or neither")
        if self.patterns is not None and self.how not in (None, "edge_patch"):
            raise ValueError(f"--patterns {self.patterns} is for --how edge_patch, not for --how {self.how}")
        options = used(self) | given(scale=scale)
        if self.mask is not None:
            options["mask"] = int(self.mask) if self.mask.isdecimal() else self.mask
            check_mask("--mask", options["mask"])
        return options


WHAT = "resid_pre, attn_out, mlp_out (a column per position), or head_out, head_q, head_k, head_v (per head)."
PLACES = "With --corrupted: only these, as 3:7."
CORRUPTED = (
    "A prompt of as many tokens (of a chat, another last message): its run is patched with the clean one's "
    "activations, layer by layer."
)

Places = Annotated[str | None, Option(metavar="START:STOP", help=PLACES)]


@dataclass(frozen=True)
class GridFlags:
    """The patching of layers and positions of a corrupted run."""

    corrupted: Annotated[str | None, Option(metavar="TEXT", help=CORRUPTED)] = None
    what: Annotated[str | None, Option(metavar="WHAT", help=f"With --corrupted: {WHAT}")] = None
    layers: Places = None
    positions: Places = None

    def options(self, scale: str | None) -> dict[str, Any]:
        """Return the options of `patch`, checked before a model is loaded."""
        from heta_lens._util.options import check_choice
        from heta_lens.causal.patching import ByHead, ByPosition
        from heta_lens.prediction import target

        if self.what is not None:
            check_choice("--what", self.what, (*get_args(ByPosition), *get_args(ByHead)))
        check_flag("scale", scale, target.Scale)
        layers, positions = numbers("--layers", self.layers), numbers("--positions", self.positions)
        return given(what=self.what, layers=layers, positions=positions, scale=scale)


def check_flag(name: str, value: str | None, choices: Any) -> None:
    """Refuse a value outside of the literal type ``choices``; None was not given."""
    from heta_lens._util.options import check_choice

    if value is not None:
        check_choice(f"--{name}", value, get_args(choices))


def numbers(flag: str, written: str | None) -> list[int] | None:
    """Return the numbers of ``3:7``, or of ``3`` alone."""
    if written is None:
        return None
    match = re.fullmatch(r"(\d+)(?::(\d+))?", written.strip())
    places = range(int(match[1]), int(match[2] or int(match[1]) + 1)) if match else range(0)
    if not places:
        raise ValueError(f"{flag} {written} is no range of numbers from 0: write 3:7, or 3 for one")
    return [*places]


def refuse(flags: Mapping[str, Any], why: str) -> None:
    """Refuse the first given flag."""
    for name, value in given(**flags).items():
        raise ValueError(f"--{name} {value} {why}")


def _write_view(view: "Callable[[], View]", files: Files) -> None:
    add(page=files.html, figure=files.figure)
    views.write_view(view, files)
    views.name_files(files)


# ------------------------------------------------------------------------------------------------------------- validate

REFERENCE = (
    "A prompt of as many tokens (of a chat, another last message) that patches come from, instead of masked tokens."
)
SPECIAL = "Evaluate special tokens too, which often are attention sinks."
K = "How many tokens with the highest scores are patched together."
LEAST = "A highest token with a smaller effect counts as misattributed."


@command("causal validate", causal)
def validate_scores(
    *,
    model: flags.Model = "demo",
    patching: PatchFlags,
    scale: Scale = None,
    reference: Annotated[str | None, Option(metavar="TEXT", help=REFERENCE)] = None,
    special: Annotated[bool, Option("--special", help=SPECIAL)] = False,
    k: Annotated[int, Option(metavar="K", min=1, help=K)] = 5,
    least: Annotated[float, Option(min=0, help=LEAST)] = 0.01,
    top: Top = 10,
    html: flags.Page = None,
    prompts: flags.PromptFlags,
    questions: TargetFlags,
    chosen: flags.OneMethodFlags,
    loading: flags.LoadingFlags,
) -> None:
    """Compare scores with the effects of patching.

    Every token is patched, and the effects are compared with the scores of one method.
    """
    files = Files(html=html)
    files.check()
    prompt, question, methods = prompts.read(), questions.question(), chosen.methods()
    if len(methods) > 1:
        raise ValueError(f"one method is validated at a time, and --method names {len(methods)}: give one")
    ((label, method),) = methods.items()
    question.check(method)
    options = patching.options(scale)
    if reference is not None and patching.mask is not None:
        raise ValueError("--mask and --reference both say what is patched in: give one of them")
    from heta_lens._util.work import progress_in_lines
    from heta_lens.causal import validate

    loaded = loaded_for(model, prompt, question, **loading.options())
    with progress_in_lines():
        read = read_by(loaded, prompt, question)
        if reference is not None:
            other = read_by(loaded, with_text(prompt, reference), question)
            options |= {"reference": other.cache, "reference_tokens": other.tokens}
        explained: Any = read.explained(question, method)
        options |= {"position": question.position, "tokens": read.tokens, "special": special, "progress": bars()}
        result = validate(read.cache, explained, k=k, least=least, **options)
    _report_validation(result, label, top)
    _write_view(result.plot, files)


def _report_validation(result: "Validation", label: str, top: int) -> None:
    agrees = result.agreement
    columns = result.positions, result.tokens, result.scores.tolist(), result.effects.tolist()
    rows = sorted(zip(*columns, strict=True), key=lambda row: -row[2])
    names = ("position", "token", "score", "effect")
    add(
        method=label,
        verdict=agrees.verdict,
        patch_correlation={"value": agrees.correlation, "low": agrees.low, "high": agrees.high, "n": agrees.tokens},
        joint=result.joint,
        mean_single=result.mean_single,
        misattribution=result.misattribution,
        tokens=[dict(zip(names, row, strict=True)) for row in rows],
    )
    cells = [(str(place), repr(token), f"{score:.4g}", f"{effect:.4g}") for place, token, score, effect in rows[:top]]
    show(text_table(names, cells, right=("score", "effect")))
    say(f"\n{result}")
    note("A single prompt is weak evidence: heta-lens evaluate --metrics patch_correlation does this for many.")


# ---------------------------------------------------------------------------------------------------------------- patch


@command("causal patch", causal)
def patch_prompt(
    *,
    model: flags.Model = "demo",
    patching: PatchFlags,
    grid: GridFlags,
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
    if grid.corrupted is None:
        refuse({**used(grid), "figure": files.figure}, "needs --corrupted, the prompt whose run is patched")
        options = patching.options(scale)
    else:
        refuse(used(patching), "has no effect with --corrupted, whose run is patched as --what says")
        refuse({"position": question.position}, "has no effect with --corrupted: the next token is explained")
        options = grid.options(scale)
    from heta_lens._util.work import progress_in_lines

    loaded = loaded_for(model, prompt, question, **loading.options())
    with progress_in_lines():
        read = read_by(loaded, prompt, question)
        if grid.corrupted is None:
            _patch_tokens(read, question, options, files, top)
        else:
            corrupted = read_by(loaded, with_text(prompt, grid.corrupted), question)
            _patch_grid(read, corrupted, question, options, files, top)


def _patch_tokens(read: ReadPrompt, question: Question, options: dict[str, Any], files: Files, top: int) -> None:
    from heta_lens.causal import effects
    from heta_lens.plots.page import heat
    from heta_lens.prediction.prediction import Prediction

    prediction = Prediction.from_cache(read.cache, question.target, position=question.position, tokens=read.tokens)
    values = effects(prediction, **options).cpu().double()
    title, tokens = f"without each token: {prediction.target_words}", prediction.written
    rows = sorted(zip(range(len(tokens)), tokens, values.tolist(), strict=True), key=lambda row: -row[2])
    add(target=prediction.target_words, effects=[{"position": at, "token": t, "effect": e} for at, t, e in rows])
    say(f"{title} (effect: by how much its {_measured(options)} falls)")
    cells = [(str(place), repr(token), f"{effect:.4g}") for place, token, effect in rows[:top]]
    show(text_table(["position", "token", "effect"], cells, right=("effect",)))
    _write_view(lambda: heat(title, ["effect"], tokens, values[None], "", [*range(len(tokens))]), files)


def _patch_grid(
    clean: ReadPrompt, corrupted: ReadPrompt, question: Question, options: dict[str, Any], files: Files, top: int
) -> None:
    from heta_lens.causal import patch

    tokens = {"tokens": clean.tokens, "corrupted_tokens": corrupted.tokens}
    grid = patch(clean.cache, corrupted.cache, question.target, **tokens, **options, progress=bars())
    grid.check_something_lost()
    patches = grid.top(grid.values.numel())
    add(title=grid.title, clean=grid.clean, corrupted=grid.corrupted, patches=[p._asdict() for p in patches])
    clean_and_corrupted = f"{grid.clean:.4g} in the clean run, {grid.corrupted:.4g} in the corrupted one"
    say(f"{grid.title}, its {_measured(options)}: {clean_and_corrupted}")
    cells = [(str(p.layer), str(p.column), repr(p.label), f"{p.value:.4g}", f"{p.restored:.0%}") for p in patches[:top]]
    show(text_table(["layer", "column", "label", "value", "restored"], cells, right=("value", "restored")))
    _write_view(grid.plot, files)


def _measured(options: Mapping[str, Any]) -> str:
    return MEASURED[options.get("scale", "log_prob")]


# ---------------------------------------------------------------------------------------------------------------- heads

FLOW = "How the gate's flow reaches the prediction, as HETA has it (suffix)."
SOURCE = "Only what flows from the token at this position."


@command("causal heads", causal)
def list_heads(
    *,
    model: flags.Model = "demo",
    flow: Annotated[str | None, Option(metavar="FLOW", help=FLOW)] = None,
    value_norm: Annotated[int, Option(min=1, max=2, help="The order of the values' norm.")] = 1,
    position: Annotated[int | None, Option(metavar="P", help="Of the predicted token (the next one).")] = None,
    source: Annotated[int | None, Option(metavar="P", min=0, help=SOURCE)] = None,
    top: Top = views.HIGHEST,
    html: flags.Page = None,
    prompts: flags.PromptFlags,
    loading: flags.LoadingFlags,
) -> None:
    """List the heads that carry most of the gate.

    The gate is HETA's; L0H1 is head 1 of layer 0.
    """
    files = Files(html=html)
    files.check()
    prompt = prompts.read()
    from heta_lens.causal import gate_heads
    from heta_lens.methods.heta.gate import Flow

    check_flag("flow", flow, Flow)
    read = read_prompt(model, prompt, Question(position=position), **loading.options())
    options: dict[str, Any] = {"position": position, "value_norm": value_norm, **given(flow=flow)}
    gate = gate_heads(read.cache, tokens=read.tokens, **options)
    heads = gate.of(source)
    ranked = heads.top(heads.values.numel())
    add(title=heads.title, heads=[{"name": head.name, **head._asdict()} for head in ranked])
    say(heads.title)
    cells = [(head.name, f"{head.value:.2%}") for head in ranked[:top]]
    show(text_table(["head", "share"], cells, right=("share",)))
    _write_view(heads.plot, files)
