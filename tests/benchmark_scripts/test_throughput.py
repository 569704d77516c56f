"""The page of throughputs: rates without the time until work begins, and their ratio."""

from pathlib import Path

import pytest

from benchmarks import throughput
from benchmarks.throughput import PROMPTS, Timing
from heta_lens.evaluation import Workers


def test_rates_are_without_what_takes_as_long_for_any_number() -> None:
    each, start = 0.5, 7.0
    timing = Timing(start + PROMPTS * each, start + throughput.FEW * each)
    assert timing.rate == pytest.approx(1 / each) and timing.start == pytest.approx(start)


def test_the_page_has_a_row_for_every_setup() -> None:
    timings = {name: Timing(70.0 / (number + 1), 8.0 / (number + 1)) for number, name in enumerate(throughput.SETUPS)}
    lines = throughput.page(timings).splitlines()
    assert len(lines) == 4 + len(timings)
    assert lines[5].startswith(f"| two processes | {36 / 31:.3g} | 2 |")


@pytest.mark.slow
def test_few_prompts_are_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(throughput, "METHODS", ("random",))
    monkeypatch.setattr(throughput, "METRICS", ["f1"])
    monkeypatch.chdir(tmp_path)
    assert throughput.seconds(Workers(), 2) > 0
