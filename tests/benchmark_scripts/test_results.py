"""The arithmetic of the results page: candidates of HETA, the criterion, and means over families."""

import numpy as np
import pandas as pd
import pytest

from benchmarks import results

ROW = {
    "eligible": [1, 2, 3], "gold": [2], "delete": [0.1, 0.9, -0.2], "resample": [0.3, 0.2, -0.1], "template": "one",
    "parts": {
        "gate": [0.5, 0.2, 0.1], "squared gradient": [1.0, 9.0, 4.0],
        "zero": {"orig||masked": [4.0, 1.0, 0.0], "masked||orig": [1.0, 1.0, 1.0], "drop": [-0.5, 1.0, 0.2]},
        "mean": {"orig||masked": [1.0, 1.0, 1.0], "masked||orig": [1.0, 1.0, 1.0], "drop": [0.0, 0.0, 0.0]},
    },
    "scores": {"fast": [1.0, -2.0, 0.5]},
}  # fmt: skip


def test_candidates_are_arithmetic_on_the_parts() -> None:
    found = results.scores_of(ROW)
    assert found["careful"].tolist() == [2.0, 3.0, 0.0]
    assert found["M · √(G·I)"] == pytest.approx([1.0, 0.6, 0.0])
    assert found["leave_one_out"].tolist() == [-0.5, 1.0, 0.2]
    assert "√(S·I)" not in found


def test_the_criterion_halves_evidence_and_agreement() -> None:
    found = results.measures(ROW, np.array([2.0, 3.0, 0.0]))
    assert found["reciprocal rank"] == 1
    assert found["delete"] == pytest.approx(0.5)  # sizes .1, .9, .2
    assert found["resample"] == pytest.approx(0.5)  # sizes .3, .2, .1
    assert found["criterion"] == pytest.approx(0.75)


def test_signs_count_on_the_tokens_that_move_the_prediction() -> None:
    found = results.measures(ROW | {"delete": [0.1, 0.9, -0.2], "resample": [0.3, 0.09, 0.0]}, ROW["scores"]["fast"])
    assert found["sign of delete"] == pytest.approx(1 / 3) and found["for by delete"] == pytest.approx(2 / 3)
    assert found["sign of resample"] == 1
    still = results.measures(ROW | {"delete": [0.0, 0.05, -0.05]}, ROW["scores"]["fast"])
    assert np.isnan(still["sign of delete"])


def test_families_weigh_the_same() -> None:
    frame = pd.DataFrame(
        {"family": [*"aaab"], "split": "dev", "number": range(4), "template": [*"wxyz"], "criterion": [0.0, 0, 0, 1]}
    )
    assert results.averaged(frame, "criterion").value == pytest.approx(0.5)
    both = pd.concat(
        [frame.assign(setting=one, criterion=frame["criterion"] + add) for one, add in [("x", 0), ("y", 1)]]
    )
    assert results.paired(both, "y", "x").value == pytest.approx(1)


def test_a_prompt_of_dev_is_not_paired_with_one_of_test() -> None:
    prompts = [("dev", 0), ("dev", 1), ("test", 0), ("test", 1)]
    frame = pd.DataFrame(
        {"family": "a", "split": split, "number": number, "template": f"{split} {number}", "setting": setting}
        | {"criterion": float(setting == "x") + (split == "dev")}
        for split, number in prompts
        for setting in ("x", "y")
    )
    found = results.paired(frame, "x", "y")
    assert (found.n, found.value, found.low, found.high) == (4, 1, float("-inf"), float("inf"))


def test_what_is_no_method_of_the_library_is_a_candidate() -> None:
    names = [*results.scores_of(ROW)]
    assert [name for name in names if not results.is_candidate(name)] == [
        "fast", "leave_one_out", "leave_one_out mask=mean"
    ]  # fmt: skip
