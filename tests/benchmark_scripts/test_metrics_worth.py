"""What a metric is worth, from values that are made up."""

import random

import numpy as np
import pytest

from benchmarks import metrics_worth
from benchmarks.metrics_worth import Values, Worth, agreed, goodness, halves, noise, reading, tied, worth
from heta_lens.evaluation.report.results import Measure


def values(name: str, rows: list[list[float]], better: str = "more") -> Values:
    clusters = [(f"template {number // 2}", "") for number in range(len(rows[0]))]
    return Values(Measure(name, name.title(), better), np.array(rows)[..., None], clusters)


GOOD = values("good", [[3, 3.1, 3, 3.2], [2, 2.1, 2, 2.2], [1, 1.1, 1, 1.2]])
LESS = values("less", [[1, 1.1, 1, 1.2], [2, 2.1, 2, 2.2], [3, 3.1, 3, 3.2]], "less")


def test_how_good_a_method_is_depends_on_what_is_better() -> None:
    assert goodness(GOOD).tolist() == pytest.approx([3.075, 2.075, 1.075])
    assert agreed(goodness(GOOD), goodness(LESS)) == pytest.approx(1)
    assert goodness(values("some", [[1, np.nan, 2, np.nan], [np.nan] * 4])).tolist() == pytest.approx(
        [1.5, np.nan], nan_ok=True
    )


def test_halves_of_the_templates_agree_or_do_not() -> None:
    assert halves(GOOD, random.Random(0)) == pytest.approx(1)
    opposed = values("opposed", [[3, 3, 1, 1], [2, 2, 2, 2], [1, 1, 3, 3]])
    assert halves(opposed, random.Random(0)) == pytest.approx(-1)


def test_ties_are_pairs_of_methods_with_one_value() -> None:
    assert tied(GOOD) == 0
    assert tied(values("coarse", [[1, 0], [1, 1], [1, np.nan]])) == pytest.approx(3 / 4)


def test_a_metric_is_evaluated_by_others_and_by_controls() -> None:
    methods = ["method", "recency", "random"]
    means = {
        name: goodness(one)
        for name, one in (("good", GOOD), ("evidence_mass", LESS), ("mean_effect_5", GOOD), ("abpc", LESS))
    }
    found = worth(GOOD, means, methods)
    assert (found.evidence, found.interventions) == pytest.approx((1, 1))
    assert (found.random_place, found.recency_place, found.methods) == (3, 2, 3)
    assert found.sound and not found.positional
    part = worth(
        GOOD._replace(metric=Measure("morf", "MoRF")),
        means | {"morf": -goodness(GOOD), "abpc": goodness(GOOD)},
        methods,
    )
    assert part.interventions == pytest.approx(-1)  # with the mean effect alone, not with the area it is a part of


def test_what_is_reported_is_sound_everywhere() -> None:
    measure = [Measure(name, name.upper()) for name in ("a", "b", "c")]
    sound = Worth(measure[0], 20, 0.9, 0.9, 20, 15, 0.99, 0.0)
    early = Worth(measure[1], 20, 0.9, 0.9, 20, 1, 0.99, 0.0)
    coarse = Worth(measure[2], 20, 0.9, 0.9, 5, 15, 0.99, 0.9)
    text = reading({"stories": [sound, early, coarse], "words": [sound._replace(evidence=0.1), early, coarse]}).split(
        "\n\n"
    )
    for part, name in zip(text, ("*A*", "*C*", "*B*", "*C*"), strict=True):
        assert f": {name}" in part
    assert "on stories *A*; on words none" in text[0]


def test_noise_is_a_share_of_what_methods_differ_by() -> None:
    made = {"metric": {name: [level - 0.1, level + 0.1] for level, name in enumerate(metrics_worth.METHODS)}}
    of_means, of_one = noise([made, made], "metric")
    spread = np.std(range(len(metrics_worth.METHODS)), ddof=1)
    assert of_means == pytest.approx(of_one) == pytest.approx(0.2 / 2**0.5 / spread)
