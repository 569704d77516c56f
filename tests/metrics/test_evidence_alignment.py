"""Metrics of where scores lie, against examples worked by hand."""

from math import isnan
from typing import Any

import pytest
import torch

from heta_lens.metrics import dsa, evidence_mass, f1

# Segment 1 (distractor), segment 2 (support), question.
SCORES = torch.tensor([0.1, 0.1, 0.5, 0.2, 0.1])
SEGMENTS: dict[str, Any] = {"support": [2, 3], "distractor": [0, 1]}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"gold": [2]}, 1 / 3),
        ({"gold": [2], "over": "context"}, 0.3),
        ({"reading": "segments"}, 0.5),
        ({"reading": "segments", "over": "segments"}, 5 / 9),
        ({"reading": "thresholded_max"}, 1.0),
        ({"reading": "thresholded_max", "threshold": 0.2}, (0.7 - 0.2) / 0.5),
        ({"reading": "model_selected"}, 5 / 9),
        ({"reading": "model_selected", "threshold": 0.3, "over": "context"}, 0.7),
        ({"reading": "model_selected", "k": 1}, 5 / 9),
        ({"reading": "model_selected", "k": 3}, 6 / 9),
        ({"gold": []}, -2 / 9),
    ],
    ids=str,
)
def test_dsa_as_worked_by_hand(options: dict[str, Any], expected: float) -> None:
    assert dsa(SCORES, **SEGMENTS, **options) == pytest.approx(expected)


def test_dsa_takes_signs_as_told() -> None:
    signed = torch.tensor([-0.4, 0.1, 0.5, -0.2, 0.0])
    assert dsa(signed, **SEGMENTS, gold=[2]) == pytest.approx((0.5 - 0.1) / 0.6)
    assert dsa(signed, **SEGMENTS, gold=[2], sign="abs") == pytest.approx((0.5 - 0.5) / 1.2, abs=1e-7)
    assert dsa(signed, **SEGMENTS, reading="segments", sign="abs") == pytest.approx((0.7 - 0.5) / 1.2)


@pytest.mark.parametrize("reading", ["supervised", "model_selected", "segments", "thresholded_max"])
def test_dsa_of_nothing_is_nothing(reading: Any) -> None:
    assert dsa(torch.zeros(5), **SEGMENTS, gold=[2], reading=reading) == 0
    assert dsa(-SCORES, **SEGMENTS, gold=[2], reading=reading) == 0


def test_dsa_lies_between_minus_one_and_one() -> None:
    scores = torch.rand(200, 5, generator=torch.Generator().manual_seed(0))
    found = [dsa(row, **SEGMENTS, gold=[3], reading=way) for row in scores for way in ("supervised", "segments")]
    assert -1 <= min(found) < -0.5 < 0.3 < max(found) <= 1


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs gold positions"),
        ({"gold": [1]}, r"gold positions \[1\] are not in the support"),
        ({"reading": "d2"}, "reading='d2' is not one of 'supervised', 'model_selected', 'segments', 'thresholded_max'"),
        ({"reading": "segments", "over": "all"}, "over='all' is not one of None, 'segments', 'context'"),
        ({"reading": "segments", "sign": "plus"}, "sign='plus' is not one of 'relu', 'abs', 'none'"),
        ({"reading": "segments", "support": [2, 5]}, r"positions \[5\] are not among the 5 scores"),
        ({"reading": "segments", "support": [1, 2]}, r"positions \[1\] are in the support and in the distractor"),
    ],
    ids=str,
)
def test_dsa_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dsa(SCORES, **SEGMENTS | options)


def test_scores_that_are_no_numbers_are_refused_by_place() -> None:
    with pytest.raises(ValueError, match=r"scores\[1\] is nan"):
        evidence_mass(torch.tensor([1.0, float("nan")]), [0])


SIX = torch.tensor([0.9, 0.1, 0.8, 0.2, 0.7, 0.0])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 2 / 3),
        ({"k": 1}, 0.5),
        ({"k": 6}, 2 / 3),
        ({"k": 0}, 0.0),
        ({"mass": 0.6}, 0.8),  # 0.9 + 0.8 of 2.7 is 0.63
        ({"mass": 1.0}, 6 / 8),
        ({"threshold": 0.8}, 0.8),
        ({"candidates": [1, 3, 5], "k": 2}, 2 / 5),
    ],
    ids=str,
)
def test_f1_as_worked_by_hand(options: dict[str, Any], expected: float) -> None:
    assert f1(SIX, [0, 1, 2], **options) == pytest.approx(expected)


@pytest.mark.usefixtures("unchecked")
def test_f1_at_its_edges() -> None:
    assert isnan(f1(SIX, []))
    assert isnan(f1(SIX, [], k=2))
    assert f1(torch.zeros(6), [0, 1], threshold=0.5) == 0
    assert f1(torch.ones(6), [0, 1]) == 1, "of equal scores the earlier comes first"
    with pytest.raises(ValueError, match="give one of them"):
        f1(SIX, [0], k=1, mass=0.5)
    with pytest.raises(ValueError, match=r"mass=1\.5 must be above 0 and at most 1"):
        f1(SIX, [0], mass=1.5)
    with pytest.raises(ValueError, match="k=-1 must be at least 0"):
        f1(SIX, [0], k=-1)


def test_evidence_mass_is_a_share() -> None:
    assert evidence_mass(SCORES, [2, 3]) == pytest.approx(0.7)
    assert evidence_mass(torch.tensor([-1.0, 1.0]), [0]) == 0
    assert evidence_mass(torch.tensor([-1.0, 1.0]), [0], sign="abs") == 0.5
    assert evidence_mass(torch.zeros(3), [0]) == 0
    assert evidence_mass(SCORES, [2, 2]) == 0.5
