"""The number of probes: the error of half the default, against the difference of two seeds, and coverage of intervals.

The model is SmolLM2, with one prompt. The expectation is the mean of all probes. The first token, which often has the
largest curvature, is left out.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

import heta_lens
from benchmarks import pages
from benchmarks.models import SMOLLM2, TEXT, predicted
from benchmarks.pages import Table
from heta_lens._util.numerics import student_t
from heta_lens.methods.heta.cost import product_batches
from heta_lens.methods.heta.curvature import ProbedHessian, Task
from heta_lens.methods.heta.heta import Heta
from heta_lens.methods.heta.probes import Readings, grouped_products
from heta_lens.prediction.prediction import Prediction

TAKEN, GROUPS, LARGE = 60, 16, 0.05
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


def readings(prediction: Prediction) -> list[Readings]:
    """Return the readings of every token's probes, of which any few are what a smaller number would be."""
    method = Heta(groups=GROUPS, probes=TAKEN)
    (window,), estimator = method.windows(prediction), method.estimator
    assert isinstance(estimator, ProbedHessian)
    task = Task(window, product_batches(method, [window]))
    with prediction.running():
        matrix = estimator.matrix(task, window.rerun())
        return grouped_products(matrix, 0, window.scored, TAKEN, GROUPS, task.batches.size).readings()


def estimates(found: list[Readings], few: slice) -> tuple[Float[Tensor, "pos"], Float[Tensor, "pos"]]:
    """Return the curvature of all tokens but the first, and standard errors, by a few of the probes."""
    samples = torch.stack([Readings(*(kind[few] for kind in own)).samples for own in found[1:]])
    return samples.mean(1), samples.std(1) / samples.shape[1] ** 0.5


def by_probes(prediction: Prediction) -> Iterator[list[str]]:
    found = readings(prediction)
    truth = estimates(found, slice(None))[0]
    large, before = truth > LARGE * truth.max(), replicates(found, DEFAULT)[0]
    apart = (before[:, None] - before).square().sum(-1)
    seeds = (apart.sum() / (len(before) * (len(before) - 1)) / truth.square().sum()).sqrt()
    for probes in ROWS:
        means, errors = replicates(found, probes)
        off = means - truth
        held = (off.abs() <= student_t(probes) * errors).double()
        shares = held.mean(), held[:, large].mean(), held[:, large].mean(0).min()
        error = (off.square().sum(1).mean() / truth.square().sum()).sqrt()
        shown = [f"{GROUPS * probes + 1}", f"{error:.3f}", f"{seeds:.3f}", *(f"{100 * share:.0f}" for share in shares)]
        yield ["SmolLM2", str(len(prediction)), str(probes), *shown]


def replicates(found: list[Readings], probes: int) -> tuple[Tensor, Tensor]:
    parts = [slice(begin, begin + probes) for begin in range(0, TAKEN - probes + 1, probes)]
    means, errors = zip(*(estimates(found, few) for few in parts), strict=True)
    return torch.stack(means), torch.stack(errors)


def write() -> None:
    model = heta_lens.load_model(SMOLLM2)
    pages.write("probes", [Table("", COLUMNS, [*by_probes(predicted(model, model.to_tokens(TEXT)))])])
