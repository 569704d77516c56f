"""The paper's tables: printed figures, rows, columns, cells and pages."""

import csv
import re
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import SHARED, zoo
from helpers.asking import predict
from helpers.evaluating import demo, prediction_of
from heta_lens.evaluation.records import Record
from heta_lens.evaluation.reproduce import TABLES, reproduce, reproduce_table
from heta_lens.evaluation.reproduce.cells import (
    SEEDS,
    Measure,
    Place,
    Setting,
    change,
    changed,
    figure,
    first_token,
    printed,
)
from heta_lens.evaluation.reproduce.reproduce_table import Effort
from heta_lens.model import loading

SMALL = Effort(
    limit=2,
    heta={"probes": 2, "support": "row"},
    smaller={"rank": 2, "window": 16, "layers": 1},
    shorter={
        "faml": {"steps": 2},
        "reagent": {"max_steps": 2},
        "causal_tracing": {"samples": 1, "layers": 1},
        "integrated_gradients": {"steps": 2},
        "context_cite": {"samples": 4, "held_out": 2},
        "gilot": {"nucleus": 0.1},
    },
    length=40,
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce_table, "QUICK", SMALL)
    monkeypatch.setattr("heta_lens.metrics.evaluators.RUNS", 2)
    monkeypatch.setattr(loading, "load_model", lambda _, **__: demo())


PAPER = SHARED / "paper" / "heta.tex"

needs_paper = pytest.mark.skipif(not PAPER.is_file(), reason="the paper is not here")


def tabulars() -> dict[str, str]:
    """Every table of the paper that has cells, by its label."""
    found = {}
    for kind in ("table", "wraptable"):
        for body in re.findall(rf"\\begin{{{kind}\*?}}.*?\\end{{{kind}\*?}}", PAPER.read_text(encoding="utf-8"), re.S):
            (label,) = re.findall(r"\\label\{([^}]*)\}", body)
            found[label] = re.search(r"\\begin\{tabular.*?\\end\{tabular", body, re.S)[0]
    return found


def numbers(body: str) -> list[str]:
    """The figures of its cells, in their order."""
    cells = re.sub(r"\{,\}|\\(text|under)(bf|line)|[{}$]", "", body)
    rows = [row.split("&")[1:] for row in cells.split(r"\\") if "uparrow" not in row and "cmidrule" not in row]
    return re.findall(r"(?<![\w.-])[-+]?\d+(?:\.\d+)?", " ; ".join(cell for row in rows for cell in row))


def copied(name: str) -> list[str]:
    table = printed()[name]
    found = [figure for _, figure in table.figures()]
    if table.across:  # its blocks are columns
        found = [block.rows[row][0] for row in table.rows for block in table.blocks]
    rows = [number for one in found for number in re.findall(r"[-+]?\d+(?:\.\d+)?", one)]
    if name == "beta_gamma":  # whose first column is in the rows' names
        gammas = [row.rpartition(" ")[2] for row in table.rows]
        rows = [one for at, gamma in enumerate(gammas) for one in (gamma, *rows[4 * at : 4 * at + 4])]
    return rows


@needs_paper
def test_every_table_of_the_paper_is_there() -> None:
    labels = [label for table in printed().values() for label in table.labels]
    assert sorted(labels) == sorted(tabulars())
    assert {*TABLES} == {*printed()}


@needs_paper
@pytest.mark.parametrize("name", printed())
def test_figures_are_those_of_the_paper(name: str) -> None:
    assert copied(name) == numbers(tabulars()[printed()[name].labels[0]])


def test_what_cannot_be_is_printed_and_has_a_reason() -> None:
    for table in printed().values():
        places = dict(table.figures())
        for place, reasons in table.impossible.items():
            assert place in places, place
            assert reasons and all(len(reason) > 20 for reason in reasons)
    alike = [Place("GPT-J 6B", row, "Soft-NC") for row in ("No Transition Gating", "Uniform Transition")]
    assert all(any("equal" in one for one in printed()["components"].impossible[place]) for place in alike)
    dsa = dict(printed()["dsa"].figures())
    assert {place for place in dsa if abs(float(dsa[place])) > 1} == {*printed()["dsa"].impossible}


@pytest.mark.usefixtures("unchecked")
def test_curvature_of_the_last_layers_is_that_of_all_rows() -> None:
    """As the paper has it for its largest model."""
    effort, last = Effort(limit=1, heta={"probes": 2, "support": "row"}), {"variant": "ls", "layers": 2}
    assert effort.entry("HETA (Full)", **last).options["variant"] == "ls"
    assert effort.entry("HETA-LS (4 layers)", **last).options["layers"] == 4
    bare = effort.entry("HETA-No-Gate", **last).options
    assert (bare["variant"], bare["layers"], bare["gate"]) == ("ls", 2, "none")
    assert {block.last_layers for block in printed()["main"].blocks} == {0, 6}


def test_settings_are_compared_as_their_figures_say() -> None:
    values = np.array([[2.0, 2.1, 1.9]]).repeat(SEEDS, 1)
    assert changed(["mean"], 3, False, values) == pytest.approx([10.0])
    assert changed(["mean"], 3, True, values) == pytest.approx([5])
    pairs = np.stack([np.exp(values), np.ones_like(values)], -1).reshape(1, -1)
    assert changed(["log_ratio"], 3, False, pairs) == pytest.approx([10.0])
    assert changed(["mean"], 3, False, np.zeros((1, 9))) == pytest.approx([0.0])
    assert np.isnan(change(np.array([[0.1, 0.2, 0.0], [-0.1, -0.2, 0.0]]), False))
    around = np.array([[-1.0, 0.0, 1.0]]).repeat(SEEDS, 1)
    assert np.isnan(changed(["mean"], 3, False, around)).all()


