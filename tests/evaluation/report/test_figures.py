"""Figures show every method, and leave no trace."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest

from helpers.report_folder import DSA_ONLY, METHODS, METRICS, RUNS, folder_of, record, records, texts
from heta_lens.evaluation.report.figures import NOT_SIGNIFICANT, REFERENCE, WORSE, mark
from heta_lens.evaluation.report.folder_report import write_report
from heta_lens.evaluation.report.results import Summary


@pytest.mark.slow
def test_marks_tell_better_from_worse_and_from_chance(found: Summary) -> None:
    told = {
        metric: [mark(found, found.metrics[metric], method) for method in METHODS]
        for metric in ("dsa", "error", "absent")
    }
    assert told["dsa"] == [WORSE, REFERENCE, NOT_SIGNIFICANT, NOT_SIGNIFICANT, WORSE]
    assert told["error"] == [WORSE, REFERENCE, NOT_SIGNIFICANT, NOT_SIGNIFICANT, WORSE]
    assert told["absent"] == [NOT_SIGNIFICANT, REFERENCE, NOT_SIGNIFICANT, NOT_SIGNIFICANT, NOT_SIGNIFICANT]


@pytest.mark.slow
def test_figures_show_every_method(written: Path) -> None:
    shown = {path.name: texts(ElementTree.parse(path).getroot()) for path in (written / "figures").glob("*.svg")}
    assert sorted(shown) == [*(f"0{at}-{name}.svg" for at, name in enumerate(METRICS, 1)), "costs.svg"]
    for name, text in shown.items():
        assert all(method in text for method in METHODS) or name == "costs.svg"
    assert "no value" in shown["01-dsa.svg"] and "← -∞" in shown["04-soft_nc.svg"]
    assert "Sentence share (more is better)" in shown["costs.svg"] and "broken" not in shown["costs.svg"]
    pages = [path.with_suffix(".pdf") for path in (written / "figures").glob("*.svg")]
    assert all(b"FontFile" in path.read_bytes() for path in pages)  # fonts are embedded, for papers
    page = (written / "report.html").read_text()
    assert "Not in the figure, without a finite value or a time: broken." in page


@pytest.mark.slow
def test_costs_may_be_drawn_against_another_metric(tmp_path: Path) -> None:
    both = {name: METRICS[name] for name in ("dsa", "error")}
    folder = folder_of(tmp_path, records(), {**RUNS, "metrics": both})
    write_report(folder, against="error")
    assert "Error (less is better)" in (folder / "figures" / "costs.svg").read_text()
    with pytest.raises(ValueError, match="against='errr' is no metric of this evaluation: it has dsa, error"):
        write_report(folder, against="errr")


@pytest.mark.slow
def test_many_methods_are_numbered(tmp_path: Path) -> None:
    many = {f"method-{at}": {"method": "random", "options": {}} for at in range(12)}
    found = [replace(record("ours", number), method=method) for number in range(8) for method in many]
    write_report(folder_of(tmp_path, found, {**DSA_ONLY, "methods": many}))
    shown = texts(ElementTree.parse(tmp_path / "figures" / "costs.svg").getroot())
    assert all(f"{number}  method-" in shown for number in range(1, 13))


@pytest.mark.slow
def test_drawing_leaves_no_trace(tmp_path: Path) -> None:
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever was drawn before
        before = dict(matplotlib.rcParams)
        write_report(folder_of(tmp_path, records()[:20], DSA_ONLY))
        assert dict(matplotlib.rcParams) == before
