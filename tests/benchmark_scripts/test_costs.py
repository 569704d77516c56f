"""Growth, memory and throughput: the numbers of the tables on small cases."""

import pandas as pd
import pytest

from benchmarks import growth, memory, pages, throughput
from benchmarks.throughput import PROMPTS, Timing


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