def test_a_setting_chooses_by_what_it_says() -> None:
    asked = prediction_of(zoo.bridge("gpt2"))
    best = int(asked.log_probs.argmax())
    assert first_token(asked, Setting()) == best == first_token(asked, Setting(temperature=5.0, top_k=1))
    assert first_token(asked, Setting(temperature=5.0, top_p=1e-6)) == best
    hot = {first_token(asked, Setting(temperature=50.0), seed) for seed in range(20)}
    assert len(hot) > 5
    few = {first_token(asked, Setting(temperature=50.0, top_k=3), seed) for seed in range(60)}
    assert few == {*asked.log_probs.topk(3).indices.tolist()}
    said = predict(zoo.bridge("gpt2"), torch.tensor([[*asked.ids.tolist()[:-1], best]]))
    top = int(said.log_probs.argmax())
    strict = first_token(said, Setting(repetition=1e6))
    assert strict not in said.ids.tolist() and (top in said.ids.tolist()) == (strict != top)


def test_what_is_missing_is_said() -> None:
    def record(number: int, value: Any, **more: Any) -> Record:
        return Record(
            f"{number}", "heta", values={"f1": value}, reasons={} if value is not None else {"f1": "no"}, **more
        )

    measure = Measure("f1", ("one", "other"), times=10)
    whole = figure(measure, {"one": [record(0, 0.5), record(1, 1.0)], "other": [record(2, 0.0), record(3, 0.5)]}, {})
    assert whole.estimate.value == pytest.approx(5.0) and whole.estimate.n == 4 and whole.notes == ()
    assert whole.estimate.low <= 5.0 <= whole.estimate.high
    part = figure(measure, {"one": [record(0, 0.5), record(1, None)], "other": [record(2, 0.0)]}, {})
    assert part.estimate.value == pytest.approx(2.5) and "no (1 of 2 prompts)" in part.notes
    none = figure(measure, {"one": [record(0, None)], "other": [record(2, 0.0)]}, {})
    assert none.estimate is None and none.notes == ("no (1 of 1 prompts)",)
    unread = figure(measure, {"one": [record(0, 0.5)]}, {"other": "not there"})
    assert unread.estimate is None and unread.notes == ("not there",)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked", "small")
@pytest.mark.parametrize("name", TABLES)
def test_every_cell_has_a_figure_or_says_why_not(name: str, out: Path) -> None:
    page, sheet = (path.read_text(encoding="utf-8") for path in reproduce(name, quick=True, out=out, progress=False))
    table, lines = printed()[name], [*csv.DictReader(StringIO(sheet))]
    assert "nan" not in page.lower() and "nan" not in sheet.lower()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    assert all(cell for row in cells for cell in row)
    ours = [line for line in lines if line["n"] != "0"]
    for line in lines:
        if line["ours"]:
            assert float(line["ours"]) == pytest.approx(float(line["ours"])) and int(line["n"]) > 0
        else:
            assert line["note"] and line["n"] == "0", line
        assert line["paper"] or "not in the paper" in line["note"]
        shown = line["paper"].replace("*", r"\*")
        assert shown in page and line["row"] in page
    rows, columns = (len({line[what] for line in lines}) for what in ("row", "column"))
    assert (rows, columns) == (len(table.rows), len(table.columns))
    assert len(ours) >= (rows * columns) * 0.5, "most of one block can be filled"
    assert page.count(r"\*") == 0 or table.impossible
    for reasons in table.impossible.values():
        assert all(reason.split(",")[0] in page for reason in reasons)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"table": "mian", "quick": True}, "did you mean 'main'"),
        ({"table": "main"}, "give model="),
        ({"table": "main", "quick": True, "model": "gpt2"}, "and not both"),
        ({"table": "main", "quick": True, "paths": {"longra": "x"}}, "leave out paths"),
        ({"table": "main", "model": "gpt2", "paths": {"lonra": "x"}}, "did you mean 'longra'"),
        ({"table": "main", "quick": True, "options": {"beta": 1.0}}, "rows of tables"),
    ],
)
def test_what_cannot_be_made_is_refused(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        reproduce(**given, out=tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("unchecked", "small")
def test_a_model_fills_its_own_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce_table, "WHOLE", SMALL)
    monkeypatch.setattr(reproduce_table, "READ", reproduce_table.MADE)
    monkeypatch.setattr(
        reproduce_table.Reproduction, "entries", {row: SMALL.entry("TDD-backward") for row in printed()["dsa"].rows}
    )
    page, sheet = reproduce("dsa", model="eleutherai/GPT-J-6B", out=tmp_path, progress=False)
    lines = [*csv.DictReader(StringIO(sheet.read_text(encoding="utf-8")))]
    assert {line["block"] for line in lines if line["ours"]} == {"GPT-J"}
    assert all("needs --model" in line["note"] for line in lines if line["block"] != "GPT-J")
    assert "demo model" not in page.read_text(encoding="utf-8")
