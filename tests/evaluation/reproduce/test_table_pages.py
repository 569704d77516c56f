"""A real model fills its own block of a table."""

import csv
from io import StringIO
from pathlib import Path

import pytest

from helpers.small_tables import SMALL
from heta_lens.evaluation.reproduce import prompt_sets, reproduce, reproduce_table
from heta_lens.evaluation.reproduce.paper_values import printed


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
