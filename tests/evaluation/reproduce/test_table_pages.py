"""A real model fills its own block of a table."""

import csv
from io import StringIO
from math import inf, nan
from pathlib import Path

import pytest

from helpers.small_tables import SMALL
from heta_lens.evaluation.reproduce import pages, reproduce, reproduce_table
from heta_lens.evaluation.reproduce import reproduce_table as prompt_sets
from heta_lens.evaluation.reproduce.cells import printed
from heta_lens.evaluation.statistics import Estimate


@pytest.mark.usefixtures("unchecked", "small")
def test_a_model_fills_its_own_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce_table, "WHOLE", SMALL)
    monkeypatch.setattr(prompt_sets, "READ", prompt_sets.MADE)
    monkeypatch.setattr(
        reproduce_table.Making, "entries", {row: SMALL.entry("TDD-backward") for row in printed()["dsa"].rows}
    )
    page, sheet = reproduce("dsa", model="eleutherai/GPT-J-6B", out=tmp_path, progress=False)
    lines = [*csv.DictReader(StringIO(sheet.read_text(encoding="utf-8")))]
    assert {line["block"] for line in lines if line["ours"]} == {"GPT-J"}
    assert all("needs --model" in line["note"] for line in lines if line["block"] != "GPT-J")
    assert "demo model" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1234.0, "1,234 [1,233, 1,235]"),
        (100.0, "100 [99, 101]"),
        (-100.0, "-100 [-101, -99]"),
        (99.5, "99.500 [98.500, 100.500]"),
    ],
)
def test_large_figures_have_no_decimals(value: float, written: str) -> None:
    assert pages._with_interval(Estimate(value, value - 1, value + 1, 9, 9, "instances")) == written


def test_a_figure_without_bounds_stands_alone() -> None:
    assert pages._with_interval(Estimate(250.0, nan, nan, 1, 1, "instances")) == "250"
    assert pages._with_interval(Estimate(inf, nan, nan, 1, 1, "instances")).startswith("∞")
