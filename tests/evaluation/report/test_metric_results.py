"""Cells: means, differences and what is missing, against definitions written out."""

import re
from math import cos, inf, log
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq

from helpers.report_folder import DSA_ONLY, METHODS, RUNS, N, folder_of, mean_of, records
from heta_lens.evaluation.report.folder_report import write_report
from heta_lens.evaluation.report.results import SIGNIFICANT, Summary, summary
from heta_lens.evaluation.run_folder import Record
from heta_lens.evaluation.statistics import corrected, difference


@pytest.mark.parametrize("method", ["lime samples=80", "ours", "a|b <i>"])
@pytest.mark.parametrize("metric", ["dsa", "error", "bias"])
def test_every_cell_is_a_mean_with_its_interval(found: Summary, metric: str, method: str) -> None:
    told = found.cells[metric, method].estimate
    assert told.value == pytest.approx(mean_of(method, metric))
    assert told.low < told.value < told.high
    assert (told.n, told.clusters, told.unit) == (22 if metric == "dsa" else 24, 8, "templates")


def test_log_ratios_are_of_sums(found: Summary) -> None:
    own = sum(0.8 * (1 + ((number * 7) % 5 - 2) / 32 + cos(number + len("ours")) / 1024) for number in range(N))
    assert found.cells["soft_nc", "ours"].estimate.value == pytest.approx(log(own / (0.1 * N)))
    assert found.cells["soft_nc", "lime samples=80"].estimate.value == -inf


def test_what_is_missing_is_counted_with_its_reasons(found: Summary) -> None:
    ours, half, broken = (found.cells["dsa", method] for method in ("ours", "half", "broken"))
    assert ours.skipped == {"no distractor": 2} and not ours.failed and ours.pending == 0
    assert half.skipped == {"no distractor": 2} and half.pending == 18 and half.estimate.n == 4
    assert broken.failed == {"cannot be asked: no | words": 24} and broken.estimate.n == 0
    assert found.cells["absent", "ours"].skipped == {"no gold words": 24}
    assert list(half.why) == ["not run yet", "no distractor"]
    assert ours.degenerate == 3  # the first of four doubted ones has no value
    for cell in found.cells.values():
        assert cell.estimate.n + sum(cell.why.values()) == N


@pytest.mark.slow
def test_instances_that_no_method_was_given_yet_are_not_run(tmp_path: Path) -> None:
    told = summary(folder_of(tmp_path, records(), {**DSA_ONLY, "instances": 100}))
    assert told.cells["dsa", "ours"].pending == 76
    write_report(tmp_path)
    assert "24 of 100 instances of the test split" in (tmp_path / "report.md").read_text()


def test_methods_are_compared_where_both_have_a_value(found: Summary) -> None:
    half = found.cells["error", "half"].difference
    even = range(0, 12, 2)
    assert half is not None and half.n == 6
    assert half.value == pytest.approx(mean_of("half", "error", even) - mean_of("ours", "error", even))
    assert half.value != pytest.approx(mean_of("half", "error", even) - mean_of("ours", "error"))
    broken = found.cells["error", "broken"].difference
    assert broken is not None and broken.n == 0
    assert found.cells["error", "ours"].difference is None and found.cells["error", "ours"].p is None


def test_p_is_corrected_for_the_number_of_methods(found: Summary) -> None:
    told = [found.cells["error", method] for method in METHODS if method != "ours"]
    raw = [cell.difference.p for cell in told if cell.difference is not None]
    assert raw[0] < 0.01  # all of 8 templates one way
    assert [cell.p for cell in told] == pytest.approx(corrected(raw), nan_ok=True)
    assert told[0].p is not None and told[0].p > raw[0]


@pytest.mark.slow
def test_more_is_drawn_where_another_seed_might_change_who_is_called_different(tmp_path: Path) -> None:
    skewed = np.random.default_rng(1).lognormal(-0.18, 0.6, size=40)
    near = float(brentq(lambda less: difference([*(skewed - less)], [0.0] * 40, range(40)).p - SIGNIFICANT, 1.1, 1.6))
    known = {"methods": dict.fromkeys(("ours", "other"), METHODS["ours"]), "metrics": {"free": {"better": "more"}}}
    for less, more in ((near, True), (1.5 * near, False)):
        found = [
            Record(str(at), method, values={"free": value})
            for at in range(40)
            for method, value in (("ours", 0.0), ("other", float(skewed[at]) - less))
        ]
        told = summary(folder_of(tmp_path / str(more), found, {**RUNS, **known})).cells["free", "other"].difference
        drawn_once = difference([*(skewed - less)], [0.0] * 40, range(40))
        assert told is not None and drawn_once.p_error > 0
        assert (told.p_error < drawn_once.p_error / 1.9) == more
        assert (told.p < SIGNIFICANT) == (told.high < 0)


@pytest.mark.slow
def test_the_best_is_bold_only_if_it_beats_every_other_by_more_than_chance(tmp_path: Path, found: Summary) -> None:
    assert found.best == {}  # half has too few instances to be told from ours
    three = {name: METHODS[name] for name in ("lime samples=80", "ours", "a|b <i>")}
    clear = folder_of(tmp_path / "clear", records(), {**RUNS, "methods": three})
    assert summary(clear).best == {"dsa": "ours", "error": "ours", "bias": "lime samples=80", "soft_nc": "ours"}
    write_report(clear)
    text = (clear / "report.md").read_text()
    assert re.search(r"^\| ours \| \*\*‡ 0\.7\d\d \[0\.7\d\d, 0\.7\d\d\]\*\* \| \*\*0\.2", text, re.MULTILINE)
    assert "<strong>‡ 0.7" in (clear / "report.html").read_text()

    few = [one for one in records() if one.instance in ("story-1", "story-2", "story-3")]
    assert summary(folder_of(tmp_path / "few", few, {**RUNS, "methods": three})).best == {}
