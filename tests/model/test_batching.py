"""Batches that shrink when memory is short, and which tokens share a run's start."""

import logging
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import explain, relative, start_together
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import Batches, out_of_memory

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
