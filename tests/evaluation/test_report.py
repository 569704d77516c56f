"""Reports of made-up records: cells, tables, pages, figures and files."""

import csv
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import cos, isnan
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from helpers.evaluating import recorded
from heta_lens._util.files import RUN
from heta_lens.evaluation.records import Record
from heta_lens.evaluation.report.document import Heading, Notes, Paragraph, Table, markdown, page
from heta_lens.evaluation.report.figures import BETTER, WORSE, mark
from heta_lens.evaluation.report.folder_report import write_report
from heta_lens.evaluation.report.results import Summary, summary
from heta_lens.evaluation.statistics import corrected

METRICS = {
    "dsa": {"title": "Sentence share", "better": "more", "low": -1.0, "high": 1.0, "cost": "nothing"},
    "error": {"title": "Error", "better": "less", "low": 0.0, "high": None},
    "bias": {"title": "Bias", "better": "less", "variant": "of sums", "source": "ours."},
    "soft_nc": {"title": "Soft-NC", "better": "more", "aggregate": "log_ratio"},
    "absent": {"title": "", "better": "more"},
}
METHODS = {
    "lime samples=80": {"method": "lime", "options": {"samples": 80}},
    "ours": {"method": "heta", "options": {}},
    "half": {"method": "reagent", "options": {"top": 3}},
    "broken": {"method": "sea_cot", "options": {}},
    "a|b <i>": {"method": "random", "options": {}},
}
RUNS: dict[str, Any] = {
    "suite": "recall",
    "suite_options": {"hops": 1},
    "model": "demo",
    "split": "test",
    "methods": METHODS,
    "metrics": METRICS,
    "versions": {"torch": "2.6"},
    "seed": 0,
    "limit": 24,
}
N = 24  # instances, of 8 templates
DSA = {"ours": 0.75, "lime samples=80": 0.5, "half": 0.7, "a|b <i>": 0.25}
BIAS = {"ours": 0.5, "lime samples=80": 0.125, "half": 0.25, "a|b <i>": 1.0}
OWN = {"ours": 0.8, "lime samples=80": 0.0, "half": 0.8, "a|b <i>": 0.2}


def record(method: str, number: int) -> Record:
    instance, template, seconds = f"story-{number}", f"told {number % 8}", 0.25 + number / 64
    if method == "broken":
        return Record(instance, method, template, failed="cannot be asked:\n no | words")
    wave = ((number * 7) % 5 - 2) / 32  # differs between instances, and is 0 on the whole of each 5
    wave += cos(number + len(method)) / 1024  # no two methods differ by as much everywhere
    dsa = None if number in (0, 8) else DSA[method] + wave
    return Record(
        instance,
        method,
        template,
        values={
            "dsa": dsa,
            "error": 1 - DSA[method] + wave,
            "bias": BIAS[method] + wave,
            "soft_nc": [OWN[method] * (1 + wave), 0.1],
            "absent": None,
        },
        reasons={"absent": "no gold words", **({"dsa": "no distractor"} if dsa is None else {})},
        degenerate=["dsa"] if method == "ours" and number < 4 else [],
        tokens=40,
        correct=number % 4 > 0,
        seconds=seconds * (3 if method == "ours" else 1),
        forwards=5,
        backwards=2,
        log_prob=-number / 8,
    )


def records() -> list[Record]:
    """Of all, but that half has only even instances of the first 12."""
    asked = [(method, number) for number in range(N) for method in METHODS]
    return [record(*one) for one in asked if one[0] != "half" or (one[1] < 12 and one[1] % 2 == 0)]


def folder_of(folder: Path, found: Sequence[Record], run: Mapping[str, Any] = RUNS) -> Path:
    return recorded(folder, run, found)


def mean_of(method: str, metric: str, numbers: Sequence[int] = range(N)) -> float:
    values = [record(method, number).values[metric] for number in numbers]
    known = [value for value in values if isinstance(value, float)]
    return sum(known) / len(known)


def texts(page: ElementTree.Element) -> str:
    return "".join(page.itertext())


def bytes_of(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != RUN]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = folder_of(tmp_path_factory.mktemp("made"), records())
    paths = write_report(folder)
    assert all(path.is_file() for path in paths)
    return folder


@pytest.fixture(scope="session")
def found(written: Path) -> Summary:
    return summary(written)


def test_a_metric_that_raised_has_failed_and_was_not_skipped(tmp_path: Path) -> None:
    raised = {"reasons": {"absent": "ZeroDivisionError: no"}, "errors": {"absent": "mine.py:3"}}
    made = [replace(record("ours", number), **(raised if number < 2 else {})) for number in range(5)]
    cell = summary(folder_of(tmp_path, made)).cells["absent", "ours"]
    assert (cell.failed, cell.skipped) == ({"ZeroDivisionError: no": 2}, {"no gold words": 3})


