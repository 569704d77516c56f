"""Batches that shrink when memory is short, and which tokens share a run's start."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens.model.batching
from helpers import zoo
from helpers.asking import explain, predict, relative, start_together
from helpers.heta import signs_over
from heta_lens.methods.heta.curvature import curvature
from heta_lens.methods.heta.hessian import HessianOperator, hessian
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import SHORT, Batches, out_of_memory, shared_starts

CPU_SHORT = "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError(CPU_SHORT)])
def test_a_batch_that_does_not_fit_is_halved_and_nothing_is_lost(
    error: RuntimeError, caplog: pytest.LogCaptureFixture
) -> None:
    sizes: list[int] = []

    def run(items: torch.Tensor) -> torch.Tensor:
        sizes.append(len(items))
        if len(items) > 3:
            raise error
        return 2 * items

    batches = Batches(16)
    with caplog.at_level(logging.INFO, logger="heta_lens"):
        assert batches.map(run, torch.arange(10), 7).tolist() == list(range(0, 20, 2))
    assert "out of memory with 5 copies at once: continuing with 3" in caplog.text
    assert sizes == [10, 5, 3, 3, 3, 1] and batches.size == 3
    assert batches.map(run, torch.arange(4), 7).tolist() == [0, 2, 4, 6]  # for good
    assert sizes[6:] == [3, 1]


def test_a_single_copy_that_does_not_fit_is_an_error_and_so_is_any_other() -> None:
    def never(_: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def broken(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("shapes do not match")

    with pytest.raises(torch.OutOfMemoryError):
        Batches(4).map(never, torch.arange(4), 7)
    with pytest.raises(RuntimeError, match="shapes"):
        Batches(4).map(broken, torch.arange(4), 7)
    assert not out_of_memory(RuntimeError("shapes do not match"))


def test_short_runs_go_in_larger_batches_until_memory_is_short() -> None:
    sizes: list[int] = []

    def run(items: torch.Tensor) -> torch.Tensor:
        sizes.append(len(items))
        if len(items) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return items

    batches = Batches(16, 24)
    for length, expected in ((100, [1] * 6), (12, [2] * 3), (6, [4, 2]), (2, [6, 3, 3]), (6, [3, 3])):
        sizes.clear()
        assert batches.map(run, torch.arange(6), length).tolist() == [*range(6)]
        assert sizes == expected


def test_what_a_cpu_computes_stays_near_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("gpt2")
    prompt = predict(model, zoo.prompt(model)).prompt
    monkeypatch.setattr(heta_lens.model.batching, "GRAPH_BYTES", 2**10)
    monkeypatch.setattr(heta_lens.model.batching, "FORWARD_BYTES", 2**12)
    widest = prompt.adapter.sizes.widest
    for products, room in ((True, 2**10), (False, 2**12)):
        batches = prompt.batches("auto", len(prompt.ids), products=products)
        for length in (1, 2, 5):
            copies = batches.of(length)
            assert copies == 1 or copies * widest(length, len(prompt.ids)) <= room
            assert copies == batches.size or (copies + 1) * widest(length, len(prompt.ids)) > room
    assert prompt.batches(7, 3).of(1000) == 7, "whoever names a size gets it"


def test_every_token_is_in_one_group_in_order() -> None:
    for positions in (range(40), [0, 3, 4, 30, 39]):
        for cost in (0.0, 0.15, 1.0, 1e9):
            groups = shared_starts(list(positions), 40, cost)
            assert [i for group in groups for i in group] == list(positions)
    assert shared_starts([], 40, 1.0) == []
    assert shared_starts(list(range(5)), 40, 0.0) == [[0], [1], [2], [3], [4]]
    assert shared_starts(list(range(5)), 40, 1e9) == [[0, 1, 2, 3, 4]]
    assert shared_starts(list(range(SHORT)), SHORT, 0.0) == [list(range(SHORT))]  # a later start saves nothing


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("where", ["products", "forwards"])
def test_an_attribution_goes_on_where_memory_was_short(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 9)
    expected = explain(model, ids, 7, probes=4)
    grad, run, refused = torch.autograd.grad, ModelAdapter.run, []

    def short_grad(outputs: Any, inputs: Any, directions: Any = None, **options: Any) -> Any:
        if options.get("is_grads_batched") and len(directions) > 3:
            refused.append(len(directions))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return grad(outputs, inputs, directions, **options)

    def short_run(adapter: Any, ids: Any, *args: Any, **options: Any) -> Any:
        if len(ids) > 2:
            refused.append(len(ids))
            raise RuntimeError(CPU_SHORT)
        return run(adapter, ids, *args, **options)

    if where == "products":
        monkeypatch.setattr(torch.autograd, "grad", short_grad)
    else:
        monkeypatch.setattr(ModelAdapter, "run", short_run)
    found = explain(model, ids, 7, probes=4)
    assert refused
    assert relative(found.scores, expected.scores) < 1e-6
    graphs = found.diagnostics["backwards"]
    assert (found.diagnostics["hvps"], found.diagnostics["forwards"]) == (36, 10 + graphs)


@pytest.mark.sample(quick=0, test=1)
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama|native)|hooked-rotary_gqa"))
@pytest.mark.usefixtures("unchecked")
def test_nothing_depends_on_what_is_run_together_in_float32(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(torch.float32)
    ids = zoo.prompt(model, 12)
    expected = explain(model, ids, 7, probes=4)
    for batch in (1, 5, 64):
        for size in (1, 4, 100):
            with monkeypatch.context() as patch:
                start_together(patch, size)
                found = explain(model, ids, 7, probes=4, batch=batch)
            for name, part in expected.parts.items():
                assert relative(found.parts[name], part) < 1e-5, (batch, size, name)


def test_the_order_of_tokens_does_not_matter() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 9)
    prediction = predict(model, ids, 7)
    states = prediction.embeddings

    def samples(groups: list[list[int]]) -> Tensor:
        def hessian_from(at: int) -> HessianOperator:
            return hessian(prediction.rerun(at), Batches(7), lambda _: None)

        signs = signs_over(states, 4)
        return curvature(hessian_from, signs, support="block", norm="hutchinson", by_start=groups).values

    with prediction.running():
        in_order = samples([[0, 1, 2], [3, 4, 5], [6, 7, 8]])
        other = samples([[6, 8], [3], [0, 4, 5], [1, 2, 7]])
    assert relative(other, in_order[:, [6, 8, 3, 0, 4, 5, 1, 2, 7]]) < 1e-9
