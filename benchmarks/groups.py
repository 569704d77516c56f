"""How good grouped probes are: their error at equal numbers of products, how often their intervals hold, and pairs.

`python -m benchmarks.groups` writes GROUPS.md. All are against the expectation: the mean of many probes of every token
alone, with another seed.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, NamedTuple

import torch
import typer
from jaxtyping import Float
from rich.progress import track
from torch import Tensor

import heta_lens
from benchmarks import stories3m
from benchmarks.report import Table, write
from benchmarks.speed.models import MODELS, SIZES, prompt, random_model
from benchmarks.speed.parts import spread
from heta_lens._util.caller_warnings import quietly
from heta_lens._util.sample_statistics import student_t
from heta_lens._util.versions import versions
from heta_lens.methods.heta.estimators import Problem
from heta_lens.methods.heta.segments import whole_segment

PAGE = Path(__file__).parent / "GROUPS.md"
SMALL = {"n_layers": 3, "d_model": 48, "n_heads": 3, "d_head": 16, "d_vocab": 500, "n_ctx": 256}
RANDOM = {
    "gpt2-like, small": {**SIZES["gpt2-like"], **SMALL, "d_mlp": 192},
    "llama-like, small": {**SIZES["llama-like"], **SMALL, "d_mlp": 128, "n_key_value_heads": 1},
}
LENGTH, SHORTER = 64, 40  # tokens of the prompts: for errors, and for intervals
MANY, MORE, SEED = 400, 2000, 10**6  # probes of the expectation, that for intervals, and their seed
SEEDS, REPEATS = 5, 200  # draws: for errors, and for intervals
GROUPS, PRODUCTS = (4, 8, 16, 32), (40, 80, 160, 320)


NAMES = ("stories3M", "demo", *RANDOM)
Rows = Callable[[str, Any], Iterable[list[str]]]


class Scores(NamedTuple):
    """The score with a curvature, as `Heta` combines it with the other parts."""

    whole: heta_lens.Attribution

    def of(self, curvature: Float[Tensor, "pos"]) -> Float[Tensor, "pos"]:
        parts, beta, gamma = self.whole.parts, self.whole.options["beta"], self.whole.options["gamma"]
        score = parts["gate"] * (beta * curvature + gamma * parts["information"])
        return score / score.sum()


def cases(length: int, names: Iterable[str] = NAMES) -> Iterator[tuple[str, Any]]:
    """Models by name, each with a prediction."""
    for name in names:
        if name == "stories3M" and not stories3m.MODEL.is_dir():
            continue
        model = random_model(RANDOM[name]) if name in RANDOM else MODELS[name]()
        ids = prompt(name, model, length)
        _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
        yield name, heta_lens.Prediction.from_cache(cache, tokens=ids)


def found(prediction: Any, **options: Any) -> heta_lens.Attribution:
    return quietly(lambda: heta_lens.Heta(progress=False, **options)(prediction))


def expectation(prediction: Any, probes: int = MANY) -> heta_lens.Attribution:
    return found(prediction, groups=None, probes=probes, seed=SEED)


# ------------------------------------------------------------------------------------------------------------- errors
ERROR_COLUMNS = ["model", "groups", "probes", "products", "L1", "L1 before", "ΣS, %", "ΣS before, %"]


def error_rows(name: str, prediction: Any) -> Iterator[list[str]]:
    """Of as many products, in few groups with many probes or the other way round; and of each token alone."""
    expected = expectation(prediction)
    score, curvature = Scores(expected), expected.parts["curvature"]
    ways: list[tuple[int | None, int]] = [(None, probes) for probes in (2, 5, 10)]
    ways += [(groups, products // groups) for products, groups in product(PRODUCTS, GROUPS) if products // groups >= 2]
    for groups, probes in ways:
        results = [found(prediction, groups=groups, probes=probes, seed=seed) for seed in range(SEEDS)]
        own = [result.parts["curvature"] for result in results]
        before = [result.parts["curvature"] + cross_talk(result) for result in results]
        errors, biases = [], []
        for kind in (own, before):
            errors.append(mean(float((score.of(one) - score.of(curvature)).abs().sum()) for one in kind))
            biases.append(mean(float(one.sum() / curvature.sum() - 1) * 100 for one in kind))
        shown = (f"{errors[0]:.3f}", f"{errors[1]:.3f}", f"{biases[0]:+.1f}", f"{biases[1]:+.1f}")
        yield [name, str(groups), str(probes), str(results[0].diagnostics["hvps"]), *shown]


def cross_talk(result: heta_lens.Attribution) -> Float[Tensor, "pos"]:
    """What was taken out of the curvature."""
    taken = result.diagnostics.cross_talk
    return torch.zeros_like(result.scores) if taken is None else taken


# ---------------------------------------------------------------------------------------------------------- intervals
INTERVAL_COLUMNS = [
    "model",
    "groups",
    "probes",
    "held, %",
    "worst token, %",
    "half-width / score",
    "cross-talk / read, %",
]


def interval_rows(name: str, prediction: Any) -> Iterator[list[str]]:
    """How often the 95 % intervals of scores hold the expectation."""
    expected = expectation(prediction, MORE).scores
    for groups, probes in [(16, 10)]:
        held, widths, shares = list[Tensor](), list[float](), list[float]()
        for seed in range(REPEATS):
            one = found(prediction, groups=groups, probes=probes, seed=seed)
            low, high = one.interval()
            held.append((low <= expected) & (expected <= high))
            widths.append(float(((high - low) / 2 / one.scores).median()))
            taken, kept = float(cross_talk(one).sum()), float(one.parts["curvature"].sum())
            shares.append(taken / (taken + kept) * 100)
        often = torch.stack(held).double().mean(0) * 100
        shown = [
            f"{float(often.mean()):.1f}",
            f"{float(often.min()):.1f}",
            f"{mean(widths):.2f}",
            f"{mean(shares):.1f}",
        ]
        yield [name, str(groups), str(probes), *shown]


# -------------------------------------------------------------------------------------------------------------- pairs
PAIR_COLUMNS = [
    "model",
    "groups",
    "products",
    "error of the 20 largest, %",
    "of these found",
    "L1 of all, %",
    "held, %",
]
LARGEST = 20


def pair_rows(name: str, prediction: Any) -> Iterator[list[str]]:
    """How near the sizes of pairs are, where tokens share products and where they do not."""
    pairs = partial(found, prediction, interactions=True, gamma=0)
    upper = torch.triu_indices(len(prediction), len(prediction), 1).unbind()
    expected = whole(pairs(groups=None, probes=MANY, seed=SEED).interactions)[upper]
    largest = expected.argsort(descending=True)[:LARGEST]
    for groups in (None, 16, 32):
        results = [pairs(groups=groups, seed=seed) for seed in range(SEEDS)]
        sizes = torch.stack([whole(result.interactions)[upper] for result in results])
        errors = torch.stack([whole(result.standard_errors["interactions"])[upper] for result in results])
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


# ------------------------------------------------------------------------------------------------------ early and late
SPLIT_COLUMNS = ["model", "way", "whole runs' worth of products", "L1"]


def split_rows(name: str, prediction: Any) -> Iterator[list[str]]:
    """Early and late tokens in groups of their own, so that the late ones' products run the later half alone.

    The error is that of sharing alone: to one-by-one probes with the same signs.
    """
    n, probes = len(prediction), heta_lens.Heta().probes
    half = n // 2
    ways = {
        "16 groups": (16, [(0, n)], 16.0),
        "8 early, 8 late": (8, [(0, half), (half, n)], 8 * (1 + (n - half) / n)),
        "12 groups": (12, [(0, n)], 12.0),
    }
    score = Scores(found(prediction, probes=2))
    with prediction.running():
        problem = Problem(whole_segment(prediction), prediction.prompt.batches("auto", n, products=True))

        def curvature(groups: int | None, seed: int, begin: int, end: int) -> Tensor:
            estimator = replace(heta_lens.Heta(seed=seed).estimator, groups=groups)  # type: ignore[type-var]
            return estimator.estimate(problem, dict.fromkeys(range(begin, end), range(probes))).mean

        alone = [score.of(curvature(None, seed, 0, n)) for seed in range(SEEDS)]
        for way, (groups, parts, products) in ways.items():
            errors = [
                float(
                    (score.of(torch.cat([curvature(groups, seed, *part) for part in parts])) - alone[seed]).abs().sum()
                )
                for seed in range(SEEDS)
            ]
            yield [name, way, f"{products * probes:.0f}", f"{mean(errors):.4f}"]


def whole(found: Tensor | None) -> Tensor:
    assert found is not None
    return found


# ---------------------------------------------------------------------------------------------------- longer contexts
LONGER_COLUMNS = ["model", "tokens", "compared", "L1 to one by one", "L1 of one by one to another seed", "ΣS, %"]
LONGER, COMPARED = (32, 128, 512), 32  # contexts, and of how many of their tokens each is probed alone


def longer_cases() -> Iterator[tuple[str, Any]]:
    for length in LONGER:
        yield next(cases(length, ["gpt2-like"]))


def longer_rows(name: str, prediction: Any) -> Iterator[list[str]]:
    """What sharing adds to chance, of tokens evenly over a context too long to probe them all alone."""
    tokens = spread(range(len(prediction)), COMPARED)
    gate = found(prediction, variant="transition_only").parts["gate"][tokens]
    probes = range(heta_lens.Heta().probes)
    with prediction.running():
        problem = Problem(whole_segment(prediction), prediction.prompt.batches("auto", len(prediction), products=True))

        def scores(seed: int, groups: int | None) -> Tensor:
            estimator = replace(heta_lens.Heta(seed=seed).estimator, groups=groups)  # type: ignore[type-var]
            wanted = range(len(prediction)) if groups else tokens
            mean = estimator.estimate(problem, dict.fromkeys(wanted, probes)).mean
            return gate * (mean[tokens] if groups else mean)

        shared, alone, other = scores(0, heta_lens.Heta().groups), scores(0, None), scores(1, None)
    sizes = [str(len(prediction)), str(len(tokens))]
    errors = [f"{float((one / one.sum() - alone / alone.sum()).abs().sum()):.4f}" for one in (shared, other)]
    yield [name, *sizes, *errors, f"{float(shared.sum() / alone.sum() - 1) * 100:+.1f}"]


SECTIONS: dict[str, tuple[str, list[str], Callable[[], Iterable[tuple[str, Any]]], Rows]] = {
    "errors": ("Error at equal numbers of products", ERROR_COLUMNS, partial(cases, LENGTH), error_rows),
    "intervals": ("Intervals", INTERVAL_COLUMNS, partial(cases, SHORTER), interval_rows),
    "longer": ("Longer contexts", LONGER_COLUMNS, longer_cases, longer_rows),
    "pairs": ("Pairs of tokens", PAIR_COLUMNS, partial(cases, LENGTH), pair_rows),
    "split": ("Early and late tokens apart", SPLIT_COLUMNS, partial(cases, LENGTH), split_rows),
}


def main(only: Annotated[str, typer.Option(help=f"One of {', '.join(SECTIONS)}; the others stay.")] = "") -> None:
    if only not in ("", *SECTIONS):
        raise typer.BadParameter(f"{only!r} is none of {', '.join(SECTIONS)}")
    tables = []
    for key, (title, columns, cases_of, rows_of) in SECTIONS.items():
        rows = list[list[str]]()
        if only in ("", key):
            for name, prediction in track(list(cases_of()), key):
                rows += rows_of(name, prediction)
        tables.append(Table(title, columns, rows, missing=int(not rows)))
    measured = ", ".join(map(" ".join, versions().items()))
    preamble = f"# Grouped probes\n\nWritten by `python -m benchmarks.groups` with {measured}. {LEGEND}"
    write(PAGE, preamble, tables)


LEGEND = f"""\
The expectation is the
mean of {MANY} probes of every token alone ({MORE} for intervals), with another seed. Scores sum to 1, and L1 goes from
0 to 2. There is one prompt a model; the small models have 3 layers of width 48 and random weights.

Errors: {LENGTH} tokens, means over {SEEDS} seeds, the same for every row; `None` probes every token alone. *Before* is
before the cross-talk is taken out; ΣS is how far the sum of the curvature is off (where `None` is off as well, by
chance). Taking it out removes most of the bias of ΣS, and adds some noise. Intervals: {SHORTER} tokens; how
often the 95 % intervals of scores hold the expectation in {REPEATS} seeds, over all tokens and of the worst; the median
half-width; how much of the curvature that products showed was cross-talk. Pairs, of the errors' prompts: the mean
relative error of the {LARGEST} largest sizes; how many of these are among the {LARGEST} largest found; the error of
all, relative to their sum; how often ± t standard errors (t of 10 samples) hold. Longer contexts: gate times
curvature of {COMPARED} tokens evenly over them, from products that all tokens share, against probing each alone with
the same signs; beside it, what other signs change. Early and late tokens apart: late
tokens' products need not run what is before them, which was tried: what it saves, fewer groups save as well, with the
same error (to one-by-one probes with the same signs)."""


if __name__ == "__main__":
    typer.run(main)
