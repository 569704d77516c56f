"""The table of precision: differences on average, refusals by number."""

import pytest
import torch

from benchmarks import precision


def test_a_cell_is_the_mean_over_stories() -> None:
    outcomes = {("4.3", "bfloat16", "heta", number): value for number, value in enumerate((0.01, 0.03))}
    assert precision.cell(outcomes, "4.3", "bfloat16", "heta", []) == "2.00%"
    assert precision.cell({}, "4.3", "bfloat16", "heta", []) == "–"


def test_refusals_are_numbered_and_each_is_said_once() -> None:
    outcomes = {("4.3", setting, "lime", number): "no" for setting in ("bfloat16", "8 bits") for number in range(2)}
    said = ["not here"]
    cells = [precision.cell(outcomes, "4.3", setting, "lime", said) for setting in ("bfloat16", "8 bits")]
    assert (cells, said) == (["refused (2)"] * 2, ["not here", "no"])


@pytest.mark.parametrize(("difference", "text"), [(0.0, "0"), (2e-7, "2e-07"), (0.0123, "1.23%"), (1.5, "150.00%")])
def test_differences_are_legible(difference: float, text: str) -> None:
    assert precision.shown(difference) == text


def test_a_refusal_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def scores(setting: str, *_: object) -> torch.Tensor:
        if setting == "float32":
            return torch.tensor([1.0, -3.0])
        raise ValueError("not in half precision")

    monkeypatch.setattr(precision, "scores", scores)
    assert precision.difference(("4.3", "bfloat16", "lime", 0)) == "not in half precision"
    monkeypatch.setattr(precision, "scores", lambda setting, *_: torch.tensor([1.0, -3.0 + (setting != "float32")]))
    assert precision.difference(("4.3", "bfloat16", "lime", 0)) == 0.25
