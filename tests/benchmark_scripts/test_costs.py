"""Growth, memory and throughput: the numbers of the tables on small cases."""

import pytest

from benchmarks import growth, memory, pages, throughput
from benchmarks.throughput import PROMPTS, Timing


# -------------------------------------------------------------------------------------------------------------- growth
def test_cells_continue_what_was_measured_and_no_line_leads_to_one_that_was_killed() -> None:
    measured = [
        {"seconds": seconds, "forward": 1.0, "bytes": 2.0**30, "tokens": tokens}
        for seconds, tokens in [(3.0, 10), (12.0, 20)]
    ]
    promised = growth.predicted(measured, 40)
    assert promised == pytest.approx({"seconds": 48, "forward": 1, "bytes": 2**30, "tokens": 40})
    slower = growth.predicted(measured, 40, 2.0)  # the time grows with that of a forward pass of this length
    assert (slower["seconds"], slower["forward"]) == pytest.approx((96, 2))
    cells = [*measured, promised | {"estimated": True}, promised | {"tokens": 80, "estimated": True, "killed": True}]
    assert [growth.time_of(cell) for cell in cells[1:]] == [
        "12 s, 12 forwards",
        "48 s, 48 forwards (estimated)",
        "48 s, 48 forwards (out of memory)",
    ]
    assert [growth.memory_of(cell) for cell in cells[1:]] == ["1 GiB", "–", "out of memory"]
    seconds, size = growth.figure(dict.fromkeys(growth.SHOWN, cells)).axes
    for axis, expected in ((seconds, {"-": 20, ":": 40}), (size, {"-": 20})):
        assert {line.get_linestyle(): max(line.get_xdata()) for line in axis.get_lines()} == expected


def test_the_tables_of_growth_are_those_of_the_stored_outcomes() -> None:
    page = pages.PAGES["growth"].read_text(encoding="utf-8")
    for table in growth.tables():
        assert len(table.rows) > 3 and f"## {table.title}\n\n{table.text}" in page


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
