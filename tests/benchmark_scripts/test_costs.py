"""Growth, precision, memory, throughput and groups: the numbers of the tables on small cases."""

from typing import Any

import pandas as pd
import pytest
import torch

from benchmarks import groups, growth, memory, pages, precision, throughput
from benchmarks.throughput import PROMPTS, Timing
from helpers import zoo
from helpers.asking import predict


# ----------------------------------------------------------------------------------------------------------- precision
def test_a_cell_of_precision_is_a_mean_or_a_numbered_refusal() -> None:
    outcomes: dict[Any, Any] = {("4.3", "bfloat16", "heta", at): value for at, value in enumerate((0.01, 0.03))}
    outcomes |= {("4.3", setting, "lime", at): "no" for setting in ("bfloat16", "8 bits") for at in range(2)}
    refusals = ["not here"]
    cells = [
        precision.cell(outcomes, "4.3", setting, method, refusals)
        for setting, method in (("bfloat16", "heta"), ("8 bits", "heta"), ("bfloat16", "lime"), ("8 bits", "lime"))
    ]
    assert (cells, refusals) == (["2.00%", "–", "refused (2)", "refused (2)"], ["not here", "no"])


def test_a_refusal_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def scores(setting: str, *_: object) -> torch.Tensor:
        if setting == "float32":
            return torch.tensor([1.0, -3.0])
        raise ValueError("not in half precision")

    monkeypatch.setattr(precision, "scores", scores)
    assert precision.difference("4.3", "bfloat16", "lime", 0) == "not in half precision"
    monkeypatch.setattr(precision, "scores", lambda setting, *_: torch.tensor([1.0, -3.0 + (setting != "float32")]))
    assert precision.difference("4.3", "bfloat16", "lime", 0) == 0.25


# -------------------------------------------------------------------------------------------------------------- growth
def test_no_line_is_drawn_to_a_cell_that_was_out_of_memory() -> None:
    longest = growth.LENGTHS[-1]
    for axis, file in zip(growth.figure().axes, growth.DRAWN, strict=True):
        cells = pd.read_csv(pages.CSV / file)[f"{longest:,} tokens"]
        reached = [line.get_color() for line in axis.get_lines() if longest in line.get_xdata()]
        assert len(set(reached)) == sum(cells != growth.OUT) < len(cells)


# -------------------------------------------------------------------------------------------------------------- memory
@pytest.mark.slow
def test_the_measured_memory_stands_beside_the_prediction() -> None:
    predicted, measured, ratio = map(float, memory.compared(4 * memory.GIB, lean=True))
    assert measured == 4 and ratio == pytest.approx(predicted / 4, abs=0.01) and 1 < predicted < 4
    assert memory.compared(memory.GIB, lean=False) == ["–", "1.00", "–"]


# ---------------------------------------------------------------------------------------------------------- throughput
def test_rates_leave_out_the_time_that_any_number_of_prompts_takes() -> None:
    each, start = 0.5, 7.0
    timing = Timing(start + PROMPTS * each, start + throughput.FEW * each)
    assert timing.rate == pytest.approx(1 / each) and timing.start == pytest.approx(start)
    timings = {name: Timing(70.0 / (number + 1), 8.0 / (number + 1)) for number, name in enumerate(throughput.SETUPS)}
    assert throughput.rows(timings)[1][:3] == ["two processes", f"{36 / 31:.3g}", "2"]


# -------------------------------------------------------------------------------------------------------------- groups
@pytest.fixture
def prediction(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in {"MANY": 30, "MORE": 30, "REPEATS": 3, "SEEDS": 2}.items():
        monkeypatch.setattr(groups, name, value)
    monkeypatch.setitem(groups.REFERENCE, "probes", 3)
    model = zoo.bridge("gpt2", torch.float32)
    return predict(model, zoo.prompt(model, 40), 7)


def test_errors_are_of_the_curvature_without_and_with_the_cross_talk(prediction: Any) -> None:
    out, left = groups.with_and_without(prediction)
    assert 0 < out.l1 < 2 and 0 < left.l1 < 2 and out.l1 != left.l1
    assert out.total < left.total  # something is taken out of every token that shares its group
    assert out.curvature >= abs(out.total) - 1e-9 and left.curvature >= abs(left.total) - 1e-9
