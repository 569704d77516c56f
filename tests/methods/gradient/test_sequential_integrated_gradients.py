"""Sequential integrated gradients against worked examples, plain loops and captum."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import plain_embeddings, predict, relative, start_together
from helpers.gradients import TARGET, N, Toy, along, every, explain, midpoints, plain, scores, value, with_row
from heta_lens.methods.integrated_gradients import SequentialIntegratedGradients
from heta_lens.methods.leave_one_out import LeaveOneOut
from heta_lens.prediction.rerun import Runner

MODEL = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


# ------------------------------------------------------------------------------------------------ integrated gradients
CROSS = Toy(lambda x: x[0, 0] ** 2 + x[0, 0] * x[1, 0], [[2.0], [3.0]])


# ------------------------------------------------------------------------------------- sequential integrated gradients
@pytest.mark.parametrize(
    ("rule", "expected", "gaps"), [("gauss_legendre", [10.0, 6.0], [0, 0]), ("left", [9.0, 6.0], [1, 0])]
)
def test_sequential_integrated_gradients_of_a_worked_example(
    rule: Any, expected: list[float], gaps: list[float]
) -> None:
    """``x1² + 3 x1`` up to 2, then ``2 x2`` up to 3: the other stays where it is."""
    found, facts = explain(SequentialIntegratedGradients(steps=4, rule=rule, scale="logit"), CROSS)
    assert found == pytest.approx(expected)
    assert facts["completeness_gaps"].tolist() == pytest.approx(gaps, abs=1e-12)
    assert facts["completeness_gap"] == pytest.approx(max(gaps), abs=1e-12)


@MODEL
def test_sequential_integrated_gradients_are_what_a_loop_finds(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    embeddings, g = plain_embeddings(model, ids), plain(model, ids, scale="logit")
    found = SequentialIntegratedGradients(steps=2, rule="middle", mask="zero", scale="logit", batch=4)(
        predict(model, ids, TARGET)
    )
    expected, gaps = torch.zeros(N, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
    for place in range(1, N):
        without = with_row(embeddings, place, torch.zeros_like(embeddings[0]))
        expected[place] = along(g, without, embeddings, midpoints(2))[place]
        gaps[place] = abs(value(g, embeddings) - value(g, without) - expected[place])
    assert relative(found.scores, expected) < 1e-6
    assert relative(found.diagnostics["completeness_gaps"], gaps) < 1e-4


@pytest.mark.slow
@ONE_EACH
def test_sequential_integrated_gradients_are_captums_of_one_token_at_a_time(build: Callable[..., Any]) -> None:
    captum = pytest.importorskip("captum.attr")
    model = build()
    ids = zoo.prompt(model, N)
    embeddings = plain_embeddings(model, ids)
    theirs = captum.IntegratedGradients(every(plain(model, ids)))
    found = scores(SequentialIntegratedGradients(steps=4, mask="mean", keep_bos=False), model, ids)
    for place in range(N):
        without = with_row(embeddings, place, embeddings.mean(0))[None]
        one = theirs.attribute(embeddings[None].requires_grad_(), without, n_steps=4)[0, place].sum().detach()
        assert float(found[place]) == pytest.approx(float(one), rel=1e-5)


@ONE_EACH
def test_sequential_integrated_gradients_come_to_what_leaving_a_token_out_costs(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    found = SequentialIntegratedGradients(steps=40, keep_bos=False)(predict(model, ids, TARGET))
    costs = scores(LeaveOneOut(effect="log_prob"), model, ids)
    assert relative(found.scores, costs) < 1e-5
    assert relative(found.scores + found.diagnostics["completeness_gaps"], costs) < 1e-4
    assert len(found.without([2]).diagnostics["completeness_gaps"]) == N - 1


@pytest.mark.parametrize("size", [1, 3, N])
def test_where_runs_start_does_not_matter(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    method = SequentialIntegratedGradients(steps=3)
    before = scores(method, model, ids)
    start_together(monkeypatch, size)
    assert relative(scores(method, model, ids), before) < 1e-9


def test_runs_start_at_the_token_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("gpt2")
    asked = predict(model, zoo.prompt(model, N), TARGET)
    starts: list[int] = []
    run = Runner.suffix_run
    monkeypatch.setattr(
        Runner,
        "suffix_run",
        lambda self, part, *rest: starts.append(part.start) or run(self, part, *rest),
    )
    start_together(monkeypatch, 1)
    SequentialIntegratedGradients(steps=2)(asked)
    assert set(starts) == set(range(1, N))
