"""Grouped probes: the error of tokens that share Hessian–vector products (HVPs), its correction, and its intervals.

The expectation is the mean of 400 probes of every token alone, with another seed. The models are the demo model,
stories3M, and two small ones with random weights, with one prompt each.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from statistics import mean
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from rich.progress import track
from torch import Tensor

import heta_lens
from benchmarks import copied_words, pages
from benchmarks.models import MODELS, SIZES, available, load_stories3m, predicted, prompt, random_model
from benchmarks.pages import Table, average
from benchmarks.speed import spread
from heta_lens._util.numerics import student_t
from heta_lens._util.python import quietly, versions
from heta_lens.data.suites import suite
from heta_lens.evaluation import ask

SMALL = {"n_layers": 3, "d_model": 48, "n_heads": 3, "d_head": 16, "d_vocab": 500, "n_ctx": 256}
RANDOM = {
    "gpt2-like, small": {**SIZES["gpt2-like"], **SMALL, "d_mlp": 192},
    "llama-like, small": {**SIZES["llama-like"], **SMALL, "d_mlp": 128, "n_key_value_heads": 1},
}
NAMES = ["stories3M", "demo", *RANDOM]
LENGTH, SHORTER = 64, 40  # tokens of the prompts; of the intervals' prompts
MANY, MORE, SEED = 400, 2000, 10**6  # probes of the expectation; of the intervals' expectation; their seed
SEEDS, REPEATS = 5, 200  # draws; of the intervals
REFERENCE: dict[str, Any] = {"groups": None, "probes": 20, "seed": SEED}  # of a suite's prompts
ALL, HELD_OUT = 100, 40  # prompts of a suite; those measured
LARGEST = 20  # pairs


def write() -> None:
    tables = [
        table("Cross-talk taken out, or left in", CORRECTION_COLUMNS, CORRECTION_NOTE, correction_rows, suites()),
        table("Intervals", INTERVAL_COLUMNS, INTERVAL_NOTE, interval_rows, predictions(SHORTER)),
        table("Pairs of tokens", PAIR_COLUMNS, PAIR_NOTE, pair_rows, predictions(LENGTH)),
    ]
    pages.write("groups", tables)


def table(title: str, columns: list[str], note: str, rows_of: Any, cases: Iterable[tuple[str, Any]]) -> Table:
    rows = [row for name, case in track([*cases], rows_of.__name__) for row in rows_of(name, case)]
    return Table(title, columns, rows, note=f"{note} Measured with {', '.join(map(' '.join, versions().items()))}.")


def predictions(length: int) -> Iterator[tuple[str, Any]]:
    for name in available(NAMES):
        model = random_model(RANDOM[name]) if name in RANDOM else MODELS[name]()
        yield name, predicted(model, prompt(name, model, length))


def scored(prediction: heta_lens.Prediction, **options: Any) -> heta_lens.Attribution:
    return quietly(lambda: heta_lens.Heta(progress=False, **options)(prediction))


def combined(whole: heta_lens.Attribution, curvature: Tensor) -> Tensor:
    """Return the score of a curvature with the gate and information of another."""
    parts, weights = whole.parts, whole.options
    return parts["gate"] * (weights["beta"] * curvature + weights["gamma"] * parts["information"])


def shares(whole: heta_lens.Attribution, curvature: Float[Tensor, "pos"]) -> Float[Tensor, "pos"]:
    """Return the score with another curvature, sum 1."""
    score = combined(whole, curvature)
    return score / score.sum()


def cross_talk(result: heta_lens.Attribution) -> Float[Tensor, "pos"]:
    """Return the part of the curvature that was removed as cross-talk."""
    taken = result.diagnostics.cross_talk
    return torch.zeros_like(result.scores) if taken is None else taken


# ----------------------------------------------------------------------------------------------------------- cross-talk
CORRECTION_NOTE = f"""\
95 % intervals over templates.

