"""The rows of printed tables: methods and their options, and HETA configurations made of shared parts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from heta_lens._util.numerics import Samples
from heta_lens._util.options import settings
from heta_lens._util.python import quietly
from heta_lens.attribution import Attribution
from heta_lens.evaluation.prompt_evaluation import Entry
from heta_lens.methods.heta.heta import Heta
from heta_lens.methods.heta.score import Parts
from heta_lens.metrics.robustness import Explain
from heta_lens.prediction.prediction import Prediction

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
    (("No Transition Gating", "HETA (w/o Transition)", "HETA-No-Gate"), {"variant": "no_gate"}),
    (("Uniform Transition",), {"variant": "uniform_gate"}),
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
            without_effect = quietly(partial(Heta, **every)).without_effect
            options = {name: value for name, value in every.items() if name not in without_effect}
        return Entry(" ".join([method, *(f"{name}={value}" for name, value in options.items())]), method, options)

    def full(self, **extra: Any) -> Heta:
        """Make the method whose parts all configurations of HETA share."""
        return Heta(**{**self.heta, **extra})


Known = dict[tuple[Any, ...], Attribution]


@dataclass(frozen=True, eq=False)
class Recombined:
    """A configuration of HETA made of the parts M, S and I of the ``full`` method, computed once per prediction."""

    configuration: Heta
    full: Heta
    known: Known

    def __call__(self, prediction: Prediction) -> Attribution:
        attribution, configuration = parts_of(self.full, prediction, self.known), self.configuration
        gate, curvature, information = (attribution.parts[name] for name in ("gate", "curvature", "information"))
        if configuration.recipe.gate != "flow":
            gate = torch.ones_like(gate) / (len(attribution) if configuration.recipe.gate == "uniform" else 1)
        beta, gamma = configuration.weights
        samples = Samples.even(curvature[None]) if beta else None
        parts = Parts(gate, samples, information if gamma else None, beta, gamma, configuration.combine)
        options = {**attribution.options, **settings(configuration)}
        return replace(attribution, scores=parts.score(configuration.balance), options=options)


def parts_of(full: Heta, prediction: Prediction, known: Known) -> Attribution:
    """Return the full method's attribution of a prediction, computed once."""
    activations = (prediction.embeddings, prediction.log_probs)
    raw = (value.detach().cpu().double().numpy().tobytes() for value in activations)
    key = (repr(full.chosen), prediction.target, len(prediction.prompt.user_hooks), *prediction.ids.tolist(), *raw)
    if key not in known:
        known[key] = full(prediction)
    return known[key]


def recombined(method: Explain, full: Heta, known: Known) -> Explain:
    """Return a method as a recombination of the full method's parts if possible, or else the method as it is."""
    if not isinstance(method, Heta) or (method.recipe.approximate and method.recipe != full.recipe):
        return method
    own = {name: value for name, value in method.chosen.items() if name not in ("variant", "beta", "gamma")}
    same = all(full.chosen.get(name) == value for name, value in own.items())
    plain = not (full.tolerance or full.prune or full.interactions)
    return Recombined(method, full, known) if same and plain and full.weights == (0.5, 0.5) else method
