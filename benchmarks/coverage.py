"""How often 95 % intervals hold the true value, and how often equal means are called different.

    python -m benchmarks.coverage [--trials N]

writes docs/coverage.md. Each cell draws clusters from a population whose value is known; the archived records serve as
such a population by drawing their templates with replacement. For the test, two methods are drawn whose values are
equal in the population, and differ in how they are distributed.
"""

import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import typer
from jaxtyping import Float
from rich.console import Console
from rich.progress import track

from heta_lens.evaluation.statistics import CONFIDENCE, Aggregate, chance, estimate, log_ratio, mean

HERE = Path(__file__).parent
TITLE = "# Coverage of intervals, size of tests"
WRITTEN = HERE.parent / "docs" / "coverage.md"
CLUSTERS = (15, 42, 100)
UNREACHED = {("lognormal, sigma 1.5", 15), ("archived additivity gap", 15)}
"""Where the samples too often lack what makes the mean: no interval that we tried reaches .93 there."""

TOO_SKEWED = {("lognormal, sigma 1.5", 15), ("archived additivity gap", 15), ("archived faithfulness error", 15)}
"""Where no test that we tried rejects equal means in at most .06 of the samples."""

Vector: TypeAlias = Float[np.ndarray, "k"]
Sample: TypeAlias = tuple[Float[np.ndarray, "n k"], list[int]]
Draw: TypeAlias = Callable[[np.random.Generator, int], Sample]
Pair: TypeAlias = tuple[Float[np.ndarray, "n k"], Float[np.ndarray, "n k"], list[int]]
DrawPair: TypeAlias = Callable[[np.random.Generator, int], Pair]


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
ARCHIVED = {
    "archived Soft-NC": ("soft_nc", "heta", log_ratio),
    "archived Soft-NS": ("soft_ns", "heta", log_ratio),
    "archived additivity gap": ("additivity_gap", "heta", mean),
    "archived faithfulness error": ("faithfulness_error", "heta", mean),
    "archived near-perfect share": ("first_is_evidence", "attn_lrp", mean),
}


RIVAL = "leave_one_out"


def independent(kind: str) -> DrawPair:
    """Two methods whose values are drawn alike, apart from one another."""
    draw_from = KINDS[kind][0]

    def draw_pair(draw: np.random.Generator, count: int) -> Pair:
        (ours, owners), (theirs, _) = draw_from(draw, count), draw_from(draw, count)
        return ours, theirs, owners

    return draw_pair


def against_mean(kind: str) -> DrawPair:
    """A method with skewed values, and one that always has their mean: the difference is as skewed."""
    draw_from, _, true = KINDS[kind]

    def draw_pair(draw: np.random.Generator, count: int) -> Pair:
        ours, owners = draw_from(draw, count)
        return ours, np.full_like(ours, true), owners

    return draw_pair


def unequal_pair(draw: np.random.Generator, count: int) -> Pair:
    ours, owners = unequal(draw, count)
    return ours, np.zeros_like(ours), owners


def ratio_pair(draw: np.random.Generator, count: int) -> Pair:
    """Two methods beside the same random scores, one of them far more skewed about the same mean."""
    random = draw.lognormal(-2.0, 0.8, count)
    ours, theirs = draw.lognormal(0.5 - 0.125, 0.5, count), draw.lognormal(0.0, 1.0, count)
    return np.stack([ours, random], 1), np.stack([theirs, random], 1), list(range(count))


PAIRS: Mapping[str, tuple[DrawPair, Aggregate]] = {
    "normal": (independent("normal"), mean),
    "unequal clusters": (unequal_pair, mean),
    **{kind: (independent(kind), mean) for kind in ("binary, .5", "binary, .9", "binary, .98")},
    **{kind: (against_mean(kind), mean) for kind in ("lognormal, sigma .8", "lognormal, sigma 1.5")},
    "log-ratio": (ratio_pair, log_ratio),
}


@cache
def archived_values(metric: str, method: str) -> Mapping[str, Mapping[str, Vector]]:
    """By template and instance."""
    templates: dict[str, dict[str, Vector]] = {}
    for record in archived_records():
        if record["method"] == method and record["values"].get(metric) is not None:
            value = np.atleast_1d(np.array(record["values"][metric], dtype=float))
            templates.setdefault(record["template"], {})[record["instance"]] = value
    return templates


