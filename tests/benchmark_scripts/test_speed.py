"""The naive implementation that speed is measured against gives the library's numbers, and counts are what they say."""

from typing import Any

import pytest
import torch
from rich.console import Console

from benchmarks import long
from benchmarks.peak_memory import peak
from benchmarks.reference import naive_curvature, naive_information
from benchmarks.speed import cheaper_ways, models, tables
from benchmarks.speed.cases import Case, Plan
from benchmarks.speed.costs import COSTS, FLOP_COLUMNS, cost_rows, costs, flop_row
from benchmarks.speed.flops import counted, forward_flops, suffix_flops
from benchmarks.speed.long_contexts import LONG_COLUMNS, long_rows
from benchmarks.speed.pages import MARKS, MODELS_PAGE, WAIT_TITLE, page, rewritten
from benchmarks.speed.parts import PARTS, ROW, extrapolated, grouped_s, naive_s, one_by_one_s
from helpers import zoo
from helpers.asking import explain, relative
from heta_lens.model.batching import Batches

TARGET, PROBES, SEED = 7, 3, 5
SEVERAL = "bridge-(llama|bloom|native)|hooked-(rotary_gqa|alibi)"


@pytest.fixture
def case() -> Case:
    model = zoo.native_bridge()
    return Case.of(model, zoo.prompt(model, 12), Plan(2, 2, 2))


@pytest.mark.parametrize("build", zoo.models(SEVERAL))
def test_the_naive_implementation_finds_the_same_parts(build: Any) -> None:
    model = build()
    ids, some = zoo.prompt(model), [0, 3, 7]
    parts = explain(model, ids, TARGET, probes=PROBES, seed=SEED).parts
    curvature = naive_curvature(model, ids, TARGET, some, PROBES, SEED)
    assert relative(parts["curvature"][some], curvature) < 1e-6
    assert relative(parts["information"][some], naive_information(model, ids, some)) < 1e-6


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked")
def test_it_costs_less_than_the_naive_implementation_and_more_than_the_floor(case: Case) -> None:
    found = costs(case, 2)
    for part, cost in found.items():
        assert cost.difference < 1e-6 or part == ROW  # which is another number
        assert cost.flops[0] > cost.flops[1] > cost.floor > 0
        assert len(cost.seconds) == 2 and min(*cost.seconds[0], *cost.seconds[1], *cost.memory) > 0


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_of_a_long_context_only_the_default_is_measured(case: Case) -> None:
    found = costs(case, 1, long=True)
    assert found.keys() == PARTS.keys()
    rows = [dict(zip(COSTS, row, strict=True)) for row in cost_rows(case, found)]
    assert [row["part"] for row in rows] == ["curvature", "information", "together"]
    assert float(rows[2]["ours / floor"].lstrip("~")) > 1


@pytest.mark.thorough
def test_products_are_as_many_whatever_the_length_and_flops_grow_with_it() -> None:
    model, rows = zoo.native_bridge(), []
    for n in (20, 40):
        case = Case.of(model, zoo.prompt(model, n), Plan(2, 2, None))
        rows.append(dict(zip(FLOP_COLUMNS, flop_row(case, costs(case, 1)), strict=True)))
    short, long = rows
    assert (short["N"], long["N"]) == ("20", "40")
    assert short["HVPs"] == long["HVPs"] == str(2 * 16 + 1)
    assert [row["masked runs"] for row in rows] == ["21", "41"]
    growth = {column: float(long[column]) / float(short[column]) for column in FLOP_COLUMNS[3:6]}
    assert 1.9 < growth["curvature, GFLOP"] < 4.2  # at most attention's own square


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("ways", [*PARTS.values(), (naive_s, one_by_one_s)])
def test_a_sample_stands_for_all(ways: tuple[Any, Any]) -> None:
    """By the FLOPs that are counted, which chance has no part in; a plan without limits measures every token."""
    model = zoo.native_bridge()
    few = Case.of(model, zoo.prompt(model, 16), Plan(1, 2, 2))
    every = few._replace(plan=Plan(1, None, None))
    with few.prediction.running():
        for one in ways:
            some, whole = (counted(lambda read, one=one, of=of: one(of, read)) for of in (few, every))
            assert sorted(whole.found) == [*range(16)] and some.found.keys() <= whole.found.keys()
            assert some.total == pytest.approx(whole.total, rel=0.1)


