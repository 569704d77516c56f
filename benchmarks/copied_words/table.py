"""How often an attribution finds the word that was copied, on stories whose next word repeats an earlier one.

The prompts (see `build.py`) were fixed by the model's probabilities alone, before any attribution was computed. For
each score the table gives, with 95 % intervals over prompts,

    first, in five   how often a copied occurrence is the highest-scored token, or one of the five highest
    ρ(Δ), ρ(|Δ|)     the mean Spearman correlation of the scores with the tokens' interventional effects:
                     Δ_i = log p(target) - log p(target with token i's embedding replaced by the context's mean)

Special tokens are not candidates, for any score. Run `make bench`, or

    python -m benchmarks.copied_words.table [--model FOLDER] [--limit N]
"""

import argparse
import json
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

import heta_lens
from benchmarks.report import average, markdown, proportion, show
from heta_lens.diagnostics import rank_correlation
from heta_lens.masking import masked_copies

HERE = Path(__file__).parent
MODEL = HERE.parents[1] / ".." / "shared" / "models" / "stories3M"
PROMPTS = HERE / "prompts.jsonl"
RESULTS = HERE / "RESULTS.md"
CHUNK = 16


class Judged(NamedTuple):
    """One score on one prompt."""

    first: bool
    in_five: bool
    effect: float
    size: float


def main() -> None:
    arguments = parse()
    if not arguments.model.is_dir():
        sys.exit(f"no model at {arguments.model}: give the folder of the stories3M model with --model")
    prompts = [json.loads(line) for line in PROMPTS.read_text().splitlines()][: arguments.limit]
    model = runpy.run_path(str(arguments.model / "load.py"))["load_hooked"](str(arguments.model))
    judged: dict[str, list[Judged]] = {}
    for prompt in track(prompts, "explaining", console=Console(stderr=True)):
        for name, verdict in judge(model, prompt).items():
            judged.setdefault(name, []).append(verdict)
    rows = [row(name, verdicts) for name, verdicts in judged.items()]
    title = f"stories3M, {len(prompts)} prompts, 95 % intervals (Wilson for shares, bootstrap over prompts for means)"
    show(title, COLUMNS, rows)
    if arguments.limit is None:
        RESULTS.write_text(f"# The copied word\n\nWritten by `make bench`: {title}.\n\n{markdown(COLUMNS, rows)}\n")


def judge(model: Any, prompt: dict[str, Any]) -> dict[str, Judged]:
    """Every score on one prompt."""
    ids = torch.tensor([prompt["ids"]])
    _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
    prediction = heta_lens.Prediction.from_cache(cache, prompt["target_id"], tokens=ids)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*makes up.*of this score", UserWarning)
        heta = heta_lens.Heta(progress=False)(prediction)
    scores = {
        "HETA": heta.scores,
        'HETA, balance="sum"': heta.diagnostics["balanced"],
        "gate alone": heta.parts["gate"],
        "curvature alone": heta.parts["curvature"],
        "information alone": heta.parts["information"],
        "gradient norm": gradient_norm(prediction),
    }
    candidates = (~heta.special).nonzero().flatten()
    effects = interventions(prediction)[candidates]
    copied = torch.isin(candidates, torch.tensor(prompt["source_positions"]))
    return {name: verdict(score[candidates], copied, effects) for name, score in scores.items()}


def verdict(scores: Tensor, copied: Tensor, effects: Tensor) -> Judged:
    found = copied[scores.argsort(descending=True)]
    effect, size = (rank_correlation(scores, against) for against in (effects, effects.abs()))
    return Judged(bool(found[0]), bool(found[:5].any()), effect, size)


def gradient_norm(prediction: heta_lens.Prediction) -> Tensor:
    """‖∂ log p / ∂e_i‖₂."""
    with prediction.running():
        embeddings = prediction.embeddings.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(prediction.objective_from(0)(embeddings), embeddings)
    return gradient.norm(dim=-1)


def interventions(prediction: heta_lens.Prediction) -> Tensor:
    """How much of the target's log-probability each token's embedding carries, against the context's mean embedding."""
    mean, clean = prediction.embeddings.mean(0), prediction.objective(prediction.log_probs)
    with prediction.running(), torch.no_grad():
        masked = [
            prediction.objective(prediction.log_probs_from(0)(masked_copies(prediction.embeddings, positions, mean)))
            for positions in torch.arange(len(prediction)).split(CHUNK)
        ]
    return clean - torch.cat(masked)


def row(name: str, verdicts: list[Judged]) -> list[str]:
    first, in_five, effect, size = (np.array(column) for column in zip(*verdicts, strict=True))
    return [name, proportion(first), proportion(in_five), average(effect), average(size)]


COLUMNS = ["score", "copied word first", "in the top five", "ρ(Δ)", "ρ(|Δ|)"]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL, help="folder of the stories3M model, with its load.py")
    parser.add_argument("--limit", type=int, help="only the first N prompts, for a quick look; writes nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
