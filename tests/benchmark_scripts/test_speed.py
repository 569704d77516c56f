"""The naive implementation that speed is measured against gives the library's numbers, and counts are what they say."""

from typing import Any

import pytest
import torch

from benchmarks.reference import naive_curvature, naive_information
from benchmarks.speed import (
    ROW,
    Case,
    Plan,
    costs,
    counted,
    forward_flops,
    grouped_s,
    suffix_flops,
)
from helpers import zoo
from helpers.asking import explain, relative

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
