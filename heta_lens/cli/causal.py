"""How tokens or activations are patched: the options of ``heta-lens causal``, refused where they contradict."""

import re
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from heta_lens._util.work import progress_in_lines
from heta_lens.cli.app import MODELS, Page, add, app, bars, command, errors_in_a_line, note, say, show
from heta_lens.cli.flags import (
    loading_options,
    methods_of,
    prompt_of,
    with_loading_flags,
    with_one_method_flag,
    with_prompt_flags,
    with_text,
)
from heta_lens.cli.questions import (
    Question,
    ReadPrompt,
    loaded_for,
    question_of,
    read_by,
    read_prompt,
    with_target_flags,
)
from heta_lens.cli.views import (
    DRAWN,
    HIGHEST,
    PAGES,
    TOP,
    Files,
    check_page,
    name_files,
    text_table,
    with_view_flags,
    write_view,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from heta_lens._util.html_view import View
    from heta_lens.causal import Grid, Patch, Validation


HOW = "edge_patch: the values that the last position reads; resid_patch: what enters --layer; input: embeddings."
MASK = "What patched-in activations come from: tokens masked as zero, mean, vocab_mean, pad, space, or a token's id."
LAYER = "Where resid_patch patches."
PATTERNS = "Whether edge_patch leaves attention as it was: frozen or recomputed (frozen)."
MEASURED = {"log_prob": "log-probability", "prob": "probability", "logit": "logit", "log_odds": "log-odds"}
"""What is measured of the target, by ``--scale``."""
SCALE = "Of the effects: log_prob, prob, logit or log_odds (log_prob)."
WHAT = "resid_pre, attn_out, mlp_out (a column per position), or head_out, head_q, head_k, head_v (per head)."
PLACES = "With --corrupted: only these, as 3:7."

How = Annotated[str | None, typer.Option(metavar="HOW", help=HOW)]
Mask = Annotated[str | None, typer.Option(metavar="MASK", help=MASK)]
Layer = Annotated[int | None, typer.Option(metavar="L", min=0, help=LAYER)]
Patterns = Annotated[str | None, typer.Option(metavar="PATTERNS", help=PATTERNS)]
Scale = Annotated[str | None, typer.Option(metavar="SCALE", help=SCALE)]
What = Annotated[str | None, typer.Option(metavar="WHAT", help=f"With --corrupted: {WHAT}")]
Places = Annotated[str | None, typer.Option(metavar="START:STOP", help=PLACES)]


def way_of(how: Any, mask: Any, layer: Any, patterns: Any, scale: Any) -> dict[str, Any]:
    """How tokens are patched, refused where that contradicts itself, before a model is loaded."""
    from heta_lens._util.options import check_choice
    from heta_lens.model.mask import check_mask
    from heta_lens.prediction import patching, target

    given = {"how": how, "layer": layer, "patterns": patterns, "scale": scale}
    way = {name: value for name, value in given.items() if value is not None}
    for name, kind in (("how", patching.How), ("patterns", patching.Patterns), ("scale", target.Scale)):
        if name in way:
            check_choice(f"--{name}", way[name], get_args(kind))
    if ("layer" in way) != (how == "resid_patch"):
        raise ValueError("--layer goes with --how resid_patch, which needs one: give both or neither")
    if "patterns" in way and how not in (None, "edge_patch"):
        raise ValueError(f"--patterns {patterns} is for --how edge_patch, not for --how {how}")
    if mask is not None:
        way["mask"] = int(mask) if mask.isdecimal() else mask
        check_mask("--mask", way["mask"])
    return way


def measured(options: dict[str, Any]) -> str:
    """What the effects are of, by the chosen scale."""
    return MEASURED[options.get("scale", "log_prob")]


def grid_options(given: dict[str, Any], scale: Any) -> dict[str, Any]:
    from heta_lens._util.options import check_choice
    from heta_lens.causal.patching import ELSEWHERE, ByHead, ByPosition
    from heta_lens.prediction import target

    if given["what"] is not None:
        check_choice("--what", given["what"], (*get_args(ByPosition), *get_args(ByHead)), ELSEWHERE)
    if scale is not None:
        check_choice("--scale", scale, get_args(target.Scale))
    options = {"what": given["what"], "scale": scale}
    options |= {name: numbers(f"--{name}", given[name]) for name in ("layers", "positions") if given[name] is not None}
    return {name: value for name, value in options.items() if value is not None}


def numbers(flag: str, written: str) -> list[int]:
    """Those of ``3:7``, or ``3`` alone."""
    match = re.fullmatch(r"(\d+)(?::(\d+))?", written.strip())
    places = range(int(match[1]), int(match[2] or int(match[1]) + 1)) if match else range(0)
    if not places:
        raise ValueError(f"{flag} {written} is no range of numbers from 0: write 3:7, or 3 for one")
    return [*places]


def flow_option(flow: str | None) -> dict[str, Any]:
    from heta_lens._util.options import check_choice
    from heta_lens.methods.heta.gate import Flow

    if flow is None:
        return {}
    check_choice("--flow", flow, get_args(Flow))
    return {"flow": flow}


def refuse(given: dict[str, Any], why: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"--{name} {value} {why}")


# ------------------------------------------------------------------------------------------------------ causal command
# ``heta-lens causal validate``, ``patch`` and ``heads``: patching a prompt, and what the prediction does then.


causal = typer.Typer(help="Patch activations, and read the prediction.", no_args_is_help=True)
app.add_typer(causal, name="causal", rich_help_panel=None)

REFERENCE = (
    "A prompt of as many tokens (of a chat, another last message) that patches come from, instead of masked tokens."
)
SPECIAL = "Evaluate special tokens too, which often are attention sinks."
K = "How many tokens with the highest scores are patched together."
LEAST = "A highest token with a smaller effect counts as misattributed."
CORRUPTED = (
    "A prompt of as many tokens (of a chat, another last message): its run is patched with the clean one's "
    "activations, layer by layer."
)
FLOW = "How the gate's flow reaches the prediction, as HETA has it (suffix)."
SOURCE = "Only what flows from the token at this position."

Top = Annotated[int, typer.Option(metavar="N", min=1, help=TOP)]
Model = Annotated[str, typer.Option(help=MODELS)]


@command("causal validate", causal)
@with_loading_flags
@with_one_method_flag
@with_target_flags
@with_prompt_flags
def validate_scores(
    model: Model = "demo",
    how: How = None,
    mask: Mask = None,
    layer: Layer = None,
    patterns: Patterns = None,
    scale: Scale = None,
    reference: Annotated[str | None, typer.Option(metavar="TEXT", help=REFERENCE)] = None,
    special: Annotated[bool, typer.Option("--special", help=SPECIAL)] = False,
    k: Annotated[int, typer.Option(metavar="K", min=1, help=K)] = 5,
    least: Annotated[float, typer.Option(min=0, help=LEAST)] = 0.01,
    top: Top = 10,
    html: Page = None,
    *,
    prompt_flags: dict[str, Any],
    question_flags: dict[str, Any],
    method_flags: dict[str, Any],
    loading: dict[str, Any],
) -> None:
    """Compare scores with the effects of patching.

    Every token is patched, and the effects are compared with the scores of one method.
    """
    with errors_in_a_line(html), progress_in_lines():
        check_page(html)
        prompt, question, methods = prompt_of(**prompt_flags), question_of(question_flags), methods_of(method_flags)
        label, method = _only(methods)
        question.check(method)
        way = way_of(how, mask, layer, patterns, scale)
        if reference is not None and mask is not None:
            raise ValueError("--mask and --reference both say what is patched in: give one of them")
        from heta_lens.causal import validate

        loaded = loaded_for(model, prompt, question, **loading_options(loading))
        read = read_by(loaded, prompt, question)
        other = None if reference is None else read_by(loaded, with_text(prompt, reference), question)
        others = {} if other is None else {"reference": other.cache, "reference_tokens": other.tokens}
        explained: Any = read.explained(question, method)
        result = validate(
            read.cache, explained, position=question.position, tokens=read.tokens, k=k, least=least, special=special,
            progress=bars(), **way, **others,
        )  # fmt: skip
        _report_validation(result, label, top)
        _write_view(result.plot, Files(html=html))


def _report_validation(result: "Validation", label: str, top: int) -> None:
    agrees, rows = result.agreement, _validated_rows(result)
    add(
        method=label,
        verdict=agrees.verdict,
        patch_correlation={"value": agrees.correlation, "low": agrees.low, "high": agrees.high, "n": agrees.tokens},
        joint=result.joint,
        mean_single=result.mean_single,
        misattribution=result.misattribution,
        tokens=[dict(zip(("position", "token", "score", "effect"), row, strict=True)) for row in rows],
    )
    cells = [(str(place), repr(token), f"{score:.4g}", f"{effect:.4g}") for place, token, score, effect in rows[:top]]
    show(text_table(["position", "token", "score", "effect"], cells, right=("score", "effect")))
    say(f"\n{result}")
    note("A single prompt is weak evidence: heta-lens evaluate --metrics patch_correlation does this for many.")


def _validated_rows(result: "Validation") -> list[tuple[int, str, float, float]]:
    """Position, token, score and effect, the highest score first."""
    rows = zip(result.positions, result.tokens, result.scores.tolist(), result.effects.tolist(), strict=True)
    return sorted(rows, key=lambda row: -row[2])


@command("causal patch", causal)
@with_loading_flags
@with_view_flags
@with_target_flags
@with_prompt_flags
def patch_prompt(
    model: Model = "demo",
    how: How = None,
    mask: Mask = None,
    layer: Layer = None,
    patterns: Patterns = None,
    corrupted: Annotated[str | None, typer.Option(metavar="TEXT", help=CORRUPTED)] = None,
    what: What = None,
    layers: Places = None,
    positions: Places = None,
    scale: Scale = None,
    top: Top = 10,
    *,
    prompt_flags: dict[str, Any],
    question_flags: dict[str, Any],
    files: dict[str, Any],
    loading: dict[str, Any],
) -> None:
    """List what patching a prompt changes most.

    Patches each token, or with --corrupted each layer and position.
    """
    written = Files(**files)
    with errors_in_a_line(*written.paths, names=written.names), progress_in_lines():
        written.check((*PAGES, *DRAWN))
        prompt, question = prompt_of(**prompt_flags), question_of(question_flags)
        of_tokens = {"how": how, "mask": mask, "layer": layer, "patterns": patterns}
        of_grid = {"what": what, "layers": layers, "positions": positions}
        if corrupted is None:
            refuse({**of_grid, "figure": written.figure}, "needs --corrupted, the prompt whose run is patched")
            way = way_of(**of_tokens, scale=scale)
            _patch_tokens(read_prompt(model, prompt, question, **loading_options(loading)), question, way, written, top)
        else:
            refuse(of_tokens, "has no effect with --corrupted, whose run is patched as --what says")
            refuse({"position": question.position}, "has no effect with --corrupted: the next token is explained")
            chosen = grid_options(of_grid, scale)
            loaded = loaded_for(model, prompt, question, **loading_options(loading))
            both = read_by(loaded, prompt, question), read_by(loaded, with_text(prompt, corrupted), question)
            _patch_grid(*both, question, chosen, written, top)


def _patch_tokens(read: ReadPrompt, question: Question, way: dict[str, Any], files: Files, top: int) -> None:
    from heta_lens.causal import effects
    from heta_lens.plots.page import heat
    from heta_lens.prediction.prediction import Prediction

    prediction = Prediction.from_cache(read.cache, question.target, position=question.position, tokens=read.tokens)
    values = effects(prediction, **way).cpu().double()
    title, tokens = f"without each token: {prediction.target_words}", prediction.written
    rows = sorted(zip(range(len(tokens)), tokens, values.tolist(), strict=True), key=lambda row: -row[2])
    add(target=prediction.target_words, effects=[{"position": at, "token": t, "effect": e} for at, t, e in rows])
    say(f"{title} (effect: by how much its {measured(way)} falls)")
    cells = [(str(place), repr(token), f"{effect:.4g}") for place, token, effect in rows[:top]]
    show(text_table(["position", "token", "effect"], cells, right=("effect",)))
    _write_view(lambda: heat(title, ["effect"], tokens, values[None], "", [*range(len(tokens))]), files)


def _patch_grid(
    clean: ReadPrompt, corrupted: ReadPrompt, question: Question, chosen: dict[str, Any], files: Files, top: int
) -> None:
    from heta_lens.causal import patch

    tokens = {"tokens": clean.tokens, "corrupted_tokens": corrupted.tokens}
    grid = patch(clean.cache, corrupted.cache, question.target, **tokens, **chosen, progress=bars())
    grid.check_something_lost()
    add(title=grid.title, clean=grid.clean, corrupted=grid.corrupted, patches=[p._asdict() for p in _every(grid)])
    clean_and_corrupted = f"{grid.clean:.4g} in the clean run, {grid.corrupted:.4g} in the corrupted one"
    say(f"{grid.title}, its {measured(chosen)}: {clean_and_corrupted}")
    show(_patch_table(grid.top(top)))
    _write_view(grid.plot, files)


def _every(grid: "Grid") -> "list[Patch]":
    return grid.top(grid.values.numel())


def _patch_table(patches: "list[Patch]") -> Any:
    cells = [(str(p.layer), str(p.column), repr(p.label), f"{p.value:.4g}", f"{p.restored:.0%}") for p in patches]
    return text_table(["layer", "column", "label", "value", "restored"], cells, right=("value", "restored"))


@command("causal heads", causal)
@with_loading_flags
@with_prompt_flags
def list_heads(
    model: Model = "demo",
    flow: Annotated[str | None, typer.Option(metavar="FLOW", help=FLOW)] = None,
    value_norm: Annotated[int, typer.Option(min=1, max=2, help="The order of the values' norm.")] = 1,
    position: Annotated[int | None, typer.Option(metavar="P", help="Of the predicted token (the next one).")] = None,
    source: Annotated[int | None, typer.Option(metavar="P", min=0, help=SOURCE)] = None,
    top: Top = HIGHEST,
    html: Page = None,
    *,
    prompt_flags: dict[str, Any],
    loading: dict[str, Any],
) -> None:
    """List the heads that carry most of the gate.

    The gate is HETA's; L0H1 is head 1 of layer 0.
    """
    with errors_in_a_line(html), progress_in_lines():
        check_page(html)
        prompt, options = prompt_of(**prompt_flags), {"value_norm": value_norm, **flow_option(flow)}
        from heta_lens.causal import gate_heads

        read = read_prompt(model, prompt, Question(position=position), **loading_options(loading))
        gate = gate_heads(read.cache, position=position, tokens=read.tokens, **options)
        heads = gate.of(source)
        every = heads.top(heads.values.numel())
        add(title=heads.title, heads=[{"name": head.name, **head._asdict()} for head in every])
        say(heads.title)
        cells = [(head.name, f"{head.value:.2%}") for head in every[:top]]
        show(text_table(["head", "share"], cells, right=("share",)))
        _write_view(heads.plot, Files(html=html))


def _only(methods: dict[str, Any]) -> tuple[str, Any]:
    if len(methods) > 1:
        raise ValueError(f"one method is validated at a time, and --method names {len(methods)}: give one")
    return next(iter(methods.items()))


def _write_view(view: "Callable[[], View]", files: Files) -> None:
    """Write the page and the figure that are wanted of what a function draws."""
    add(page=files.html, figure=files.figure)
    write_view(view, files)
    name_files(files)
