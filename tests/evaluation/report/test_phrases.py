"""The wording of notes and of missing intervals."""

import re
from pathlib import Path

from helpers.report_folder import DSA_ONLY, folder_of, record
from heta_lens.evaluation.report.folder_report import write_report


def test_notes_say_what_is_meant(written: Path) -> None:
    text = (written / "report.md").read_text()
    assert "24 instances of the test split, made from 8 templates of 3 each. Methods are compared with ours." in text
    assert "own prediction in 18 of 24 instances" in text
    # Log-probabilities of 0, -1/8 … -23/8: quartiles at -5.75/8, -11.5/8 and -17.25/8.
    assert (
        "How likely the explained token was: p = 0.238 in the median, p = 0.116 and p = 0.487 at the quartiles" in text
    )
    assert "dsa: more is better; a mean over instances, at least -1 and at most 1. Cost: nothing." in text
    assert "bias: nearer 0 is better; a mean over instances. The difference is that of the distances" in text
    assert "Variant: of sums. Source: ours." in text
    assert "soft_nc: more is better; ln of the sum" in text
    assert "Versions: torch=2.6" in text and "Options of the suite: hops=1" in text
    assert "| lime samples=80 | lime | samples=80 |" in text


def test_figures_are_where_the_report_says(written: Path) -> None:
    figures = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", (written / "report.md").read_text())
    assert len(figures) > 2 and all((written / figure).is_file() for figure in figures)


def test_one_instance_has_no_interval(tmp_path: Path) -> None:
    write_report(folder_of(tmp_path, [record("ours", 1), record("lime samples=80", 1)], DSA_ONLY))
    text = (tmp_path / "report.md").read_text()
    assert re.search(r"\| ours \| ‡ 0\.\d{3} \[one instance\]", text)
    assert "nan" not in text
