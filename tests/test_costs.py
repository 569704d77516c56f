"""What an attribution will cost: the same counts as it reports, and proposals that fit."""

import warnings
from typing import Any

import pytest
import torch
from asking import cache_of, explain
from torch import Tensor

import heta_lens
import zoo
from heta_lens.memory import Sizes

N = 24


def estimate(model: Any, ids: Tensor, **options: Any) -> Any:
    return heta_lens.estimate(cache_of(model, ids), tokens=ids, **options)


@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|native)"))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"probes": 3, "variant": "hessian_only"},
        {"variant": "kl_only"},
        {"variant": "transition_only"},
        {"support": "row"},
        {"norm": "entrywise"},
        {"variant": "gs"},
        {"variant": "lr", "rank": 4},
        {"variant": "win", "window": 8},
        {"variant": "win", "window": 8, "window_mode": "chunk"},
        {"variant": "win", "window": 8, "window_mode": "restrict"},
        {"variant": "win", "window": 8, "support": "row"},
        {"variant": "ls", "layers": 1},
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_the_counts_are_those_that_will_be_reported(build: Any, options: dict[str, Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    expected, found = estimate(model, ids, **options), explain(model, ids, **options).diagnostics
    assert (expected.forwards, expected.hvps) == (found["forwards"], found["hvps"])
    assert expected.tokens == N and expected.seconds >= 0 and expected.memory > 0 and expected.runs >= 1
    assert expected.options == options


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
    assert repr(expected).startswith(f"{method}({', '.join(f'{k}={v}' for k, v in options.items())}) on {N} tokens: ")
    assert not expected.cheaper


def test_what_is_read_at_every_position_takes_memory() -> None:
    model = zoo.bridge("gpt2")
    ids, weights = zoo.prompt(model, N), model.embed.W_E
    once = estimate(model, ids, method="tdd", batch=1).memory
    everywhere = [
        {"method": "tdd", "batch": 1, "direction": "forward"},
        {"method": "progressive_inference", "batch": 1},
    ]
    for how in everywhere:
        assert estimate(model, ids, **how).memory == once + 4 * (N - 1) * len(weights) * weights.element_size()


def test_what_may_stop_early_is_counted_as_if_it_did_not() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    assert estimate(model, ids, tolerance=0.1).hvps == 10 * N
    assert estimate(model, ids, prune=0.1).hvps == 10 * N + 10


def test_runs_are_counted_in_forwards_of_the_whole_prompt() -> None:
    """Where nothing can be reused: a graph for 3, a product for 2, a masked forward for 1, one with all masked."""
    model = zoo.native_bridge()
    ids = zoo.prompt(model, N)
    assert estimate(model, ids, probes=4).runs == 3 + 2 * 4 * N + N + 1
    assert estimate(model, ids, support="row").runs == 3 + 2 * 10 + N + 1
    reused = zoo.bridge("gpt2")
    assert estimate(reused, zoo.prompt(reused, N), probes=4).runs < (3 + 2 * 4 * N + N + 1) * 0.8


def test_one_rule_decides_whether_every_token_has_its_own_products() -> None:
    model = zoo.native_bridge()
    ids = zoo.prompt(model, N)
    assert estimate(model, ids, support="row", probes=2 * N).runs == 3 + 2 * 2 * N + N + 1
    assert estimate(model, ids, variant="lr", rank=4).runs == 3 + 2 * (2 * 12 + 10) + N + 1
    assert estimate(model, ids, variant="gs", gamma=0).runs == 3 + 1


def test_an_audit_costs_what_it_runs() -> None:
    model = zoo.native_bridge()
    ids = zoo.prompt(model, N)
    plain, audited = estimate(model, ids), estimate(model, ids, audit=True)
    assert audited.runs == plain.runs + N + 32
    assert estimate(model, ids, variant="gs", audit=True).runs == 3 + N + 1 + N + 32 + plain.runs


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


def test_proposals_fit_into_the_memory_there_is() -> None:
    model = heta_lens.load_demo_model()
    ids = zoo.prompt(model, 600)
    large = estimate(model, ids, variant="full")
    assert {other.options.get("window") for other in large.cheaper} >= {64, 128, 256}
    small = estimate(model, ids, memory=large.memory / 6)
    assert "more memory than" in repr(small)
    for other in small.cheaper:
        assert other.memory <= large.memory / 6
        assert other.options["batch"] == other.batch >= 1
    assert {other.options.get("window") for other in small.cheaper} & {64, 128}
    assert estimate(model, ids, memory=1).cheaper == ()


def test_it_reads_as_a_sentence() -> None:
    model = zoo.bridge("gpt2")
    text = repr(estimate(model, zoo.prompt(model, N), probes=5))
    first, *others = text.splitlines()
    assert first.startswith(f"probes=5 on {N} tokens: 120 Hessian–vector products and 25 masked forwards, worth")
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
        alive.append(torch.autograd.grad(prediction.objective_from(0)(leaf), leaf, create_graph=True))
    weights = sum(parameter.untyped_storage().nbytes() for parameter in model.parameters())
    said = prediction.lens.sizes.graph(20, 20)
    assert said / 4 < sum(kept.values()) < 4 * said + weights


def test_a_cache_without_patterns_has_the_gate_of_one_with_them() -> None:
    """A layer's pattern at a time is taken from the live model, hooks included."""
    for build in (zoo.bridge, *([zoo.hooked] if zoo.HAS_HOOKED else [])):
        model = build("gpt2")
        ids = zoo.prompt(model, 9)
        double = ("blocks.0.attn.hook_pattern", lambda live, hook: live * 0.5)  # noqa: ARG005
        for hooks in ([], [double]):
            with model.hooks(fwd_hooks=hooks):
                whole = cache_of(model, ids)
                lean = model.run_with_cache(
                    ids, names_filter=lambda name: heta_lens.names_filter(name) and "pattern" not in name
                )[1]
                for flow in ("suffix", "prefix_head", "direct"):
                    how = {"variant": "transition_only", "flow": flow, "tokens": ids, "position": 7}
                    found, expected = (heta_lens.attribute(cache, **how) for cache in (lean, whole))
                    torch.testing.assert_close(found.scores, expected.scores)


def lean_names(name: str) -> bool:
    return heta_lens.names_filter(name) and "pattern" not in name


def test_a_progress_free_run_warns_of_nothing() -> None:
    model = zoo.bridge("gpt2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimate(model, zoo.prompt(model, 5))
