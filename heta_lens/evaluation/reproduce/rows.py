"""The rows of printed tables: methods and their options."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from heta_lens._util.python import quietly
from heta_lens.evaluation.prompt_evaluation import Entry
from heta_lens.methods.heta.heta import Heta

WEIGHTS = re.compile(r"β = ([\d.]+), γ = ([\d.]+)")

BASELINES: Mapping[str, str] = {
    "ContextCite": "context_cite",
    **dict.fromkeys(("Integrated Gradients", "IG"), "integrated_gradients"),
    **dict.fromkeys(("Peering (PML)", "PML"), "peering"),
    **dict.fromkeys(("TDD-backward", "TDD-bw"), "tdd"),
    **dict.fromkeys(("Attention Rollout", "AttnRoll"), "attention_rollout"),
    "fAML": "faml",
    **dict.fromkeys(("Progressive Inference", "ProgInf"), "progressive_inference"),
    "SEA-CoT": "sea_cot",
    **dict.fromkeys(("ReAgent", "ReAGent"), "reagent"),
    "GiLOT": "gilot",
    "Token Gradients": "gradient_norm",
    "Causal Tracing (baseline)": "causal_tracing",
}

OPTIONS: Mapping[str, Mapping[str, Any]] = {"context_cite": {"query": "@question"}}

RANK, WINDOW = {"rank": 64}, {"window": 512}
HETA: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("HETA", "HETA (Ours)", "HETA (Full)", "Full HETA"), {}),
    (("Transition Only",), {"variant": "transition_only"}),
    (("Hessian Only", "HETA (w/o KL)"), {"variant": "hessian_only"}),
    (("KL Only", "HETA (w/o Hessian)"), {"variant": "kl_only"}),
    (("No Transition Gating", "HETA (w/o Transition)", "HETA-No-Gate"), {"gate": "none"}),
    (("Uniform Transition",), {"gate": "uniform"}),
    (("HETA-LR (rank=64)",), {"variant": "lr", **RANK}),
    (("HETA-LS (6 layers)", "HETA-LS (top 6 layers)", "HETA (Full, 6 layers)"), {"variant": "ls", "layers": 6}),
    (("HETA-LS (4 layers)",), {"variant": "ls", "layers": 4}),
    (("HETA-GS (grad-squared only)",), {"variant": "gs"}),
    (("HETA-WIN (512-window)", "HETA-WIN (W=512, 50% overlap)", "HETA-WIN (512/50%)"), {"variant": "win", **WINDOW}),
    (("HETA-LR+WIN", "HETA (LR+WIN)", "HETA-LR+WIN (r=64, W=512)"), {"variant": "lr+win", **RANK, **WINDOW}),
    (("HETA-LS+WIN",), {"variant": "ls+win", "layers": 6, **WINDOW}),
)
CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {row: options for rows, options in HETA for row in rows}


@dataclass(frozen=True)
class Effort:
    """The amount of work for the figures of a table."""

    limit: int  # the prompts of every data set
    heta: Mapping[str, Any] = field(default_factory=dict)  # options of HETA in all rows
    # values in place of a rank, a window or a number of layers that a row names
    smaller: Mapping[str, int] = field(default_factory=dict)
    shorter: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # options of baselines
    length: int | None = None  # the tokens of a prompt, if the paper's prompts would be too long

    def entry(self, row: str, **extra: Any) -> Entry:
        """Make the method that a printed row names."""
        if row in BASELINES:
            method = BASELINES[row]
            options = {**OPTIONS.get(method, {}), **self.shorter.get(method, {})}
        else:
            method, weights = "heta", WEIGHTS.fullmatch(row)
            named = {"beta": float(weights[1]), "gamma": float(weights[2])} if weights else CONFIGURATIONS[row]
            smaller = {name: size for name, size in self.smaller.items() if name in named}
            every = {**self.heta, **extra, **named, **smaller}
            heta = quietly(partial(Heta, **every))
            without_effect = heta.unread.keys() - ({"seed"} if heta.random else set())
            options = {name: value for name, value in every.items() if name not in without_effect}
        return Entry(" ".join([method, *(f"{name}={value}" for name, value in options.items())]), method, options)

    def full(self, **extra: Any) -> Heta:
        """Make the method that windows and memory are compared with."""
        return Heta(**{**self.heta, **extra})
