"""How often 95 % intervals hold the true value, and how often equal means are called different.

    python -m benchmarks.coverage [--trials N]

writes COVERAGE.md. Each cell draws clusters from a population whose value is known; the archived records serve as such
a population by drawing their templates with replacement.
"""

import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
import typer
from jaxtyping import Float

from heta_lens.evaluation.statistics import Aggregate, estimate, log_ratio, mean

HERE = Path(__file__).parent
WRITTEN = HERE / "COVERAGE.md"
CLUSTERS = (15, 42, 100)
UNREACHED = {("lognormal, sigma 1.5", 15), ("archived additivity gap", 15)}
"""Where the samples too often lack what makes the mean: no interval that we tried reaches .93 there."""

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
ARCHIVED = {
    "archived Soft-NC": ("soft_nc", "heta", log_ratio),
    "archived Soft-NS": ("soft_ns", "heta", log_ratio),
    "archived additivity gap": ("additivity_gap", "heta", mean),
    "archived faithfulness error": ("faithfulness_error", "heta", mean),
    "archived near-perfect share": ("first_is_support", "attn_lrp", mean),
}


def archived() -> Mapping[str, tuple[Draw, Aggregate, float]]:
    with tarfile.open(HERE / "judged.tar.xz") as archive:
        told = archive.extractfile("recall/records.jsonl")
        assert told is not None
        records = [json.loads(line) for line in told]
    found = {}
    for name, (metric, method, aggregate) in ARCHIVED.items():
        templates: dict[str, list[Float[np.ndarray, k]]] = {}
        for record in records:
            if record["method"] == method and record["values"].get(metric) is not None:
                value = np.atleast_1d(np.array(record["values"][metric], dtype=float))
                templates.setdefault(record["template"], []).append(value)
        groups = [np.stack(group) for group in templates.values()]
        true = float(aggregate(np.concatenate(groups).mean(0)[None])[0])
        found[name] = (drawn_from(groups), aggregate, true)
    return found


def drawn_from(groups: list[Float[np.ndarray, "n k"]]) -> Draw:
    def draw_some(draw: np.random.Generator, count: int) -> Sample:
        drawn = draw.integers(0, len(groups), count)
        return np.concatenate([groups[at] for at in drawn]), np.repeat(
            np.arange(count), [len(groups[at]) for at in drawn]
        ).tolist()

    return draw_some


def measured(kind: tuple[Draw, Aggregate, float], count: int, trials: int) -> tuple[float, float]:
    """How often the interval holds the truth, and its median width."""
    drawn_by, aggregate, true = kind
    draw, held, widths = np.random.default_rng(count), 0, []
    for _ in range(trials):
        told = estimate(*drawn_by(draw, count), aggregate)
        held += told.low - 1e-9 <= true <= told.high + 1e-9
        widths.append(told.high - told.low)
    return held / trials, float(np.median(widths))


def table(trials: int) -> Iterator[str]:
    yield "| values | clusters | coverage | median width |\n| --- | --- | --- | --- |"
    for name, kind in {**KINDS, **archived()}.items():
        for count in CLUSTERS:
            coverage, width = measured(kind, count, trials)
            known = " (not reached)" if (name, count) in UNREACHED else ""
            yield f"| {name} | {count} | {coverage:.3f}{known} | {width:.3g} |"


def main(trials: Annotated[int, typer.Option(help="Samples per cell.")] = 1000) -> None:
    about = (
        f"Written by `python -m benchmarks.coverage --trials {trials}`: how often 95 % intervals hold the value of the "
        f"population, over {trials} samples per cell. A p-value is at most .05 exactly where an interval of a "
        "difference leaves 0 out, so that 1 minus the coverage is the size of the test on such differences."
    )
    WRITTEN.write_text("\n\n".join([about, "\n".join(table(trials))]) + "\n")


if __name__ == "__main__":
    typer.run(main)
