"""The number of probes: the error of half the default, against the difference of two seeds; and of stopping early.

The expectation is the mean of all probes of a prompt. The first token, which often has the largest curvature, is left
out.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks import pages
from benchmarks.models import MODELS, available, prompt
from benchmarks.pages import Table
from heta_lens._util.numerics import student_t
from heta_lens.data.recall import stories
from heta_lens.methods.heta.cost import product_batches
from heta_lens.methods.heta.curvature import ProbedHessian, Task
from heta_lens.methods.heta.heta import Heta
from heta_lens.methods.heta.probes import Readings, grouped_products
from heta_lens.prediction.prediction import Prediction

TAKEN, GROUPS, LARGE = {"demo": 200, "SmolLM2": 60}, 16, 0.05
STORIES, SEEDS = 3, 40
ROWS = (4, 5, 6, 8, 10)
DEFAULT = 10  # probes
COLUMNS = [
    "model",
    "tokens",
    "probes",
    "HVPs",
    "error",
    "two seeds",
    "held, %",
    "held of large, %",
    "worst of large, %",
]
STOPPED = ["model", "tokens", "how", "HVPs", "error", "held, %"]


def predictions(name: str) -> Iterator[Prediction]:
    model = MODELS[name]()
    texts = [story.text for _, story in zip(range(STORIES), stories("test"), strict=False)]
    for ids in map(model.to_tokens, texts) if name == "demo" else [prompt(name, model, 51)]:
        yield Prediction.from_cache(model.run_with_cache(ids)[1], tokens=ids)


def readings(prediction: Prediction, probes: int) -> list[Readings]:
    """Return the readings of every token's probes, of which any few are what a smaller number would be."""
    method = Heta(groups=GROUPS, probes=probes)
    (window,), estimator = method.windows(prediction), method.estimator
    assert isinstance(estimator, ProbedHessian)
    task = Task(window, product_batches(method, [window]))
    with prediction.running():
        matrix = estimator.matrix(task, window.rerun())
        every = dict.fromkeys(window.scored, range(probes))
        return grouped_products(matrix, 0, every, GROUPS, task.batches.size).readings()


def estimates(found: list[Readings], few: slice) -> tuple[Float[Tensor, "pos"], Float[Tensor, "pos"]]:
    """Return the curvature of all tokens but the first, and standard errors, by a few of the probes."""
    samples = torch.stack([Readings(*(kind[few] for kind in own)).samples for own in found[1:]])
    return samples.mean(1), samples.std(1) / samples.shape[1] ** 0.5


def by_probes(name: str, prediction: Prediction) -> Iterator[list[str]]:
    found, taken = readings(prediction, TAKEN[name]), TAKEN[name]
    truth = estimates(found, slice(None))[0]
    large, before = truth > LARGE * truth.max(), replicates(found, DEFAULT, taken)[0]
    apart = (before[:, None] - before).square().sum(-1)
    seeds = (apart.sum() / (len(before) * (len(before) - 1)) / truth.square().sum()).sqrt()
    for probes in ROWS:
        means, errors = replicates(found, probes, taken)
        off = means - truth
        held = (off.abs() <= student_t(torch.tensor([probes])) * errors).double()
        shares = held.mean(), held[:, large].mean(), held[:, large].mean(0).min()
        error = (off.square().sum(1).mean() / truth.square().sum()).sqrt()
        shown = [f"{GROUPS * probes + 1}", f"{error:.3f}", f"{seeds:.3f}", *(f"{100 * share:.0f}" for share in shares)]
        yield [name, str(len(prediction)), str(probes), *shown]


def replicates(found: list[Readings], probes: int, taken: int) -> tuple[Tensor, Tensor]:
    parts = [slice(begin, begin + probes) for begin in range(0, taken - probes + 1, probes)]
    means, errors = zip(*(estimates(found, few) for few in parts), strict=True)
    return torch.stack(means), torch.stack(errors)


def stopped(prediction: Prediction) -> Iterator[list[str]]:
    """Compare fixed numbers of probes with stopping at a half-width of 5 % of the largest score, on the demo model."""
    truth = estimates(readings(prediction, TAKEN["demo"]), slice(None))[0]
    ways: dict[str, dict[str, Any]] = {
        "probes=10": {"probes": 10},
        "probes=5": {"probes": 5},
        "tolerance=0.05, probes=10": {"probes": 10, "tolerance": 0.05},
    }
    for title, options in ways.items():
        method = Heta(variant="hessian_only", gate="none", progress=False, **options)
        offs, held, hvps = [], [], 0
        for seed in range(SEEDS):
            attribution = replace(method, seed=seed)(prediction)
            errors = attribution.diagnostics["standard_errors"]["curvature"][1:]
            counts = attribution.diagnostics.get("probes", method.probes) * torch.ones(len(prediction), dtype=torch.int)
            offs.append(attribution.parts["curvature"][1:] - truth)
            held.append((offs[-1].abs() <= student_t(counts[1:]) * errors).double().mean())
            hvps += attribution.diagnostics["hvps"]
        error = (torch.stack(offs).square().sum(1).mean() / truth.square().sum()).sqrt()
        share = 100 * torch.stack(held).mean()
        yield ["demo", str(len(prediction)), title, f"{hvps / SEEDS:.0f}", f"{error:.3f}", f"{share:.0f}"]


NOTE = f"""\
With `tolerance=0.05`, a token is probed until the half-width of its interval is within 5 % of the
largest score; `probes` is the most it gets. Samples of S are skewed, with a spread of half their mean and more: no
important token is certain after ten probes, so that nothing is saved, and a token whose first probes happen to be alike
stops with too small an S and too narrow an interval. So the default does not stop early. Expectation and measures are
those of above, by {SEEDS} seeds."""


def write() -> None:
    for name in available([*TAKEN]):
        rows = [row for prediction in predictions(name) for row in by_probes(name, prediction)]
        pages.write("probes", [Table(f"fewer probes, {name}", COLUMNS, rows)])
    pages.write("probes", [Table("stopping early", STOPPED, [*stopped(next(predictions("demo")))], note=NOTE)])
