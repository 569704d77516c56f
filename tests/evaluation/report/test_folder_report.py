"""Reports: tables, pages and files."""

import csv
import json
import random
import re
from dataclasses import replace
from math import isnan
from pathlib import Path
from xml.etree import ElementTree

import pytest

from helpers.report_folder import DSA_ONLY, METHODS, METRICS, bytes_of, folder_of, records, texts
from heta_lens.evaluation.report.folder_report import write_report
from heta_lens.evaluation.report.results import Summary, summary
from heta_lens.evaluation.run_folder import RUN, Record, append


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_tidy_table_has_all_numbers(written: Path, found: Summary) -> None:
    told = rows(written / "results.csv")
    assert ",".join([*told[0]][:8]) == "metric,method,value,low,high,n,skipped,degenerate"
    assert ",".join([*told[0]][8:13]) == "difference,difference_low,difference_high,p,better"
    assert [(row["metric"], row["method"]) for row in told] == [*found.cells]
    for row in told:
        cell = found.cells[row["metric"], row["method"]]
        assert "nan" not in row.values()
        assert (int(row["n"]), int(row["degenerate"])) == (cell.estimate.n, cell.degenerate)
        assert (int(row["skipped"]), int(row["failed"])) == (sum(cell.skipped.values()), sum(cell.failed.values()))
        assert (int(row["pending"]), row["better"]) == (cell.pending, METRICS[row["metric"]]["better"])
        if isnan(cell.estimate.value):
            assert row["value"] == "" and row["why"]
        else:
            assert float(row["value"]) == pytest.approx(cell.estimate.value, rel=1e-5)
            assert float(row["high"]) == pytest.approx(cell.estimate.high, rel=1e-5)
        if cell.difference and cell.difference.n:
            assert row["p"] == f"{cell.p:.6g}"
            assert float(row["difference_low"]) == pytest.approx(cell.difference.low, rel=1e-5)
    missing = rows(written / "missing.csv")
    assert {"metric": "dsa", "method": "half", "reason": "not run yet", "instances": "18"} in missing
    assert sum(int(row["instances"]) for row in missing if row["metric"] == "dsa" and row["method"] == "half") == 20
    costs = {row["method"]: row for row in rows(written / "costs.csv")}
    assert costs["broken"]["n"] == "0" and costs["broken"]["seconds"] == ""
    assert float(costs["ours"]["seconds"]) == pytest.approx(3 * (0.25 + 11.5 / 64), rel=1e-5)
    assert costs["half"]["forwards"] == "5"


def test_every_cell_of_the_tables_says_something(written: Path) -> None:
    text = (written / "report.md").read_text()
    assert not re.search(r"\bnan\b", text + (written / "report.html").read_text(), re.IGNORECASE)
    for line in [line for line in text.splitlines() if line.startswith("| ")]:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        # Only the reference, and what cannot be compared with it, has no p.
        assert all(cells[:-1]) and (cells[-1] or cells[-2] == "the reference" or cells[-2].startswith("none"))
    assert "| broken | none (a) | none (a) | none (a) |" in text
    assert r"- (a) failed: cannot be asked: no \| words (24)" in text
    assert "- (b) no gold words (24)" in text
    assert "-∞ [-∞, -∞]" in text and "A logarithm is -∞" in text
    assert "| half | † 0." in text and "| ours | ‡ 0." in text and "| lime samples=80 | ▼ 0." in text


@pytest.mark.slow
def test_a_word_of_methods_not_asked_for(tmp_path: Path) -> None:
    three = {name: METHODS[name] for name in ("lime samples=80", "ours", "half")}
    folder = folder_of(tmp_path, records(), {**DSA_ONLY, "methods": three})
    write_report(folder)
    assert "records of a\\|b \\<i>, broken." in (folder / "report.md").read_text()


@pytest.mark.slow
def test_the_order_things_were_finished_in_says_nothing(tmp_path: Path, written: Path) -> None:
    mixed = records()
    random.Random(1).shuffle(mixed)
    write_report(folder_of(tmp_path / "mixed", mixed))
    assert bytes_of(tmp_path / "mixed") == bytes_of(written)


def test_the_page_is_well_formed_and_needs_nothing(written: Path) -> None:
    text = (written / "report.html").read_text()
    root = ElementTree.fromstring(text)
    svgs = [one for one in root.iter() if one.tag.endswith("}svg")]
    assert len(svgs) == len(METRICS) + 1
    ids = [one.get("id") for one in root.iter() if one.get("id")]
    assert len(ids) == len(set(ids))
    used = re.findall(r'href="([^"]*)"|url\(([^)]*)\)', text)
    assert used and all((link or url).startswith("#") and (link or url)[1:] in ids for link, url in used)
    assert "src=" not in text and "<script" not in text and "@import" not in text
    assert "a|b <i>" in texts(root) and "prefers-color-scheme: dark" in text and 'name="viewport"' in text
    assert "currentColor" in text and "#222222" not in text
    assert len(list(root.iter("table"))) == 2 + len(METRICS) + 3


@pytest.mark.parametrize(("templates", "said"), [(3, True), (12, False)])
def test_a_report_says_where_no_difference_could_be_told(tmp_path: Path, templates: int, said: bool) -> None:
    run = {"methods": {name: {"method": name} for name in ("heta", "b")}, "metrics": {"f1": {}}, "instances": templates}
    (tmp_path / RUN).write_text(json.dumps(run))
    for at in range(templates):
        for name, value in {"heta": 1.0, "b": 0.0}.items():
            append(tmp_path, Record(f"{at}", name, f"template {at}", {"f1": value}))
    write_report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert (f"p is at least {2 / templates**templates:.2g}" in text) is said
    assert (summary(tmp_path).best.get("f1") == "heta") is not said


@pytest.mark.slow
def test_formulas_of_others_are_texts_in_every_table(tmp_path: Path) -> None:
    evil = '=HYPERLINK("http://x","y")'
    run = {**DSA_ONLY, "methods": {evil: {"method": "lime", "options": {}}, **METHODS}}
    found = [replace(one, method=evil, failed="") if one.method == "ours" else one for one in records()]
    found += [Record("story-0", "ours", "told 0", failed=evil)]
    folder = folder_of(tmp_path / "evil", found, run)
    write_report(folder)
    for name in ("results.csv", "missing.csv", "costs.csv"):
        cells = [cell for row in rows(folder / name) for cell in row.values()]
        assert not any(cell.startswith("=") for cell in cells)
    assert any(row["method"] == f"'{evil}" for row in rows(folder / "results.csv"))
