"""How tokens or activations are patched: the options of ``heta-lens causal``, refused where they contradict."""

import re
from typing import Annotated, Any, get_args

import typer

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
    from heta_lens.prediction import patching_checks, readout
    from heta_lens.prediction.masking import check_mask

    given = {"how": how, "layer": layer, "patterns": patterns, "scale": scale}
    way = {name: value for name, value in given.items() if value is not None}
    for name, kind in (("how", patching_checks.How), ("patterns", patching_checks.Patterns), ("scale", readout.Scale)):
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
    from heta_lens.causal.activation_patching import ELSEWHERE, ByHead, ByPosition
    from heta_lens.prediction import readout

    if given["what"] is not None:
        check_choice("--what", given["what"], (*get_args(ByPosition), *get_args(ByHead)), ELSEWHERE)
    if scale is not None:
        check_choice("--scale", scale, get_args(readout.Scale))
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
