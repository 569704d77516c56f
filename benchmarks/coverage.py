"""Coverage of 95 % intervals, and the size of tests: how often equal means are called different.

Each cell draws clusters from a population whose value is known. For the test, two methods are drawn whose values are
equal in the population, and differ in how they are distributed.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.progress import track

from benchmarks import pages
from heta_lens.evaluation.statistics import CONFIDENCE, Aggregate, difference, estimate, log_ratio, mean

TRIALS = 1000
CLUSTERS = (15, 42, 100)
TOO_SKEWED = {("lognormal, sigma 1.5", 15)}
"""Samples that too often lack the values that make the mean: no tried interval reaches .93, and no test .06."""

Sample: TypeAlias = tuple[Float[np.ndarray, "n k"], list[int]]
Draw: TypeAlias = Callable[[np.random.Generator, int], Sample]


def each(values: Float[np.ndarray, "n"]) -> Sample:
    return values[:, None], list(range(len(values)))


def unequal(draw: np.random.Generator, count: int) -> Sample:
    owners = np.repeat(np.arange(count), draw.integers(1, 9, count))
    return (draw.normal(size=count)[owners] + draw.normal(size=len(owners)))[:, None], owners.tolist()


def ratios(draw: np.random.Generator, count: int) -> Sample:
    return draw.lognormal([0.0, -2.0], [1.0, 0.8], (count, 2)), list(range(count))


KINDS: Mapping[str, tuple[Draw, Aggregate, float]] = {
    "normal": (lambda draw, count: each(draw.normal(size=count)), mean, 0.0),
    "unequal clusters": (unequal, mean, 0.0),
    "binary, .5": (lambda draw, count: each(1.0 * (draw.random(count) < 0.5)), mean, 0.5),
    "binary, .9": (lambda draw, count: each(1.0 * (draw.random(count) < 0.9)), mean, 0.9),
    "binary, .98": (lambda draw, count: each(1.0 * (draw.random(count) < 0.98)), mean, 0.98),
    "lognormal, sigma .8": (lambda draw, count: each(draw.lognormal(0, 0.8, count)), mean, float(np.exp(0.32))),
    "lognormal, sigma 1.5": (lambda draw, count: each(draw.lognormal(0, 1.5, count)), mean, float(np.exp(1.125))),
    "log-ratio": (ratios, log_ratio, 0.5 - (0.32 - 2)),
}


# Draws of two methods: the values of the second stand behind those of the first.
def independent(kind: str) -> Draw:
    """Return a draw of two methods with independent values of the same distribution."""
    draw_from = KINDS[kind][0]

    def draw_pair(draw: np.random.Generator, count: int) -> Sample:
        (ours, owners), (theirs, _) = draw_from(draw, count), draw_from(draw, count)
        return np.hstack([ours, theirs]), owners

    return draw_pair


def against_mean(kind: str) -> Draw:
    """Return a draw of a method, and of another whose values are all equal to the mean of the first."""
    draw_from, _, true = KINDS[kind]

    def draw_pair(draw: np.random.Generator, count: int) -> Sample:
        ours, owners = draw_from(draw, count)
        return np.hstack([ours, np.full_like(ours, true)]), owners

    return draw_pair


def ratio_pair(draw: np.random.Generator, count: int) -> Sample:
    """Draw two methods beside the same random scores, with very different skew about the same mean."""
    random = draw.lognormal(-2.0, 0.8, count)
    ours, theirs = draw.lognormal(0.5 - 0.125, 0.5, count), draw.lognormal(0.0, 1.0, count)
    return np.stack([ours, random, theirs, random], 1), list(range(count))


PAIRS: Mapping[str, tuple[Draw, Aggregate]] = {
    **{kind: (independent(kind), mean) for kind in ("normal", "binary, .5", "binary, .9", "binary, .98")},
    **{
        kind: (against_mean(kind), mean) for kind in ("unequal clusters", "lognormal, sigma .8", "lognormal, sigma 1.5")
    },
    "log-ratio": (ratio_pair, log_ratio),
}


class Held(NamedTuple):
    """The coverage of intervals and of plain percentiles, and the median width."""

    coverage: float
    percentiles: float
    width: float


def measured(kind: tuple[Draw, Aggregate, float], count: int, trials: int) -> Held:
    draw_from, aggregate, true = kind
    draw, held, widths = np.random.default_rng(count), np.zeros(2), []
    for _ in range(trials):
        sample = draw_from(draw, count)
        interval, plain_interval = estimate(*sample, aggregate), estimate(*sample, aggregate, smooth=False)
        held += [one.low - 1e-9 <= true <= one.high + 1e-9 for one in (interval, plain_interval)]
        widths.append(interval.high - interval.low)
    coverage, percentiles = (held / trials).tolist()
    return Held(coverage, percentiles, float(np.median(widths)))


def size(kind: tuple[Draw, Aggregate], count: int, trials: int) -> float:
    """Return the rate at which equal methods are called different."""
    (draw_from, aggregate), draw, p_values = kind, np.random.default_rng(count), []
    for _ in range(trials):
        values, owners = draw_from(draw, count)
        ours, theirs = np.split(values, 2, axis=1)
        p_values.append(difference(ours, theirs, owners, aggregate).p)
    return float(np.mean(np.array(p_values) < 1 - CONFIDENCE))


def rows() -> Iterator[list[str]]:
    for name, kind in track(KINDS.items(), "measuring", console=Console(stderr=True)):
        for count in CLUSTERS:
            held = measured(kind, count, TRIALS)
            wrong = size(PAIRS[name], count, TRIALS)
            missed = " (not reached)" * ((name, count) in TOO_SKEWED)
            numbers = [f"{held.coverage:.3f}{missed}", f"{held.percentiles:.3f}", f"{held.width:.3g}"]
            yield [name, str(count), *numbers, f"{wrong:.3f}{missed}"]


def write() -> None:
    columns = ["values", "clusters", "coverage", "of percentiles", "median width", "size of the test"]
    pages.write("coverage", [pages.Table("", columns, [*rows()])])
