"""How far each cheaper variant is from full HETA, what it costs, and what its own diagnostics said about the error.

Over prompts, with 95 % bootstrap intervals:

    ρ, ρ of S    Spearman correlation with full HETA's scores, and of the curvature alone (the gate is common to both)
    L1           Σ |a/Σa - f/Σf|: 0 for the same shares, 2 for no token in common
    top ten      how many of the ten highest scores they share
    predicted    the diagnostic that speaks of this error, and its mean

A second table asks whether a tolerance is kept: over all tokens, how many scores are within it of their value by many
more probes, and how many products were saved.

The first row is full HETA with other probes: as near as chance lets two runs come. Every row uses the same seed, mask
and probes otherwise. Prompts are stories of the copied-word benchmark, three in a row, cut to the same length; without
the stories3M model they are random ids, read by a random model. Run `make bench`, or

    python -m benchmarks.variants.table [--model FOLDER] [--prompts N] [--length N]
"""

import argparse
import json
import runpy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from transformer_lens.model_bridge import TransformerBridge

import heta_lens
from benchmarks.report import average, markdown, proportion, show
from heta_lens.diagnostics import agreement

HERE = Path(__file__).parent
MODEL = HERE.parents[1] / ".." / "shared" / "models" / "stories3M"
STORIES = HERE.parent / "copied_words" / "prompts.jsonl"
RESULTS = HERE / "RESULTS.md"
PROBES, WINDOW = 10, 32
TOLERANCE, PRUNE, MANY = 0.05, 1e-3, 200

Predicted = Callable[[dict[str, Any]], tuple[str, float]]


def low_rank_tail(diagnostics: dict[str, Any]) -> tuple[str, float]:
    return "‖H - H_k‖ / ‖H‖", diagnostics["tail_energy_share"]


def window_leakage(diagnostics: dict[str, Any]) -> tuple[str, float]:
    return "gate mass moved", diagnostics["window_leakage"]["total"]


def chance(diagnostics: dict[str, Any]) -> tuple[str, float]:
    """Two runs whose errors are normal and independent differ by this much of the score."""
    spread = 2 / np.pi**0.5 * float(diagnostics["standard_errors"]["scores"].sum())
    return "chance alone", spread / diagnostics["total"]


WINDOWS = {"window": WINDOW}
PER_WINDOW = {**WINDOWS, "window_gate": "per_window"}
VARIANTS: dict[str, tuple[dict[str, Any], Predicted | None]] = {
    "full, other probes": ({"seed": 1}, chance),
    "full, support=row": ({"support": "row"}, None),
    "full, tolerance .05": ({"tolerance": TOLERANCE}, None),
    "full, tolerance .05, prune .001": ({"tolerance": TOLERANCE, "prune": PRUNE}, None),
    "lr, rank 8": ({"variant": "lr", "rank": 8}, low_rank_tail),
    "lr, rank 64": ({"variant": "lr", "rank": 64}, low_rank_tail),
    "lr, rank 256": ({"variant": "lr", "rank": 256}, low_rank_tail),
    "ls, last 1": ({"variant": "ls", "layers": 1}, None),
    "ls, last half": ({"variant": "ls", "layers": 0}, None),  # of however many layers there are
    "gs": ({"variant": "gs"}, None),
    "gn": ({"variant": "gn"}, None),
    "win, frozen": ({"variant": "win", **WINDOWS}, window_leakage),
    "win, frozen, a quarter": ({"variant": "win", "window": 0}, window_leakage),  # of the context
    "win, frozen, overlap 0": ({"variant": "win", "overlap": 0.0, **WINDOWS}, window_leakage),
    "win, frozen, per_window": ({"variant": "win", **PER_WINDOW}, window_leakage),
    "win, restrict, per_window": ({"variant": "win", "window_mode": "restrict", **PER_WINDOW}, window_leakage),
    "win, chunk": ({"variant": "win", "window_mode": "chunk", **WINDOWS}, window_leakage),
    "win, chunk, per_window": ({"variant": "win", "window_mode": "chunk", **PER_WINDOW}, window_leakage),
    "lr+win, rank 64": ({"variant": "lr+win", "rank": 64, **WINDOWS}, low_rank_tail),
    "ls+win, last half": ({"variant": "ls+win", "layers": 0, **WINDOWS}, window_leakage),
}


class Seen(NamedTuple):
    """One variant on one prompt."""

    ranks: float
    curvature_ranks: float
    l1: float
    top_ten: int
    hvps: int
    forwards: int
    predicted: tuple[str, float] | None


def main() -> None:
    arguments = parse()
    model, prompts, name = stories(arguments) if arguments.model.is_dir() else random_model(arguments)
    seen: dict[str, list[Seen]] = {name: [] for name in ("full", *VARIANTS)}
    for ids in track(prompts, "explaining", console=Console(stderr=True)):
        for variant, found in compared(model, ids):
            seen[variant].append(found)
    rows = [row(variant, found) for variant, found in seen.items()]
    title = (
        f"{name}: {len(prompts)} prompts of {prompts[0].shape[1]} tokens, {PROBES} probes, windows of {WINDOW}, "
        "95 % intervals"
    )
    show(title, COLUMNS, rows)
    judged = prompts[: arguments.judged]
    sure = kept(model, judged)
    sure_title = f"Is tolerance={TOLERANCE} kept? {len(judged)} prompts, judged by {MANY} other probes"
    show(sure_title, KEPT_COLUMNS, sure)
    if not arguments.quick:
        tables = (
            f"{markdown(COLUMNS, rows)}\n\n{sure_title}; 95 % intervals over tokens.\n\n{markdown(KEPT_COLUMNS, sure)}"
        )
        RESULTS.write_text(f"# The cheaper variants\n\nWritten by `make bench`. {title}.\n\n{LEGEND}\n\n{tables}\n")


