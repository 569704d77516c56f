"""Integrated gradients against worked examples, plain loops and captum."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import plain_embeddings, predict, relative
from helpers.gradients import TARGET, N, Toy, along, every, explain, midpoints, plain, scores, value
from heta_lens.methods.integrated_gradients import (
    DiscretizedIntegratedGradients,
    IntegratedGradients,
    SequentialIntegratedGradients,
    quadrature,
)

RULES = ("gauss_legendre", "left", "right", "middle", "trapezoid")
CAPTUM = {
    "gauss_legendre": "gausslegendre",
    **{rule: f"riemann_{rule}" for rule in ("left", "right", "middle", "trapezoid")},
}
MODEL = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


def kept_first(start: Tensor, embeddings: Tensor) -> Tensor:
    """The prompts begin with a <bos>, which is to stay."""
    return torch.cat([embeddings[:1], start[1:]])


CROSS = Toy(lambda x: x[0, 0] ** 2 + x[0, 0] * x[1, 0], [[2.0], [3.0]])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("left", [5.25, 2.25]),
        ("right", [8.75, 3.75]),
        ("middle", [7.0, 3.0]),
        ("gauss_legendre", [7.0, 3.0]),
        ("trapezoid", [7.0, 3.0]),
    ],
)
def test_integrated_gradients_of_a_worked_example(rule: Any, expected: list[float]) -> None:
    found, facts = explain(IntegratedGradients(steps=4, rule=rule, scale="logit"), CROSS)
    assert found == pytest.approx(expected)
    assert facts["completeness_gap"] == pytest.approx(abs(10 - sum(expected)), abs=1e-12)


@pytest.mark.parametrize("rule", ["middle", "gauss_legendre"])
def test_one_point_is_enough_for_what_is_quadratic(rule: Any) -> None:
    assert explain(IntegratedGradients(steps=1, rule=rule, scale="logit"), CROSS)[0] == pytest.approx([7, 3])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("steps", [1, 2, 5, 50])
def test_weights_sum_to_one_and_points_lie_on_the_path(rule: Any, steps: int) -> None:
    nodes, weights = quadrature(rule, steps)
    assert nodes.shape == weights.shape == (steps,)
    assert float(weights.sum()) == pytest.approx(1)
    assert nodes.min() >= 0 and nodes.max() <= 1 and (weights > 0).all()


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_exact_for_the_polynomials_it_is_made_for(rule: Any) -> None:
    steps = 4
    exact = {"gauss_legendre": 2 * steps - 1, "middle": 1, "trapezoid": 1, "left": 0, "right": 0}[rule]
    nodes, weights = quadrature(rule, steps)
    for degree in range(exact + 2):
        error = abs(float((weights * nodes**degree).sum()) - 1 / (degree + 1))
        assert error < 1e-12 if degree <= exact else error > 1e-6


@pytest.mark.parametrize("rule", RULES)
def test_points_and_weights_are_captums_but_that_its_trapezoid_does_not_sum_to_one(rule: Any) -> None:
    pytest.importorskip("captum")
    from captum.attr._utils.approximation_methods import approximation_parameters

    steps = 5
    sizes, places = approximation_parameters(CAPTUM[rule])
    theirs = torch.tensor(sizes(steps), dtype=torch.float64)
    nodes, weights = quadrature(rule, steps)
    assert nodes.tolist() == pytest.approx([float(place) for place in places(steps)])
    whole = (steps - 1) / steps if rule == "trapezoid" else 1.0
    assert float(theirs.sum()) == pytest.approx(whole)
    assert (weights * whole).tolist() == pytest.approx(theirs.tolist())


@MODEL
def test_integrated_gradients_are_what_a_loop_finds(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    embeddings = plain_embeddings(model, ids)
    method = IntegratedGradients(steps=5, rule="middle", mask="zero", batch=2)
    found = method(predict(model, ids, TARGET))
    g, start = plain(model, ids), kept_first(torch.zeros_like(embeddings), embeddings)
    expected = along(g, start, embeddings, midpoints(5))
    assert relative(found.scores, expected) < 1e-6
    gap = abs(value(g, embeddings) - value(g, start) - float(expected.sum()))
    assert found.diagnostics["completeness_gap"] == pytest.approx(gap, abs=1e-6)


@pytest.mark.slow
@ONE_EACH
@pytest.mark.parametrize("rule", RULES)
def test_integrated_gradients_are_captums(build: Callable[..., Any], rule: Any) -> None:
    captum = pytest.importorskip("captum.attr")
    model, steps = build(), 6
    ids = zoo.prompt(model, N)
    embeddings = plain_embeddings(model, ids)
    start = kept_first(embeddings.mean(0).expand(N, -1), embeddings)
    theirs = captum.IntegratedGradients(every(plain(model, ids))).attribute(
        embeddings[None].requires_grad_(), start[None], n_steps=steps, method=CAPTUM[rule]
    )
    whole = (steps - 1) / steps if rule == "trapezoid" else 1.0
    found = scores(IntegratedGradients(steps=steps, rule=rule, mask="mean"), model, ids)
    assert relative(found, theirs[0].sum(-1).detach() / whole) < 1e-6  # captum weighs in float32


@ONE_EACH
def test_integrated_gradients_add_up_to_what_the_whole_context_does(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    embeddings = plain_embeddings(model, ids)
    g, pad = plain(model, ids, scale="log_odds"), model.tokenizer.pad_token_id
    start = kept_first(plain_embeddings(model, torch.full((1, N), pad)), embeddings)
    for mask in ("pad", pad, start[1]):
        found = IntegratedGradients(steps=100, mask=mask, scale="log_odds")(predict(model, ids, TARGET))
        assert float(found.scores.sum()) == pytest.approx(value(g, embeddings) - value(g, start), rel=1e-5)
        assert found.diagnostics["completeness_gap"] < 1e-4


@ONE_EACH
def test_a_begin_of_text_gets_nothing_unless_it_moves_too(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    whole, rest = (predict(model, some, TARGET) for some in (ids, ids[:, 1:]))
    for kind in (IntegratedGradients, SequentialIntegratedGradients, DiscretizedIntegratedGradients):
        assert kind(steps=1)(whole).scores[0] == 0
        assert kind(steps=1, keep_bos=False)(whole).scores[0].abs() > 1e-6
        assert kind(steps=1)(rest).scores[0].abs() > 1e-6


@pytest.mark.parametrize("kind", [IntegratedGradients, SequentialIntegratedGradients])
@ONE_EACH
def test_paths_begin_at_zero_where_positions_are_added(kind: Any, build: Callable[..., Any]) -> None:
    found = kind(steps=2)(predict(build(), zoo.prompt(build(), N), TARGET))
    assert found.options["mask"] == found.diagnostics["chosen"]["mask"] == "zero"
    assert "mask='zero'" in repr(found)


@pytest.mark.parametrize("kind", [IntegratedGradients, SequentialIntegratedGradients])
@pytest.mark.parametrize("build", zoo.models("-(llama|gptj)$"))
def test_paths_begin_at_a_blank_where_a_norm_reads_the_embeddings_first(kind: Any, build: Callable[..., Any]) -> None:
    asked = predict(build(), zoo.prompt(build(), N), TARGET)
    found = kind(steps=2)(asked)
    assert found.options["mask"] == "space" and "mask='space'" in repr(found)
    assert torch.equal(found.scores, kind(steps=2, mask="space")(asked).scores)


@pytest.mark.parametrize("rule", ["left", "trapezoid"])
def test_no_slope_is_taken_where_a_norm_has_none(rule: Any) -> None:
    model = zoo.bridge("llama")
    asked = predict(model, zoo.prompt(model, N), TARGET)
    for mask in ("zero", torch.zeros(model.cfg.d_model)):
        with pytest.raises(ValueError, match=f"rule='{rule}' takes the slope where the path begins"):
            IntegratedGradients(rule=rule, mask=mask)(asked)
    assert IntegratedGradients(rule=rule, steps=2)(asked).scores.isfinite().all()


@pytest.mark.parametrize(
    ("g", "steps", "cause"),
    [
        (lambda x: x[0, 0] ** 8, 10, "steps"),
        (lambda x: (8 * (x[0, 0] - 0.5)).sigmoid(), 10, "steps"),
        (lambda x: x[0, 0] ** 8, 2, "steps"),
        (lambda x: (1e5 * x[0, 0]).tanh(), 50, "mask"),
        (lambda x: x[0, 0] + (997 * x[0, 0]).sin(), 50, "mask"),
    ],
)
@pytest.mark.parametrize("kind", [IntegratedGradients, SequentialIntegratedGradients])
def test_a_large_error_has_its_cause_named(kind: Any, g: Any, steps: int, cause: str) -> None:
    found, facts = explain(kind(steps=steps, rule="right", scale="logit"), Toy(g, [[1.0]]))
    assert facts["completeness_cause"] == cause
    start, end = (value(g, torch.full((1, 1), at, dtype=torch.float64)) for at in (0.0, 1.0))
    assert facts["completeness_gap"] == pytest.approx(abs(end - start - sum(found)), abs=1e-9)
