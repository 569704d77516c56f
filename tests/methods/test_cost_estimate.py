"""What an attribution will cost: the same counts as it reports, and proposals that fit."""

from functools import partial
from timeit import repeat
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, estimate, explain
from heta_lens.methods.cost import seconds_per_position
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import GRAPH, PRODUCT

N = 24


def cost_of(span: heta_lens.SpanAttribution) -> dict[str, int]:
    """The runs of all steps; steps count forwards that they share once."""
    costs = [step.diagnostics for step in (*span.reasoning, *span.steps)]
    total = {kind: sum(cost.get(kind) or 0 for cost in costs) for kind in ("forwards", "backwards", "hvps")}
    if costs[0].get("forwards_shared_by", 1) == len(costs):
        total["forwards"] -= (len(costs) - 1) * costs[0].get("forwards_shared", 0)
    return total


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        *({"method": name} for name in ("leave_one_out", "gilot", "input_x_gradient", "integrated_gradients")),
        *({"probes": 2, **more} for more in ({}, {"mask": "mean"}, {"checkpoint": True})),
    ],
    ids=str,
)
@pytest.mark.parametrize("build", [lambda: zoo.bridge("gpt2"), zoo.native_bridge], ids=["bridge", "native"])
def test_a_span_is_foreseen_with_what_its_targets_share(build: Any, options: dict[str, Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    cache = cache_of(model, ids)
    for where in ({}, {"through": (N - 5, N - 3)}):
        expected = heta_lens.estimate(cache, position=slice(N - 3, None), **where, tokens=ids, **options)
        took = cost_of(heta_lens.attribute_span(cache, N - 3, **where, tokens=ids, **options))
        assert {kind: getattr(expected, kind) for kind in took} == took
        targets = 5 if where else 3
        assert (expected.predictions, expected.tokens) == (targets, N - 1)
        assert f"of {targets} predictions on up to {N - 1} tokens: " in repr(expected)


@pytest.mark.thorough
def test_the_prompts_of_a_batch_are_added_up() -> None:
    model = zoo.native_bridge()
    ids = torch.cat([zoo.prompt(model, N), zoo.prompt(model, N)])
    mask = torch.ones_like(ids)
    mask[1, :8] = 0
    cache = model.run_with_cache(ids, attention_mask=mask)[1]
    for options in ({"method": "leave_one_out"}, {"probes": 2}, {"variant": "lr", "rank": 2, "probes": 2}):
        expected = heta_lens.estimate(cache, 7, tokens=ids, attention_mask=mask, **options)
        found = heta_lens.attribute_batch(cache, 7, tokens=ids, attention_mask=mask, **options)
        took = [[each.diagnostics[kind] for kind in ("forwards", "backwards")] for each in found]
        assert [expected.forwards, expected.backwards] == [sum(kind) for kind in zip(*took, strict=True)]
        assert (expected.predictions, expected.tokens) == (2, N)
    both = heta_lens.estimate(cache, 7, tokens=ids, attention_mask=mask, method="leave_one_out")
    assert both.runs == N + (N - 8) ** 2 / N


def test_proposals_are_cheaper_and_work() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    whole = estimate(model, ids, beta=1.0)
    assert whole.cheaper
    seconds = [whole.seconds, *(other.seconds for other in whole.cheaper)]
    assert seconds == sorted(seconds, reverse=True)
    for other in whole.cheaper:
        assert other.options["beta"] == 1.0
        assert explain(model, ids, **other.options).diagnostics["hvps"] == other.hvps


@pytest.mark.thorough
def test_proposals_fit_into_the_memory_there_is() -> None:
    model = heta_lens.load_demo_model()
    ids = zoo.prompt(model, 600)
    large = estimate(model, ids, groups=None)
    assert {other.options.get("window") for other in large.cheaper} >= {64, 128, 256}
    assert {other.options.get("groups", 16) for other in large.cheaper} >= {8, 16}
    assert {other.options.get("groups") for other in estimate(model, ids).cheaper} >= {8}
    small = estimate(model, ids, groups=None, memory=large.memory / 6)
    assert "more memory than" in repr(small)
    for other in small.cheaper:
        assert other.memory <= large.memory / 6
        assert other.options["batch"] == other.batch >= 1
    assert {other.options.get("window") for other in small.cheaper} & {64, 128}
    assert estimate(model, ids, memory=1).cheaper == ()


def test_seconds_are_those_of_whole_runs_in_several_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that shows how many positions were run: a second each."""
    model, ran, run = zoo.native_bridge(), [0], ModelAdapter.run

    def counted(adapter: ModelAdapter, ids: Tensor, *how: Any, **more: Any) -> Tensor:
        ran[0] += ids.numel()
        return run(adapter, ids, *how, **more)

    monkeypatch.setattr(ModelAdapter, "run", counted)
    monkeypatch.setattr("heta_lens.methods.cost.timed", partial(repeat, timer=lambda: float(ran[0])))
    ids = zoo.prompt(model, 48)
    prediction = heta_lens.Prediction.from_cache(cache_of(model, ids), tokens=ids)
    before = ran[0]
    assert seconds_per_position(prediction) == 1.0
    assert ran[0] - before == 3 * 8 * 48  # of which the first warms up
    row = estimate(model, ids, support="row")
    assert row.seconds == row.runs * 48 == (1 + 48 + GRAPH + 10 * PRODUCT) * 48


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_explained_cannot_be_estimated() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 5)
    with pytest.raises(ValueError, match="is not one of"):
        estimate(model, ids, variant="fulll")
    with pytest.raises(ValueError, match="is more than the 2 layers"):
        estimate(model, ids, variant="ls", layers=3)
    with pytest.raises(ValueError, match=r"through=\(1, 2\) follows a span: give its place too"):
        estimate(model, ids, through=(1, 2))
    for where in ({"position": slice(2, 4, 2)}, {"position": slice(2, 4), "attention_mask": torch.ones(1, 5)}):
        with pytest.raises(ValueError, match=r"position=slice\(2, 4, .*\) is a span of one prompt"):
            estimate(model, ids, **where)
