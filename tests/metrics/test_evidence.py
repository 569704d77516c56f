"""Alignment of scores with evidence, against examples worked by hand."""

from itertools import permutations
from math import isnan
from typing import Any

import pytest
import torch

from heta_lens.metrics import chance_of_passing, dsa, evidence_mass, f1, passes
from heta_lens.metrics.evidence import highest, ranked, reciprocal_rank, recovery

SCORES = torch.tensor([0.1, 0.1, 0.5, 0.2, 0.1])
SEGMENTS: dict[str, Any] = {"support": [2, 3], "distractor": [0, 1]}
SIX = torch.tensor([0.9, 0.1, 0.8, 0.2, 0.7, 0.0])


def test_equal_scores_keep_the_order_of_the_text() -> None:
    scores = torch.tensor([0.5, 2.0, 0.5, -1.0])
    assert ranked(scores) == [1, 0, 2, 3] and ranked(scores, order="lerf") == [3, 0, 2, 1]
    assert ranked(scores, [2, 3]) == [2, 3] and highest(scores, 2) == [1, 0] and len(highest(scores, 9)) == 4


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"gold": [2]}, 1 / 3),
        ({"reading": "segments"}, 0.5),
        ({"reading": "thresholded_max"}, 1.0),
        ({"reading": "model_selected"}, 5 / 9),
        ({"gold": []}, -2 / 9),
    ],
    ids=str,
)
def test_dsa_as_worked_by_hand(options: dict[str, Any], expected: float) -> None:
    assert dsa(SCORES, **SEGMENTS, **options) == pytest.approx(expected)


def test_ranks_and_recovery_as_worked_by_hand() -> None:
    assert reciprocal_rank(SIX, [2, 5]) == 0.5 and reciprocal_rank(SIX, [5]) == 1 / 6
    assert reciprocal_rank(SIX, [5], candidates=[1, 5]) == 0.5 and isnan(reciprocal_rank(SIX, []))
    assert reciprocal_rank(torch.tensor([1.0, 1.0]), [1]) == 0.5  # the earlier of equal scores ranks first
    assert recovery(SIX, [0, 5]) == 0.5 and recovery(SIX, [0, 2, 5], 0.34) == 2 / 3
    assert recovery(SIX, [0, 2], candidates=[2, 3]) == 1.0 and isnan(recovery(SIX, [0], candidates=[2, 3]))


def test_dsa_with_negative_scores() -> None:
    signed = torch.tensor([-0.4, 0.1, 0.5, -0.2, 0.0])
    assert dsa(signed, **SEGMENTS, gold=[2]) == pytest.approx((0.5 - 0.1) / 0.6)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs gold positions"),
        ({"gold": [1]}, r"gold positions \[1\]"),
        ({"reading": "d2"}, "reading='d2' is not one of 'supervised'"),
        ({"reading": "segments", "support": [1, 2]}, r"positions \[1\] are in the support and in the distractor"),
    ],
    ids=str,
)
def test_dsa_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dsa(SCORES, **SEGMENTS | options)


def test_f1_as_worked_by_hand() -> None:
    assert f1(SIX, [0, 1, 2]) == pytest.approx(2 / 3)
    assert f1(SIX, [0, 1, 2], candidates=[1, 3, 5]) == pytest.approx(1 / 3)
    assert isnan(f1(SIX, []))
    assert f1(torch.ones(6), [0, 1]) == 1, "of equal scores the earlier comes first"


def test_evidence_mass_is_a_share() -> None:
    assert evidence_mass(SCORES, [2, 3]) == pytest.approx(0.7)
    assert evidence_mass(torch.tensor([-1.0, 1.0]), [0]) == 0
    assert evidence_mass(torch.zeros(3), [0]) == 0
    assert evidence_mass(SCORES, [2, 2]) == 0.5
    assert evidence_mass(SCORES, [2, 3], candidates=[1, 2]) == pytest.approx(5 / 6)


def test_a_pass_is_one_gold_token_among_the_highest() -> None:
    scores = torch.tensor([4.0, 3, 2, 1])
    assert [passes(scores, [1, 3], k) for k in (1, 2)] == [0, 1] and passes(scores, [3], k=9) == 1
    assert [passes(scores, [2], k, candidates=[1, 2, 3]) for k in (1, 2)] == [0, 1]
    assert passes(torch.ones(4), [3], k=3) == 0
    assert isnan(passes(scores, [])) and isnan(passes(scores, [0], candidates=[1, 2]))


def test_the_chance_of_a_pass_is_the_share_of_orders_that_pass() -> None:
    orders = [torch.tensor(order).double() for order in permutations(range(5))]
    for gold in ([0], [1, 4], [0, 2, 3]):
        for k in (1, 2, 3):
            share = sum(passes(order, gold, k) for order in orders) / len(orders)
            assert chance_of_passing(5, len(gold), k) == pytest.approx(share)
    assert isnan(chance_of_passing(5, 0))
    assert chance_of_passing(3, 3, 1) == 1 == chance_of_passing(4, 1, k=9)
