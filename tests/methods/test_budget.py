"""A budget of forwards: no method takes more, and every method takes as much of it as its options allow."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from helpers.evaluating import demo
from heta_lens import METHODS
from heta_lens.data.suites import suite
from heta_lens.evaluation import Entry
from heta_lens.evaluation.prompt_evaluation import ask
from heta_lens.methods.cost import estimated, within_budget
from heta_lens.methods.registry import as_method
from heta_lens.prediction.prediction import Prediction

SCALED = [name for name, kind in METHODS.items() if kind.scaled_by and name != "sea_cot"]


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    (prompt,) = suite("recall", limit=1, facts=2)
    return ask(demo(), prompt)


def spent(attribution: Any) -> int:
    cost = attribution.diagnostics.cost
    return (cost.forwards or 0) + 2 * ((cost.backwards or 0) + (cost.hvps or 0))


@pytest.mark.sample(quick=2)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:samples")
@pytest.mark.parametrize("name", SCALED)
def test_a_budget_is_kept_and_used(name: str, prediction: Prediction) -> None:
    within = []
    for budget in (40, 150, 700):
        try:
            options = {"source": "token"} if name == "shapiq" else {}  # sentences are few, and so their coalitions
            method = within_budget(METHODS[name](**options), prediction, budget)
        except ValueError:
            continue
        within.append(budget)
        assert method.work(prediction).worth <= budget
        sizes = {option: size for option in method.scaled_by if (size := getattr(method, option)) is not None}
        more = [replace(method, **{option: size + 1}) for option, size in sizes.items()]
        assert any(one.work(prediction).worth > budget for one in more) or sizes == {"forwards": len(prediction)}
    assert within, "every budget is too small"


@pytest.mark.sample(quick=0, test=3)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:samples")
@pytest.mark.parametrize("name", ["heta", "lime", "integrated_gradients", "causal_tracing", "faml", "context_cite"])
def test_what_a_run_takes_is_within_its_budget(name: str, prediction: Prediction) -> None:
    method = within_budget(METHODS[name](), prediction, 150)
    assert 0 < spent(method(prediction)) <= 150 + 3  # and what makes sure of the cache


@pytest.mark.parametrize("name", ["attention_rollout", "random", "input_x_gradient"])
def test_a_method_that_costs_less_is_left_as_it_is(name: str, prediction: Prediction) -> None:
    method = METHODS[name]()
    assert within_budget(method, prediction, 3) is method


def test_what_costs_more_is_refused_with_both_numbers(prediction: Prediction) -> None:
    n = len(prediction)
    with pytest.raises(ValueError, match=r"at its cheapest it takes \d+ forwards, over the budget of 3"):
        within_budget(METHODS["arc_jsd"](source="token"), prediction, 3)
    with pytest.raises(ValueError, match=r"at its cheapest it takes \d+ forwards, over the budget of 3"):
        within_budget(METHODS["heta"](variant="win", window=4), prediction, 3)
    with pytest.raises(ValueError, match=r"samples=\d+ are too few"):
        within_budget(METHODS["kernel_shap"](), prediction, n)


def test_a_function_whose_work_nobody_knows_is_refused(prediction: Prediction) -> None:
    method = as_method(lambda asked: asked.embeddings.norm(dim=-1), "mine")()
    for foresee in (partial(within_budget, budget=1000), lambda method, asked: estimated(method, [asked])):
        with pytest.raises(ValueError, match="what a function takes is not known beforehand"):
            foresee(method, prediction)


def test_options_that_a_budget_decides_are_refused_beside_it() -> None:
    with pytest.raises(ValueError, match="lime samples=20: the budget decides samples, so leave samples out"):
        replace(Entry.read("lime samples=20"), budget=100)
    assert replace(Entry.read("lime keep=0.5"), budget=100).recipe["budget"] == 100


def test_heta_gives_up_probes_first_and_then_groups(prediction: Prediction) -> None:
    full = METHODS["heta"]()
    many = within_budget(full, prediction, 10 * full.work(prediction).worth)
    assert many.probes > full.probes and many.groups == full.groups
    base = replace(full, probes=1, groups=2).work(prediction).worth
    few = within_budget(full, prediction, base + 6)
    assert few.probes == 1 and 2 < few.groups < full.groups
