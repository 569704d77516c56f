"""The comparison of methods by interventions: what is measured, and what its page makes of it."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.outcomes import Outcomes
from benchmarks.rivals import __main__ as rivals
from benchmarks.rivals import page
from benchmarks.rivals.page import Entry
from benchmarks.study.families import FAMILIES, Case
from benchmarks.study.interventions import MEASURES


@cache
def cases() -> list[Case]:
    return [*FAMILIES["contest"].cases("contest", "test", 6)]


def test_methods_that_refuse_or_cost_too_much_say_so() -> None:
    found = rivals.outcome(cases()[0], ["attn_lrp", "leave_one_out", "kernel_shap", "random", "heta row"], 3)
    assert found["methods"] == ["attn_lrp", "random"] and found["runs"] == [3.0, 0.0]
    assert "over the budget of 3" in found["refused"]["leave_one_out"]
    assert {*found["refused"]} == {"leave_one_out", "kernel_shap", "heta row"}
    assert [len(row) for row in found["measures"]] == [len(MEASURES)] * 2 and len(found["evidence"]) == 2


def test_a_budget_limits_what_a_method_takes() -> None:
    plain, within = (rivals.outcome(cases()[0], ["lime"], budget) for budget in (None, 30))
    assert plain["runs"][0] > 100 and 20 < within["runs"][0] <= 30


def test_the_front_holds_what_nothing_cheaper_is_better_than(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "compared", lambda: ["one"])
    every = [
        Entry(name, None, quality, 0.0, runs, 1)
        for name, quality, runs in [
            ("cheap", 0.5, 1),
            ("worse", 0.4, 2),
            ("dear", 0.9, 100),
            ("between", 0.7, 10),
            ("equal", 0.9, 200),
        ]
    ]
    partial = Entry("of few families", None, 1.0, 0.0, 1.0, 0)
    assert [one.method for one in page.front([*every, partial])] == ["cheap", "between", "dear"]


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A few methods on a few contests."""
    groups = {
        "quick": (("heta", "attn_lrp", "random"), None),
        "settings": ((), None),
        "slow": ((), None),
        "budget 3": (("attn_lrp", "random"), 3),
    }

    def outcomes(family: str, group: str) -> Outcomes:
        return Outcomes(f"{family}_{group}".replace(" ", "_"), tmp_path)

    for cached in (page.kept, page.rows, page.verdicts):
        cached.cache_clear()
    monkeypatch.setattr(page, "GROUPS", groups)
    monkeypatch.setattr(page, "BUDGETS", (3,))
    monkeypatch.setattr(page, "outcomes_of", outcomes)
    monkeypatch.setattr(page, "PAGE", tmp_path / "rivals.md")
    monkeypatch.setattr(page, "FIGURE", tmp_path / "rivals.svg")
    for group in ("quick", "budget 3"):
        rivals.measure(outcomes("contest", group), {case.id: case for case in cases()}, *groups[group])
    yield tmp_path
    for cached in (page.kept, page.rows, page.verdicts):
        cached.cache_clear()


@pytest.mark.slow
def test_a_method_is_compared_on_the_prompts_that_both_were_measured_on() -> None:
    row = page.Row([("a",), ("b",), ("c",)], ["t", "u", "v"], np.array([[1.0], [2.0], [3.0]]), 1.0, 1.0)
    same = row.of([("c",), ("d",), ("a",)])
    assert (same.keys, same.templates, same.values.tolist()) == ([("c",), ("a",)], ["v", "t"], [[3.0], [1.0]])


@pytest.mark.slow
def test_the_page_is_written_from_what_was_measured(measured: Path) -> None:
    page.write()
    text = (measured / "rivals.md").read_text(encoding="utf-8")
    assert "## Contest" in text and "6 prompts of" in text and "nan" not in text
    assert "number " in text and " of 3 rows (methods as they are proposed" in text
    assert (measured / "rivals.svg").exists()
    rows: dict[str, Any] = {one.method: one for one in page.entries() if one.budget is None}
    assert rows["random"].quality < rows["attn_lrp"].quality
