"""What an attribution will cost: the same counts as it reports, and proposals that fit."""

from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, estimate, explain
from heta_lens import Heta
from heta_lens.methods.cost import CHECKS, HELD, Positions, Speed, timed
from heta_lens.methods.heta.cost import cheaper_options
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import Sizes

N = 24


@pytest.mark.parametrize(
    ("method", "options", "forwards", "backwards"),
    [
        ("input_x_gradient", {}, 1, 1),
        ("integrated_gradients", {"steps": 7}, 9, 7),
        ("leave_one_out", {}, N, 0),
        ("recency", {}, 0, 0),
    ],
)
def test_other_methods_are_foreseen_by_their_runs(
    method: str, options: dict[str, Any], forwards: int, backwards: int
) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    expected, found = estimate(model, ids, method=method, **options), explain(model, ids, method=method, **options)
    assert (expected.forwards, expected.backwards, expected.hvps) == (forwards, backwards, 0)
    assert (found.diagnostics["forwards"], found.diagnostics["backwards"]) == (forwards, backwards)
    assert expected.runs == forwards + 2 * backwards and expected.seconds >= 0 and expected.memory > 0
    given = f"({', '.join(f'{k}={v}' for k, v in options.items())})" if options else ""
    assert repr(expected).startswith(f"{method}{given} on {N} tokens: ")
    assert not expected.cheaper