def test_a_folder_without_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds scores and no metrics"):
        write_report(folder_of(tmp_path, records(), {**RUNS, "metrics": {}}))


@pytest.mark.thorough
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


def test_of_what_should_be_low_the_lowest_is_best(found: Summary) -> None:
    assert mark(found, found.metrics["bias"], "lime samples=80") == BETTER
    assert mark(found, found.metrics["bias"], "a|b <i>") == WORSE
    assert found.ranked(found.metrics["bias"])[0] == "lime samples=80"


@pytest.mark.parametrize("method", ["lime samples=80", "ours", "a|b <i>"])
@pytest.mark.parametrize("metric", ["dsa", "error", "bias"])
def test_every_cell_is_a_mean_with_its_interval(found: Summary, metric: str, method: str) -> None:
    told = found.cells[metric, method].estimate
    assert told.value == pytest.approx(mean_of(method, metric))
    assert told.low < told.value < told.high
    assert (told.n, told.clusters) == (22 if metric == "dsa" else 24, 8)


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


@pytest.mark.thorough
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


def test_a_method_that_failed_on_the_hard_prompts_is_not_the_best(tmp_path: Path) -> None:
    def valued(method: str, number: int, value: float) -> Record:
        return replace(record(method, number), values={"dsa": value + cos(number + len(method)) / 999})

    found = [valued("half", number, 0.9) for number in range(8)]
    found += [valued("ours", number, 0.95 if number < 8 else 0.1) for number in range(N)]
    two = {name: METHODS[name] for name in ("ours", "half")}
    told = summary(folder_of(tmp_path, found, {**RUNS, "methods": two, "metrics": {"dsa": METRICS["dsa"]}}))
    assert told.cells["dsa", "half"].estimate.value > told.cells["dsa", "ours"].estimate.value and told.best == {}


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


@pytest.mark.thorough
def test_the_order_things_were_finished_in_says_nothing(tmp_path: Path, written: Path) -> None:
    mixed = records()
    random.Random(1).shuffle(mixed)
    write_report(folder_of(tmp_path / "mixed", mixed))
    assert bytes_of(tmp_path / "mixed") == bytes_of(written)


def test_the_page_is_well_formed_and_needs_nothing(written: Path) -> None:
    text = (written / "report.html").read_text()
    root = ElementTree.fromstring(text)
    svgs = [one for one in root.iter() if one.tag.endswith("}svg")]
    assert len(svgs) == len(METRICS)
    ids = [one.get("id") for one in root.iter() if one.get("id")]
    assert len(ids) == len(set(ids))
    used = re.findall(r'href="([^"]*)"|url\(([^)]*)\)', text)
    assert used and all((link or url).startswith("#") and (link or url)[1:] in ids for link, url in used)
    assert "src=" not in text and "<script" not in text and "@import" not in text
    assert "a|b <i>" in texts(root) and "prefers-color-scheme: dark" in text and 'name="viewport"' in text
    assert "currentColor" in text and "#222222" not in text
    assert len(list(root.iter("table"))) == 2 + len(METRICS) + 3


def test_notes_say_what_is_meant(written: Path) -> None:
    text = (written / "report.md").read_text()
    for said in (
        "24 instances of the test split, made from 8 templates. Methods are compared with ours.",
        "own prediction in 18 of 24 instances",
        "dsa: more is better; a mean over instances, at least -1 and at most 1. Cost: nothing.",
        "| lime samples=80 | lime | samples=80 |",
    ):
        assert said in text


@pytest.mark.slow
def test_figures_show_every_method(written: Path) -> None:
    shown = {path.name: texts(ElementTree.parse(path).getroot()) for path in (written / "figures").glob("*.svg")}
    assert sorted(shown) == [f"0{at}-{name}.svg" for at, name in enumerate(METRICS, 1)]
    assert all(method in text for method in METHODS for text in shown.values())
    assert "no value" in shown["01-dsa.svg"] and "← -∞" in shown["04-soft_nc.svg"]
    pages = [path.with_suffix(".pdf") for path in (written / "figures").glob("*.svg")]
    assert all(b"FontFile" in path.read_bytes() for path in pages)  # fonts are embedded, for papers


def test_texts_cannot_break_a_document() -> None:
    nasty = "a | b <script> *c* `d` _e_ f_g\n[h](i) & \\"
    blocks = [Heading(nasty), Paragraph(nasty), Notes([nasty]), Table([nasty], [[nasty]], bold=frozenset({(0, 0)}))]
    root = ElementTree.fromstring(page(nasty, blocks))
    assert texts(root).count("<script>") == 6
    text = markdown(blocks)
    assert len(text.splitlines()) == 9
    assert r"a \| b \<script> \*c\* \`d\` \_e\_ f_g [h]\(i) & \\" in text
