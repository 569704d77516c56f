"""Work is counted where it happens, and goes to the innermost count."""

from collections import Counter
from time import perf_counter

from heta_lens._util.work import Work, count, counting


def test_units_of_each_kind_are_counted_together():
    work = Work()
    for kind, units in (("hvps", 4), ("forwards", 1), ("hvps", 2)):
        work.add(kind, units)
    assert {name: work.cost()[name] for name in ("forwards", "hvps")} == {"forwards": 1, "hvps": 6}


def test_no_work_costs_nothing_but_time():
    cost = Work(started=perf_counter() - 5).cost()
    assert (cost["forwards"], cost["hvps"]) == (0, 0)
    assert 5 <= cost["seconds"] < 6


def test_what_is_counted_goes_to_the_innermost_count_only():
    count("forwards", 100)  # to nobody
    with counting(Counter()) as outer:
        count("forwards", 1)
        with counting(Counter()) as inner:
            count("forwards", 2)
        count("backwards", 3)
    assert (outer, inner) == ({"forwards": 1, "backwards": 3}, {"forwards": 2})


def test_what_ran_is_what_was_paid():
    """What moved the bar is an expectation; the model's own count takes its place."""
    work = Work()
    work.add("forwards", 5)
    with work.counting():
        count("forwards", 3)
    assert {name: work.cost()[name] for name in ("forwards", "backwards", "hvps")} == {
        "forwards": 3,
        "backwards": 0,
        "hvps": 0,
    }


def test_a_step_has_counts_of_its_own():
    work = Work()
    with work.step() as step:
        step.add("hvps", 2)
        count("forwards", 1)
    assert (step.cost()["hvps"], step.cost()["forwards"]) == (2, 1)
    assert (work.cost()["hvps"], work.cost()["forwards"]) == (0, 0)