def test_one_probe_stands_for_the_others_of_groups() -> None:
    model = zoo.native_bridge()
    few = Case.of(model, zoo.prompt(model, 24), Plan(4, 2, 2))
    every = few._replace(plan=Plan(4, None, None))
    with few.prediction.running():
        some, whole = (counted(lambda read, of=of: grouped_s(of, read)) for of in (few, every))
    expected = explain(model, few.ids, few.target, probes=4, variant="hessian_only").parts["curvature"]
    assert relative(torch.tensor([*whole.found.values()]), expected.float()) < 1e-5 and not some.found
    assert some.total == pytest.approx(whole.total, rel=0.02)


@pytest.mark.parametrize("build", zoo.models("bridge-(native|llama)$|hooked-(standard|rotary_gqa)"))
def test_runs_are_worth_what_is_worked_out_by_hand(build: Any) -> None:
    """They are those that torch counts."""
    model = build()
    case = Case.of(model, zoo.prompt(model, 12), Plan(1, 1, 1))
    assert forward_flops(case) == suffix_flops(model.cfg, 12, 12, read=12)


def test_products_in_a_batch_are_counted_each(case: Case) -> None:
    """They are counted as many times as there are products in the batch."""
    operator = case.whole.hessian_from(Batches(4), lambda _: None, 0)
    directions = torch.ones(4, case.whole.states.shape[1]).to(case.whole.states)

    def flops(count: int) -> float:
        return counted(lambda read: (operator.matmat(directions[:count], 0), read())[1])

    assert flops(4) == 4 * flops(1) > 0


def test_memory_is_the_most_that_is_held_at_once() -> None:
    def run() -> None:
        one = torch.ones(2**20)
        other = one + 1
        del one
        other.add_(1)

    assert peak(run) == pytest.approx(8, rel=1e-3)


def test_what_was_measured_is_interpolated() -> None:
    assert extrapolated({8: (1, 2), 4: (3, 1)}, [8, 6, 4], [2, 2, 1]) == (1 + 4) + (2 + 3) + (3 + 1)


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked")
def test_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(models.MODELS, "tiny", zoo.native_bridge)
    monkeypatch.setattr(
        cheaper_ways, "WAYS", {way: cheaper_ways.WAYS[way] for way in ('support="row"', 'variant="gs"')}
    )
    made = [*tables.measured("tiny", [8, 100], 1, 2, Console(stderr=True))]
    assert [len(rows) for _, _, rows in made] == [5, 1, 3]
    assert all(len(row) == len(columns) for _, columns, rows in made for row in rows)
    assert "N = 100 skipped" in capsys.readouterr().err
    text = ""
    for table in [*made[::-1], made[1]]:
        text = page(text, table)
    assert text.count("| together |") == text.count('| support="row" |') == 1  # a table replaces the one before it
    assert text.index("| together |") < text.index('| support="row" |')


def test_rows_of_other_lengths_stay() -> None:
    title, columns = "demo: FLOPs by context length", ["N", "of"]
    text = ""
    for rows in [["32", "a"], ["512", "b"]], [["128", "c"], ["512", "d"]]:
        text = page(text, (title, columns, rows))
    assert [line for line in text.splitlines() if line.startswith("| ")][2:] == [
        "| 32 | a |",
        "| 128 | c |",
        "| 512 | d |",
    ]
    text = page(text, (title, ["N", "other"], [["32", "e"]]))
    assert [line for line in text.splitlines() if line.startswith("| ")][2:] == [
        "| 32 | e |"
    ]  # the others are not of it


@pytest.mark.slow
def test_what_is_proposed_for_a_long_context_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long, "MODEL", "demo")
    monkeypatch.setattr(long, "LENGTH", 200)
    monkeypatch.setattr(long, "ROOM", 2**26)  # in which the whole context's graph would not fit
    title, columns, (row,) = long.measured()
    assert title == "demo: what memory holds"
    assert dict(zip(columns, row, strict=True))["proposed for 9 GiB"].startswith("variant='win'")
    assert 0.1 < float(row[-1]) < 24 and float(row[-3].strip("~")) > 0
    assert title in page("", (title, columns, [row]))


def test_the_page_has_a_place_for_its_table() -> None:
    text = MODELS_PAGE.read_text()
    table = (WAIT_TITLE, ["tokens", "s"], [["32", "1"]])
    once = rewritten(text, table)
    assert "| 32 | 1 |" in once and rewritten(once, table) == once
    assert [once.count(mark) for mark in MARKS] == [1, 1]


@pytest.mark.thorough
def test_the_full_score_is_the_measure_of_long_contexts(case: Case) -> None:
    little = case._replace(plan=Plan(1, 1, 1))
    rows = [*long_rows(little, costs(little, 1))]
    assert all(len(row) == len(LONG_COLUMNS) for row in rows)
    assert rows[0][-1] == "~1"