@cache
def archived_records() -> list[dict[str, Any]]:
    with tarfile.open(HERE / "evaluated.tar.xz") as archive:
        lines = archive.extractfile("recall/records.jsonl")
        assert lines is not None
        records = [json.loads(line) for line in lines]
        return records


def archived() -> Mapping[str, tuple[Draw, Aggregate, float]]:
    kinds = {}
    for name, (metric, method, aggregate) in ARCHIVED.items():
        groups = [np.stack([*values.values()]) for values in archived_values(metric, method).values()]
        kinds[name] = (partial(templates_of, groups), aggregate, value_of(groups, aggregate))
    return kinds


def archived_pairs() -> Mapping[str, tuple[DrawPair, Aggregate]]:
    """A method against another, which is moved so far that they are equal over all records."""
    pairs = {}
    for name, (metric, method, aggregate) in ARCHIVED.items():
        if name != "archived near-perfect share":  # moved, its values would be no hits and misses
            own, other = archived_values(metric, method), archived_values(metric, RIVAL)
            both = {template: sorted({*own[template]} & {*other[template]}) for template in own.keys() & other.keys()}
            ours, theirs = ([np.stack([of[at][one] for one in both[at]]) for at in both] for of in (own, other))
            apart = value_of(ours, aggregate) - value_of(theirs, aggregate)
            moved = [shifted(group, apart, aggregate) for group in theirs]
            joined = [np.concatenate(pair, 1) for pair in zip(ours, moved, strict=True)]
            pairs[name] = (partial(pairs_of, joined), aggregate)
    return pairs


def value_of(groups: Sequence[Float[np.ndarray, "n k"]], aggregate: Aggregate) -> float:
    return float(aggregate(np.concatenate(groups).mean(0)[None])[0])


def shifted(values: Float[np.ndarray, "n k"], by: float, aggregate: Aggregate) -> Float[np.ndarray, "n k"]:
    return values + by if aggregate is mean else values * np.array([np.exp(by), 1.0])


def templates_of(groups: Sequence[Float[np.ndarray, "n k"]], draw: np.random.Generator, count: int) -> Sample:
    drawn = draw.integers(0, len(groups), count)
    owners = np.repeat(np.arange(count), [len(groups[at]) for at in drawn])
    return np.concatenate([groups[at] for at in drawn]), owners.tolist()


def pairs_of(groups: Sequence[Float[np.ndarray, "n k"]], draw: np.random.Generator, count: int) -> Pair:
    values, owners = templates_of(groups, draw, count)
    ours, theirs = np.split(values, 2, axis=1)
    return ours, theirs, owners


class Held(NamedTuple):
    """How often intervals hold the truth, those of plain percentiles too, and their median width."""

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


def size(kind: tuple[DrawPair, Aggregate], count: int, trials: int) -> float:
    """How often two methods that are equal in the population are called different."""
    draw_from, aggregate = kind
    draw = np.random.default_rng(count)
    return float(np.mean([chance(*draw_from(draw, count), aggregate) < 1 - CONFIDENCE for _ in range(trials)]))


def table(trials: int) -> Iterator[str]:
    yield "| values | clusters | coverage | of percentiles | median width | size of the test |\n" + "| --- " * 6 + "|"
    pairs = {**PAIRS, **archived_pairs()}
    for name, kind in track({**KINDS, **archived()}.items(), "measuring", console=Console(stderr=True)):
        for count in CLUSTERS:
            held = measured(kind, count, trials)
            wrong = f"{size(pairs[name], count, trials):.3f}" if name in pairs else ""
            missed = " (not reached)" if (name, count) in UNREACHED else ""
            skewed = " (not reached)" if (name, count) in TOO_SKEWED else ""
            yield (
                f"| {name} | {count} | {held.coverage:.3f}{missed} | {held.percentiles:.3f} | {held.width:.3g} "
                f"| {wrong}{skewed} |"
            )


def main(trials: Annotated[int, typer.Option(help="Samples per cell.")] = 1000) -> None:
    about = (
        f"Written by `python -m benchmarks.coverage --trials {trials}`: how often 95 % intervals contain the "
        f"population value, over {trials} samples per cell, and how often intervals of plain percentiles of the "
        "cluster bootstrap would. The size of the test: how often p < .05 where two methods are equal in the "
        "population (the second is given the first's mean; archived records are shifted until both means are equal)."
    )
    WRITTEN.write_text("\n\n".join([TITLE, about, "\n".join(table(trials))]) + "\n")


if __name__ == "__main__":
    typer.run(main)
