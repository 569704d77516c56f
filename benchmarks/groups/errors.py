"""Error at equal numbers of HVPs: few groups with many probes, or the other way round."""

from collections.abc import Iterator
from itertools import product
from statistics import mean
from typing import Any

from benchmarks.groups.asked import LENGTH, SEEDS, Scores, cross_talk, expectation, found

TITLE = "Error at equal numbers of HVPs"
GROUPS, PRODUCTS = (4, 8, 16, 32), (40, 80, 160, 320)
NOTE = f"""\
{LENGTH} tokens, means over {SEEDS} seeds, the same for every row; `None` probes every token alone. *Before* is before
the cross-talk is taken out; ΣS is how far the sum of the curvature is off (where `None` is off as well, by chance)."""
COLUMNS = ["model", "groups", "probes", "HVPs", "L1", "L1 before", "ΣS, %", "ΣS before, %"]


def rows(name: str, prediction: Any) -> Iterator[list[str]]:
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