Questions about stories, read by the demo model (recall), and stories whose next word is copied, read by stories3M
(copied), against {REFERENCE["probes"]} probes of every token alone. The error of S is Σ|Ŝ - S| / ΣS. *Before* is before
the cross-talk is taken out."""
CORRECTION_COLUMNS = [*("prompts", "of them", "L1", "L1 before", "error of S, %", "before, %", "ΣS, %", "ΣS before, %")]


class Prompt(NamedTuple):
    prediction: heta_lens.Prediction
    template: str


def recall() -> list[Prompt]:
    model = heta_lens.load_demo_model()
    return [Prompt(ask(model, one), str(one.template)) for one in spread(suite("recall", limit=ALL), HELD_OUT)]


def copied() -> list[Prompt]:
    model, stories = load_stories3m(), spread(copied_words.prompts(), ALL)
    return [
        Prompt(predicted(model, torch.tensor([one["ids"]]), one["target_id"]), one["template"])
        for one in spread(stories, HELD_OUT)
    ]


def suites() -> Iterator[tuple[str, list[Prompt]]]:
    yield "recall", recall()
    if available(["stories3M"]):
        yield "copied", copied()


def correction_rows(name: str, prompts: list[Prompt]) -> Iterator[list[str]]:
    both = [with_and_without(one.prediction) for one in prompts]
    compared = [[value for pair in zip(out, left, strict=True) for value in pair] for out, left in both]
    templates = [one.template for one in prompts]
    yield [name, str(len(prompts)), *(average(column, templates, digits=3) for column in zip(*compared, strict=True))]


class Errors(NamedTuple):
    l1: float  # of the score
    curvature: float  # in percent of the sum
    total: float  # of the sum, in percent


def with_and_without(prediction: Any) -> tuple[Errors, Errors]:
    """Return the errors with the cross-talk taken out, and left in."""
    expected, one = scored(prediction, **REFERENCE), scored(prediction)
    curvature, own = expected.parts["curvature"], one.parts["curvature"]

    def errors(kind: Tensor) -> Errors:
        l1 = float((shares(expected, kind) - shares(expected, curvature)).abs().sum())
        apart = (kind - curvature) / curvature.sum() * 100
        return Errors(l1, float(apart.abs().sum()), float(apart.sum()))

    return errors(own), errors(own + cross_talk(one))


# ------------------------------------------------------------------------------------------------------------ intervals
INTERVAL_NOTE = f"""\
{SHORTER} tokens; how often the 95 % intervals of scores hold the mean of {MORE} probes of every token alone in
{REPEATS} seeds, over all tokens and of the worst; the median half-width; how much of the curvature that
products showed was cross-talk."""
INTERVAL_COLUMNS = [
    *("model", "groups", "probes", "held, %", "worst token, %", "half-width / score", "cross-talk / read, %")
]


def interval_rows(name: str, prediction: Any) -> Iterator[list[str]]:
    curvature = scored(prediction, groups=None, probes=MORE, seed=SEED).parts["curvature"]
    held, widths, talk = list[Tensor](), list[float](), list[float]()
    for seed in range(REPEATS):
        one = scored(prediction, seed=seed)
        expected, (low, high) = combined(one, curvature), one.interval()
        held.append((low <= expected) & (expected <= high))
        widths.append(float(((high - low) / 2 / one.scores).nanmedian()))
        taken, kept = float(cross_talk(one).sum()), float(one.parts["curvature"].sum())
        talk.append(taken / (taken + kept) * 100)
    often, usual = torch.stack(held).double().mean(0) * 100, heta_lens.Heta()
    shown = [f"{float(often.mean()):.1f}", f"{float(often.min()):.1f}", f"{mean(widths):.2f}", f"{mean(talk):.1f}"]
    yield [name, str(usual.groups), str(usual.probes), *shown]


# ---------------------------------------------------------------------------------------------------------------- pairs
PAIR_NOTE = f"""\
The mean relative error of the {LARGEST} largest sizes; how many of these are among the {LARGEST} largest found; the
error of all, relative to their sum; how often ± t standard errors (t of 10 samples) hold."""
PAIR_COLUMNS = [*("model", "groups", "HVPs", "error of the 20 largest, %", "of these found", "L1 of all, %", "held, %")]


def pair_rows(name: str, prediction: Any) -> Iterator[list[str]]:
    pairs: Any = partial(scored, prediction, interactions=True, gamma=0)
    upper = torch.triu_indices(len(prediction), len(prediction), 1).unbind()

    expected = pairs(groups=None, probes=MANY, seed=SEED).interactions[upper]
    largest = expected.argsort(descending=True)[:LARGEST]
    for groups in (None, 16, 32):
        results = [pairs(groups=groups, seed=seed) for seed in range(SEEDS)]
        sizes = torch.stack([result.interactions[upper] for result in results])
        errors = torch.stack([result.standard_errors["interactions"][upper] for result in results])  # type: ignore[index]
        off = (sizes - expected).abs()
        held = off <= student_t(torch.tensor([results[0].options["probes"]])) * errors
        first = sizes.argsort(descending=True)[:, :LARGEST]
        shown = [
            f"{float((off / expected)[:, largest].mean()) * 100:.0f}",
            f"{float(torch.isin(first, largest).double().sum(1).mean()):.1f}",
            f"{float(off.sum(1).mean() / expected.sum()) * 100:.0f}",
            f"{float(held.double().mean()) * 100:.0f}",
        ]
        yield [name, str(groups), str(results[0].diagnostics["hvps"]), *shown]
