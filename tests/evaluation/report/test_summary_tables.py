"""Summaries: the reference, and folders that are refused."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.report_folder import METHODS, METRICS, RUNS, folder_of, records
from heta_lens.evaluation.report.folder_report import write_report
from heta_lens.evaluation.report.results import Summary, summary


def test_the_reference_is_the_first_heta_or_else_the_first(tmp_path: Path, found: Summary) -> None:
    assert found.reference == "ours"
    others = {name: METHODS[name] for name in ("half", "lime samples=80")}
    assert summary(folder_of(tmp_path, records(), {**RUNS, "methods": others})).reference == "half"


def test_instances_without_a_template_are_their_own(tmp_path: Path) -> None:
    bare = [replace(one, template="") if int(one.instance[6:]) < 12 else one for one in records()]
    told = summary(folder_of(tmp_path, bare)).cells["error", "ours"].estimate
    assert (told.clusters, told.unit) == (12 + 8, "templates")


def changed(**metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {**RUNS, "metrics": {**METRICS, **metrics}}


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: changed(dsa={"better": "most", "aggregate": "mean"}), "dsa: better='most' is not one of more, less"),
        (lambda: changed(dsa={"better": "more", "aggregate": "sum"}), "dsa: aggregate='sum' is not one of mean, log_r"),
        (lambda: {**RUNS, "methods": {}}, "names no methods"),
        (lambda: {**RUNS, "metrics": {}}, "holds scores and no metrics"),
    ],
)
def test_a_folder_that_makes_no_sense_is_refused(
    tmp_path: Path, run: Callable[[], dict[str, Any]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        write_report(folder_of(tmp_path, records(), run()))


def test_values_that_do_not_fit_their_metric_are_set_aside(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, records(), changed(dsa={"better": "more", "aggregate": "log_ratio"}))
    with pytest.warns(
        UserWarning, match=r"70 of 102 lines of .* its dsa is 0\..*, and must be 2 numbers\) and are skip"
    ):
        assert not any(cell.estimate.n for (name, _), cell in summary(folder).cells.items() if name == "dsa")


def test_a_metric_whose_intervals_are_all_infinite_gives_no_information(tmp_path: Path, found: Summary) -> None:
    assert not any(map(found.uninformative, found.metrics.values()))
    mostly_0 = {"story-2": [0.1, 0.1], "story-4": [0.0, 0.1]}
    sparse = [
        replace(one, values={**one.values, "soft_nc": mostly_0.get(one.instance, [0.0, 0.0])}) if one.values else one
        for one in records()
    ]
    folder = folder_of(tmp_path, sparse)
    told = summary(folder)
    assert [metric.title for metric in told.metrics.values() if told.uninformative(metric)] == ["Soft-NC"]
    write_report(folder)
    assert "No information about these methods on these prompts: Soft-NC (" in (folder / "report.md").read_text()