@pytest.mark.parametrize(
    "options",
    [{"method": "leave_one_out"}, {"probes": 2}, {"probes": 1, "mask": "mean"}, {"probes": 2, "checkpoint": True}],
    ids=str,
)
@pytest.mark.parametrize("build", [lambda: zoo.bridge("gpt2"), zoo.native_bridge], ids=["bridge", "native"])
def test_a_span_is_foreseen_with_what_its_targets_share(build: Any, options: dict[str, Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    cache = cache_of(model, ids)
    for where in ({}, {"through": (N - 5, N - 3)}):
        expected = heta_lens.estimate_span(cache, N - 3, **where, tokens=ids, **options)
        took = heta_lens.attribute_span(cache, N - 3, **where, tokens=ids, **options).cost
        assert {kind: getattr(expected, kind) for kind in took} == took
        targets = 5 if where else 3
        assert (expected.predictions, expected.tokens) == (targets, N - 1)
        assert f"of {targets} predictions on up to {N - 1} tokens: " in repr(expected)


def test_targets_of_a_span_share_masked_forwards_where_they_can() -> None:
    model = zoo.native_bridge()
    ids = zoo.prompt(model, N)
    cache, kl_only = cache_of(model, ids), {"variant": "kl_only", "tokens": ids}
    own = heta_lens.estimate(cache, position=N - 1, **kl_only)
    together, apart = (heta_lens.estimate_span(cache, N - 4, mask=mask, **kl_only) for mask in ("zero", "mean"))
    assert together.runs == own.runs == N and apart.runs > 3 * N
    assert together.memory > own.memory  # each copy is read at four places


def test_the_prompts_of_a_batch_are_added_up() -> None:
    model = zoo.native_bridge()
    ids = torch.cat([zoo.prompt(model, N), zoo.prompt(model, N)])
    mask = torch.ones_like(ids)
    mask[1, :8] = 0
    cache = model.run_with_cache(ids, attention_mask=mask)[1]
    for options in ({"method": "leave_one_out"}, {"probes": 2}, {"variant": "lr", "rank": 2, "probes": 2}):
        expected = heta_lens.estimate_batch(cache, 7, tokens=ids, attention_mask=mask, **options)
        found = heta_lens.attribute_batch(cache, 7, tokens=ids, attention_mask=mask, **options)
        took = [[each.diagnostics[kind] for kind in ("forwards", "backwards")] for each in found]
        assert [expected.forwards, expected.backwards] == [sum(kind) for kind in zip(*took, strict=True)]
        assert (expected.predictions, expected.tokens) == (2, N)
    both = heta_lens.estimate_batch(cache, 7, tokens=ids, attention_mask=mask, method="leave_one_out")
    assert both.runs == N + (N - 8) ** 2 / N


def test_what_is_read_at_every_position_takes_memory() -> None:
    model = zoo.bridge("gpt2")
    ids, weights = zoo.prompt(model, N), model.embed.W_E
    once = estimate(model, ids, method="tdd", batch=1).memory
    everywhere = [
        {"method": "tdd", "batch": 1, "direction": "forward"},
        {"method": "progressive_inference", "batch": 1},
    ]
    for how in everywhere:
        read = 4 * (N - 1) * len(weights) * weights.element_size()
        assert estimate(model, ids, **how).memory == pytest.approx(once + HELD * read, abs=1)


def test_runs_are_counted_in_forwards_of_the_whole_prompt() -> None:
    """Where nothing can be reused: a graph for 3, a product for 2, a masked forward for 1, one with all masked."""
    model = zoo.native_bridge()
    ids = zoo.prompt(model, N)
    assert estimate(model, ids, probes=4).runs == 3 + 2 * (4 * 16 + 1) + N + 1
    assert estimate(model, ids, probes=4, groups=None).runs == 3 + 2 * 4 * N + N + 1
    assert estimate(model, ids, support="row").runs == 3 + 2 * 10 + N + 1
    reused, long = zoo.bridge("gpt2"), 60
    assert estimate(reused, zoo.prompt(reused, long), probes=4, groups=None).runs < (4 + 9 * long) * 0.7


def test_memory_is_a_number_of_bytes() -> None:
    model = zoo.bridge("gpt2")
    with pytest.raises(ValueError, match="memory=-1 must be at least 1"):
        estimate(model, zoo.prompt(model, 5), memory=-1)


def test_nothing_is_batched_where_nothing_is_repeated() -> None:
    model = zoo.bridge("gpt2")
    assert estimate(model, zoo.prompt(model, N), variant="transition_only").batch == 1


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


def test_windows_and_squared_gradients_are_proposed_without_checkpoints() -> None:
    model = heta_lens.load_demo_model()
    ids = zoo.prompt(model, 130)
    prediction = heta_lens.Prediction.from_cache(cache_of(model, ids), tokens=ids)
    proposed = {one.variant: one for one in cheaper_options(Heta(checkpoint=True), prediction)}
    assert proposed["full"].checkpoint and not proposed["win"].checkpoint and not proposed["gs"].checkpoint


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


def test_seconds_are_of_whole_runs_in_as_many_copies_as_will_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that shows how many positions were run: a second each."""
    model, ran, run = zoo.native_bridge(), [0], ModelAdapter.run

    def counted(adapter: ModelAdapter, ids: Tensor, *how: Any, **more: Any) -> Tensor:
        ran[0] += ids.numel()
        return run(adapter, ids, *how, **more)

    monkeypatch.setattr(ModelAdapter, "run", counted)
    monkeypatch.setattr("heta_lens.methods.cost.perf_counter", lambda: float(ran[0]))
    ids = zoo.prompt(model, 48)
    prediction = heta_lens.Prediction.from_cache(cache_of(model, ids), tokens=ids)
    before = ran[0]
    assert timed(prediction) == Speed(1.0, 1.0, 0.0)
    assert ran[0] - before == 48 * (1 + 3 + 1 + 1)  # a copy, 48 / 16 copies, a graph twice
    assert estimate(model, ids, support="row").seconds == (CHECKS + 1 + 48 + 1) * 48


def test_work_is_worth_more_forwards_the_more_is_derived() -> None:
    ran = Positions(5.0, 7.0, 11.0)
    assert ran.runs == 5 + 3 * 7 + 2 * 11
    assert Speed(0.1, 0.2, 0.3).of(ran) == pytest.approx(0.5 + 1.4 + 3.3)
    assert Speed(0.1).of(Positions(5.0)) == 0.5


def test_it_reads_as_a_sentence() -> None:
    model = zoo.bridge("gpt2")
    text = repr(estimate(model, zoo.prompt(model, N), probes=5))
    first, *others = text.splitlines()
    assert first.startswith(f"probes=5 on {N} tokens: 81 Hessian–vector products and ")
    assert any("support='row'" in line for line in others)


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_explained_cannot_be_estimated() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 5)
    with pytest.raises(ValueError, match="is not one of"):
        estimate(model, ids, variant="fulll")
    with pytest.raises(ValueError, match="is more than the 2 layers"):
        estimate(model, ids, variant="ls", layers=3)


def test_memory_grows_linearly_with_a_windows_queries() -> None:
    sizes = Sizes(layers=2, d_model=8, d_mlp=32, heads=2, vocabulary=10, itemsize=4)
    for of in (sizes.graph, sizes.product):
        assert of(20, 100) == 2 * of(10, 100)
        assert of(10, 200) > of(10, 100)
    assert sizes.forward(10, 100, read=3) - sizes.forward(10, 100) == 2 * 4 * 4 * 10


@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama|native)|hooked-rotary_gqa"))
def test_a_graph_takes_about_as_much_as_is_said(build: Any) -> None:
    """Counted by what autograd keeps, each tensor once; the models are so small that much of it is overhead."""
    model = build(torch.float32)
    ids = zoo.prompt(model, 20)
    prediction = heta_lens.Prediction.from_cache(cache_of(model, ids), tokens=ids)
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    alive = []
    with prediction.running(), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        leaf = prediction.embeddings.clone().requires_grad_()
        alive.append(torch.autograd.grad(prediction.rerun().g(leaf[None])[0], leaf, create_graph=True))
    weights = sum(parameter.untyped_storage().nbytes() for parameter in model.parameters())
    said = prediction.adapter.sizes.graph(20, 20)
    assert said / 4 < sum(kept.values()) < 4 * said + weights
