"""The cost of methods in a report."""

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.report_folder import bytes_of, folder_of, records
from heta_lens.evaluation.report.folder_report import write_report

TIMED = {"costs.csv", "report.html", "figures/costs.svg", "figures/costs.pdf"}


@pytest.mark.slow
def test_times_are_apart(tmp_path: Path, written: Path) -> None:
    slower = [replace(one, seconds=one.seconds * 7 + 1, forwards=9) for one in records()]
    write_report(folder_of(tmp_path / "slow", slower))
    ours, theirs = bytes_of(tmp_path / "slow"), bytes_of(written)
    assert ours.keys() == theirs.keys()
    assert {name for name in ours if ours[name] != theirs[name]} == TIMED
    pages = [told["report.html"].decode().split("<h2>Cost</h2>")[0] for told in (ours, theirs)]
    assert pages[0] == pages[1] and "Methods and options" in pages[0]  # costs come last