def compared(model: Any, ids: torch.Tensor) -> Iterator[tuple[str, Seen]]:
    """Every variant on one prompt, beside the full method."""
    _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
    prediction = heta_lens.Prediction.from_cache(cache, tokens=ids)
    full = explain(prediction, {})
    yield "full", seen_as(full, full, None)
    for variant, (options, predicted) in VARIANTS.items():
        sizes = {"layers": prediction.lens.layers // 2, "window": len(prediction) // 4}
        own = {name: size for name, size in sizes.items() if options.get(name) == 0}
        yield variant, seen_as(explain(prediction, options | own), full, predicted)


def explain(prediction: heta_lens.Prediction, options: dict[str, Any]) -> heta_lens.Attribution:
    drawn: dict[str, Any] = {} if options.get("variant") == "gs" else {"probes": PROBES}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(makes up.*of this score|were too few)", UserWarning)
        return heta_lens.Heta(progress=False, **drawn | options)(prediction)


def seen_as(found: heta_lens.Attribution, full: heta_lens.Attribution, predicted: Predicted | None) -> Seen:
    scores = agreement(found.scores, full.scores)
    curvature = agreement(found.parts["curvature"], full.parts["curvature"])
    facts = {**found.diagnostics, "total": float(found.scores.sum())}
    return Seen(
        scores["rank_correlation"], curvature["rank_correlation"], scores["l1"], shared_top(found, full),
        facts["hvps"], facts["forwards"],
        None if predicted is None else predicted(facts),
    )  # fmt: skip


def shared_top(found: heta_lens.Attribution, full: heta_lens.Attribution) -> int:
    top, expected = (set(one.scores.topk(min(10, len(one))).indices.tolist()) for one in (found, full))
    return len(top & expected)


KEPT_COLUMNS = ["probes at most", "prune", "within the tolerance", "sure by their own account", "HVPs", "of full's"]


def kept(model: Any, prompts: list[torch.Tensor]) -> list[list[str]]:
    """How often a tolerance is kept, against the mean of many other probes."""
    asked = [(most, prune) for most in (PROBES, MANY) for prune in (0.0, PRUNE)]
    near: dict[Any, list[bool]] = {how: [] for how in asked}
    sure, hvps = dict.fromkeys(asked, 0), dict.fromkeys(asked, 0)
    for ids in track(prompts, "how sure", console=Console(stderr=True)):
        _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
        prediction = heta_lens.Prediction.from_cache(cache, tokens=ids)
        truth = explain(prediction, {"probes": MANY, "seed": 1}).scores
        for most, prune in asked:
            some = explain(prediction, {"probes": most, "tolerance": TOLERANCE, "prune": prune})
            near[most, prune] += ((some.scores - truth).abs() <= TOLERANCE * truth.max()).tolist()
            sure[most, prune] += len(some) - some.diagnostics["unsure"]
            hvps[most, prune] += some.diagnostics["hvps"]
    return [
        [
            *(str(most), f"{prune:g}", proportion(np.array(near[most, prune]), 1)),
            f"{sure[most, prune] / len(near[most, prune]):.1%}",
            *(f"{hvps[most, prune] / len(prompts):.0f}", f"{hvps[most, prune] / PROBES / len(near[most, prune]):.2f}"),
        ]
        for most, prune in asked
    ]


LEGEND = (
    'ρ and L1 (0 to 2, of scores that sum to 1) are against full HETA with the same probes; "full, other probes" is '
    'how near chance lets two runs come. "Predicted" is the diagnostic that speaks of the error; it is in its own '
    "unit and need not equal L1."
)
COLUMNS = ["variant", "ρ", "ρ of S", "L1", "top ten", "HVPs", "forwards", "predicted"]


def row(variant: str, found: list[Seen]) -> list[str]:
    ranks, curvature, l1, top, hvps, forwards = (np.array(column) for column in list(zip(*found, strict=True))[:6])
    said = [one.predicted for one in found if one.predicted is not None]
    predicted = f"{said[0][0]} {average(np.array([value for _, value in said]), 3)}" if said else ""
    costs = (f"{column.mean():.0f}" for column in (hvps, forwards))
    return [variant, average(ranks, 3), average(curvature, 3), average(l1, 3), average(top, 1), *costs, predicted]


def stories(arguments: argparse.Namespace) -> tuple[Any, list[torch.Tensor], str]:
    told = [json.loads(line)["ids"] for line in STORIES.read_text().splitlines()]
    spread = torch.linspace(0, len(told) - 3, arguments.prompts).long().tolist()  # over all kinds of story
    joined = [[told[at][0], *(token for story in told[at : at + 3] for token in story[1:])] for at in spread]
    model = runpy.run_path(str(arguments.model / "load.py"))["load_hooked"](str(arguments.model))
    return model, [torch.tensor([ids[: arguments.length]]) for ids in joined], "stories3M"


def random_model(arguments: argparse.Namespace) -> tuple[Any, list[torch.Tensor], str]:
    sizes = {"d_model": 64, "d_head": 16, "n_heads": 4, "n_layers": 4, "d_mlp": 256, "d_vocab": 500}
    torch.manual_seed(0)
    model = TransformerBridge.boot_native({**sizes, "n_ctx": 512, "act_fn": "gelu_new"}, device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval(), list(torch.randint(500, (arguments.prompts, 1, arguments.length))), "a random model"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL, help="folder of the stories3M model, with its load.py")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--length", type=int, default=96)
    parser.add_argument("--judged", type=int, default=3, help="prompts on which a tolerance is judged")
    parser.add_argument("--quick", action="store_true", help="for a look: write nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
