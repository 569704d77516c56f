"""Reports of made-up records: cells, tables, pages, figures and files."""

import csv
import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import StringIO
from math import cos, inf, isnan, log
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq

from helpers.report_folder import (
    DSA_ONLY,
    METHODS,
    METRICS,
    RUNS,
    N,
    bytes_of,
    folder_of,
    mean_of,
    record,
    records,
    texts,
)
from heta_lens.evaluation.report.document import Footnotes, Heading, Notes, Paragraph, Table, markdown, page, sheet
from heta_lens.evaluation.report.figures import BETTER, NOT_SIGNIFICANT, REFERENCE, WORSE, mark
from heta_lens.evaluation.report.folder_report import write_report
from heta_lens.evaluation.report.results import SIGNIFICANT, Summary, summary
from heta_lens.evaluation.run_folder import RUN, Record, append
from heta_lens.evaluation.statistics import corrected, difference


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = folder_of(tmp_path_factory.mktemp("made"), records())
    paths = write_report(folder)
    assert all(path.is_file() for path in paths)
    return folder


@pytest.fixture(scope="session")
def found(written: Path) -> Summary:
    return summary(written)


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


def test_what_is_best_near_0_is_compared_by_its_distance(found: Summary) -> None:
    half, even = found.cells["bias", "half"].difference, range(0, 12, 2)
    assert half is not None
    assert half.value == pytest.approx(abs(mean_of("half", "bias", even)) - abs(mean_of("ours", "bias", even)))
    assert mark(found, found.metrics["bias"], "lime samples=80") == BETTER
    assert mark(found, found.metrics["bias"], "a|b <i>") == WORSE
    assert found.ranked(found.metrics["bias"])[0] == "lime samples=80"


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


def test_one_instance_has_no_interval(tmp_path: Path) -> None:
    write_report(folder_of(tmp_path, [record("ours", 1), record("lime samples=80", 1)], DSA_ONLY))
    text = (tmp_path / "report.md").read_text()
    assert re.search(r"\| ours \| ‡ 0\.\d{3} \[one instance\]", text)
    assert "nan" not in text


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


def test_texts_cannot_break_a_document() -> None:
    nasty = "a | b <script> *c* `d` _e_ f_g\n[h](i) & \\"
    blocks = [Heading(nasty), Paragraph(nasty), Notes([nasty]), Table([nasty], [[nasty]], bold=frozenset({(0, 0)}))]
    root = ElementTree.fromstring(page(nasty, blocks))
    assert texts(root).count("<script>") == 6
    text = markdown(blocks)
    assert len(text.splitlines()) == 9
    assert r"a \| b \<script> \*c\* \`d\` \_e\_ f_g [h]\(i) & \\" in text


TEXTS = [
    "=HYPERLINK(1)",
    "+1+1",
    "-1 ± 2",
    "@SUM(A1)",
    "\tx",
    "\rx",
    "＝1",
    "'=1",
    "''=1",
    "'a",
    "a=1",
    "",
    "-",
    "it's",
]


def read_back(cell: str) -> str:
    """As the documentation says."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(tuple("=+-@\t\r\n＝＋－＠")) else cell


def test_no_text_becomes_a_formula_and_every_text_can_be_read_back() -> None:
    found = [row["text"] for row in csv.DictReader(StringIO(sheet(pd.DataFrame({"text": [*TEXTS, "x"]})), newline=""))]
    found = [*found[: TEXTS.index("")], "", *found[TEXTS.index("") :]] if len(found) == len(TEXTS) else found
    assert not any(cell.startswith(("=", "+", "@", "\t", "\r", "＝")) for cell in found)
    assert [read_back(cell) for cell in found] == [*TEXTS, "x"]


def test_a_report_shows_what_would_steer_a_terminal() -> None:
    blocks = [Heading("\x1b[2Ja"), Paragraph("\u202eb"), Table(["x"], [["\x9bc"]])]
    for told in (markdown(blocks), page("\x1bt", blocks)):
        assert not set(told) & set("\x1b\u202e\x9b") and "␛[2Ja" in told


def test_a_note_keeps_its_letter() -> None:
    notes = Footnotes()
    assert [notes.letter(note) for note in ("slow", "none", "slow")] == ["a", "b", "a"]
    assert notes.lines() == ["(a) slow", "(b) none"]
