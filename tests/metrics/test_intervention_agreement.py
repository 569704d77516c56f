"""Metrics that compare scores with the effects of interventions, against examples worked by hand."""

from collections.abc import Callable
from itertools import permutations
from math import isnan
from typing import Any

import pytest
import torch

from heta_lens.metrics.evidence import chance_of_passing, passes
from heta_lens.metrics.interventions import mean_effect, misattribution, patch_correlation

SCORES = torch.tensor([4.0, 3, 2, 1])
EFFECTS = torch.tensor([0.5, 0.005, 0.2, 0])


def test_the_example_of_the_definitions() -> None:
    assert patch_correlation(SCORES, EFFECTS) == pytest.approx(0.8)
    assert misattribution(SCORES, EFFECTS, k=4) == 0.5
    assert mean_effect(SCORES, EFFECTS, k=2) == pytest.approx(0.2525)


def test_effects_as_scores_are_as_good_as_scores_get() -> None:
    assert patch_correlation(EFFECTS, EFFECTS) == pytest.approx(1)
    for order in permutations(range(4)):
        scores = torch.tensor(order).double()
        for k in (1, 2, 3):
            assert mean_effect(scores, EFFECTS.double(), k) <= mean_effect(EFFECTS, EFFECTS, k) + 1e-7
            assert misattribution(scores, EFFECTS.double(), k) >= misattribution(EFFECTS, EFFECTS, k)
    assert patch_correlation(-EFFECTS, EFFECTS) == pytest.approx(-1)


def test_what_tells_no_tokens_apart_correlates_with_nothing() -> None:
    assert isnan(patch_correlation(torch.ones(4), EFFECTS))
    assert isnan(patch_correlation(SCORES, torch.zeros(4)))
    assert isnan(patch_correlation(torch.tensor([4.0, 1, 1, 1]), EFFECTS, candidates=[1, 2, 3]))


def test_less_tokens_than_k_are_all_of_them() -> None:
    assert misattribution(SCORES, EFFECTS) == 0.5
    assert mean_effect(SCORES, EFFECTS) == pytest.approx(0.705 / 4)
    assert passes(SCORES, [3], k=9) == 1
    assert chance_of_passing(4, 1, k=9) == 1


def test_only_candidates_are_evaluated() -> None:
    some = [0, 1, 2]
    assert patch_correlation(SCORES, EFFECTS, candidates=some) == pytest.approx(0.5)
    assert patch_correlation(SCORES, EFFECTS, candidates=[2, 0]) == pytest.approx(1)
    assert misattribution(SCORES, EFFECTS, candidates=some) == pytest.approx(1 / 3)
    assert mean_effect(SCORES, EFFECTS, 1, candidates=[2, 1]) == pytest.approx(0.005)
    assert [passes(SCORES, [2], k, candidates=[1, 2, 3]) for k in (1, 2)] == [0, 1]


def test_of_equal_scores_the_first_is_taken() -> None:
    assert mean_effect(torch.ones(4), EFFECTS, 1) == 0.5
    assert passes(torch.ones(4), [3], k=3) == 0


def test_an_effect_must_reach_what_is_prediction_of_it() -> None:
    assert misattribution(SCORES, torch.tensor([0.25, 0.125, -1, 0]), k=2, least=0.125) == 0
    assert misattribution(SCORES, torch.tensor([0.25, 0.125, -1, 0]), k=3, least=0.25) == pytest.approx(2 / 3)


def test_a_pass_is_one_gold_token_among_the_highest() -> None:
    assert [passes(SCORES, [1, 3], k) for k in (1, 2)] == [0, 1]
    assert isnan(passes(SCORES, []))
    assert isnan(passes(SCORES, [0], candidates=[1, 2]))


def test_chance_is_how_many_orders_pass() -> None:
    orders = [torch.tensor(order).double() for order in permutations(range(5))]
    for gold in ([0], [1, 4], [0, 2, 3]):
        for k in (1, 2, 3):
            share = sum(passes(order, gold, k) for order in orders) / len(orders)
            assert chance_of_passing(5, len(gold), k) == pytest.approx(share)
    assert isnan(chance_of_passing(5, 0))
    assert chance_of_passing(3, 3, 1) == 1


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda: patch_correlation(SCORES, EFFECTS[:3]), ValueError, "there are 3 effects for 4 scores"),
        (lambda: mean_effect(SCORES, EFFECTS[:3]), ValueError, "there are 3 effects for 4 scores"),
        (lambda: misattribution(SCORES, EFFECTS / 0), ValueError, r"effects\[0\] is inf"),
        (lambda: patch_correlation(SCORES * torch.nan, EFFECTS), ValueError, r"scores\[0\] is nan"),
        (lambda: mean_effect(SCORES, EFFECTS, 0), ValueError, "k=0 must be at least 1"),
        (lambda: misattribution(SCORES, EFFECTS, -1), ValueError, "k=-1 must be at least 1"),
        (lambda: passes(SCORES, [1], 0), ValueError, "k=0 must be at least 1"),
        (lambda: passes(SCORES, [4]), ValueError, r"positions \[4\] are not among the 4 scores"),
        (lambda: passes(SCORES, [1], candidates=[]), ValueError, "candidates is empty"),
        (lambda: mean_effect(SCORES, EFFECTS, candidates=[-1]), ValueError, r"positions \[-1\] are not among the 4"),
        (lambda: chance_of_passing(4, 1, 0), ValueError, "k=0 must be at least 1"),
        (lambda: chance_of_passing(4, 5), ValueError, "gold=5 must be from 0 to tokens=4"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_makes_no_sense_is_refused(ask: Callable[[], Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        ask()
