"""What an attribution will cost: the same counts as it reports, and proposals that fit."""

import functools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import pytest
import torch
from asking import cache_of, explain
from torch import Tensor

import heta_lens
import zoo
from heta_lens.baselines import BASELINES
from heta_lens.causal import gate_heads
from heta_lens.costs import CHECKS, HELD, Positions, Speed, timed
from heta_lens.gate import Flow
from heta_lens.lens import Lens
from heta_lens.memory import Sizes
from heta_lens.methods import METHODS
from heta_lens.variants import VARIANTS

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
        read = 4 * (N - 1) * len(weights) * weights.element_size()
        assert estimate(model, ids, **how).memory == pytest.approx(once + HELD * read, abs=1)


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


def test_seconds_are_of_whole_runs_in_as_many_copies_as_will_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that shows how many positions were run: a second each."""
    model, ran, run = zoo.native_bridge(), [0], Lens.run

    def counted(lens: Lens, ids: Tensor, *how: Any, **more: Any) -> Tensor:
        ran[0] += ids.numel()
        return run(lens, ids, *how, **more)

    monkeypatch.setattr(Lens, "run", counted)
    monkeypatch.setattr("heta_lens.costs.perf_counter", lambda: float(ran[0]))
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
    assert first.startswith(f"probes=5 on {N} tokens: 120 Hessian–vector products and ")
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


# ------------------------------------------------------------------------------- what is reported is what was paid
@dataclass
class Meter:
    """What a model really does: rows of its calls, and passes of autograd that reach its logits."""

    forwards: int = 0
    backwards: int = 0
    hvps: int = 0

    def watch(self, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        forward, grad, passes = type(model).forward, torch.autograd.grad, []

        @functools.wraps(forward)
        def run(own: Any, ids: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.forwards += len(ids)
            logits = forward(own, ids, *args, **kwargs)
            if logits.requires_grad:
                logits.register_hook(lambda gradient: passes.append(len(gradient)))
            return logits

        @functools.wraps(grad)
        def pull(outputs: Tensor, inputs: Any, directions: Any = None, **options: Any) -> Any:
            before, passes[:] = [*passes], []
            found = grad(outputs, inputs, directions, **options)
            if passes and (directions is None or options.get("create_graph")):
                self.backwards += sum(passes)
            elif passes:
                self.hvps += len(directions) if options.get("is_grads_batched") else 1
            passes[:] = before
            return found

        monkeypatch.setattr(type(model), "forward", run)
        monkeypatch.setattr(torch.autograd, "grad", pull)


def reported(facts: Mapping[str, Any]) -> Meter:
    """All that an attribution says it ran, whatever for."""
    full = facts.get("against_full", {})
    parts = [facts, full, *facts["checks"].values(), *full.get("checks", {}).values()]
    total = {kind: sum(part.get(kind, 0) for part in parts) for kind in ("forwards", "backwards", "hvps")}
    return Meter(total["forwards"] + facts.get("audit", 0), total["backwards"], total["hvps"])


LONG = {"variant": "win", "window": 5, "overlap": 0.4}  # of 24 tokens: between most windows and the tail some stay
HETA: list[dict[str, Any]] = [
    *({"variant": name, "window": 5, "layers": 1, "rank": 3} for name in VARIANTS),
    *({"support": "row", **more} for more in ({}, LONG, {"norm": "entrywise"})),
    *({"flow": flow, "variant": "transition_only"} for flow in get_args(Flow)),
    {"norm": "entrywise", "gamma": 0},
    {"beta": 0.0},
    {"interactions": True},
    {"tolerance": 0.3},
    {"prune": 0.1, **LONG},
    {"audit": True},
    {"audit": True, **LONG},
    {"audit": True, "variant": "gs"},
    {**LONG, "window_mode": "chunk"},
    {**LONG, "window_mode": "chunk", "window_gate": "per_window"},
    {**LONG, "window_mode": "restrict"},
    {**LONG, "variant": "ls+win", "layers": 1, "window_mode": "chunk"},
]
QUICK: dict[str, list[dict[str, Any]]] = {
    "integrated_gradients": [{"steps": 5}],
    "sequential_integrated_gradients": [{"steps": 2}],
    "discretized_integrated_gradients": [{"steps": 2, "factor": 1, "neighbours": 9}],
    "attention_norm": [{"reduce": "mean", "residual": True}, {"reduce": "rollout"}],
    "lime": [{"samples": 9}],
    "kernel_shap": [{"samples": 30}],
    "context_cite": [{"samples": 5, "held_out": 3}, {"source": "token", "samples": 9, "ablate": "mask"}],
    "progressive_inference": [{}, {"before": "bos"}, {"passes": "multi", "samples": 4}],
    "reagent": [{"max_steps": 3, "probes": 2}, {"max_steps": 2, "replacer": "lm"}],
    "gilot": [{}, {"length": 3, "beams": 2}],
    "tdd": [{}, {"direction": "bidirectional"}],
    "causal_tracing": [{"samples": 2, "layers": 2}, {"samples": 2, "mode": "noise_one"}],
    "faml": [{"steps": 3}],
    "sea_cot": [{"explanations": 2, "length": 4, "think": ".", "conclude": " is", "entail": "{explanation}{claim}"}],
}
ASKED = [
    *(("heta", {"probes": 3, **options} if "probes" not in options else options) for options in HETA),
    *((name, options) for name in BASELINES for options in QUICK.get(name, [{}])),
]


@pytest.mark.plain
@pytest.mark.parametrize(("method", "options"), ASKED, ids=str)
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|native)$"))
@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_costs_reported_are_costs_paid(
    build: Any, method: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build()
    ids = zoo.prompt(model, 24 if method == "heta" and "win" in options.get("variant", "") else 9)
    lean = model.run_with_cache(ids, names_filter=["hook_embed"])[1]
    for cache in (cache_of(model, ids), lean):
        meter = Meter()
        with monkeypatch.context() as patched:
            meter.watch(model, patched)
            found = heta_lens.attribute(cache, tokens=ids, method=METHODS[method](**options))
        assert reported(found.diagnostics) == meter
    if not options.get("audit"):  # which an estimate counts in its own way
        expected = heta_lens.estimate(lean, tokens=ids, method=METHODS[method](**options))
        for kind in ("forwards", "backwards", "hvps"):
            assert getattr(expected, kind) >= found.diagnostics[kind], kind


@pytest.mark.usefixtures("unchecked")  # the checker looks at layers that nobody asked for
def test_a_cache_without_patterns_costs_one_run_a_layer(forwards: Any) -> None:
    model = zoo.bridge("gpt2", n_layers=4)
    ids = zoo.prompt(model, 6)
    lean = model.run_with_cache(ids, names_filter=lean_names)[1]
    for flow in get_args(Flow):
        runs = forwards(model)
        gate_heads(lean, tokens=ids, flow=flow)
        assert len(runs) == 1 + 4, flow  # the cache is checked with one


def test_windows_run_alone_are_run_once() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 24)
    how = {"variant": "win", "window": 6, "overlap": 0.0, "window_mode": "chunk", "window_gate": "per_window"}
    facts = explain(model, ids, probes=1, **how).diagnostics
    assert facts["windows"] == 4
    assert facts["checks"]["prefix_reuse"]["forwards"] == 2 * 4


def test_the_vocabulary_is_read_once_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, read, table = zoo.bridge("gpt2"), [], Lens.embedding_table
    cache = cache_of(model, torch.cat([zoo.prompt(model, 6), zoo.prompt(model, 6)]))
    monkeypatch.setattr(Lens, "embedding_table", lambda lens, *ids: (read.append(ids), table(lens, *ids))[1])
    heta_lens.attribute_batch(cache, variant="transition_only")
    assert len(read) == 1
