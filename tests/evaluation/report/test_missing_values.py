"""What a report says of missing values."""

from pathlib import Path

from helpers.report_folder import DSA_ONLY, folder_of
from heta_lens.evaluation.report.folder_report import write_report


def test_nothing_finished_yet_is_a_report_too(tmp_path: Path) -> None:
    write_report(folder_of(tmp_path, [], DSA_ONLY))
    text = (tmp_path / "report.md").read_text()
    assert "No instance has been finished yet." in text and "none (a)" in text and "(a) no instance yet" in text
    assert "nan" not in text


def test_gaps_of_one_reason_are_told_together(written: Path) -> None:
    text = (written / "report.md").read_text()
    assert r"| failed: cannot be asked: no \| words | all | broken | 24 |" in text
    assert r"| no distractor | Sentence share | lime samples=80, ours, half, a\|b \<i> | 2 |" in text
    assert "| not run yet | all | half | 18 |" in text
