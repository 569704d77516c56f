"""Runs with activations of other runs put in, against runs of a float64 model under plain hooks of torch."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers.asking import predict
from heta_lens.model.hooks import EMBED
from heta_lens.prediction.patching import Site, cells_of_heads, noted, patched, site_name
from heta_lens.prediction.prediction import Prediction

TEXTS = "Alba kept the pan in the closet .", "Hana kept the jar in the garden ."
SITES: list[Site] = [
    *("resid_pre", "resid_post", "attn_out", "mlp_out"),
    *("head_out", "head_q", "head_k", "head_v"),
]
SCALE = "logit"


@pytest.fixture(scope="module")
def model() -> Any:
    return heta_lens.load_demo_model().to(torch.float64)


@pytest.fixture(scope="module")
def pair(model: Any) -> tuple[Prediction, Prediction]:
    clean = predict(model, model.to_tokens(TEXTS[0]))
    return clean, predict(model, model.to_tokens(TEXTS[1]), int(clean.target))  # type: ignore[arg-type]


@torch.no_grad()
def by_hooks(model: Any, ids: Tensor, put: Mapping[str, tuple[Tensor, Tensor]]) -> Tensor:
    """The logits of a run in which hooks of torch put values in cells, by hook point."""

    def hook(cells: Tensor, values: Tensor, module: Any, inputs: Any, output: Tensor) -> Tensor:  # noqa: ARG001
        output = output.clone(memory_format=torch.contiguous_format)
        heads = output.view(1, *values.shape)  # which a bridge's module returns side by side
        for cell in cells.nonzero().tolist():
            heads[0][tuple(cell)] = values[tuple(cell)]
        return output

    handles = [model.hook_dict[name].register_forward_hook(partial(hook, *each)) for name, each in put.items()]
    try:
        return model(ids[None])[0, -1]
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def seen(model: Any, ids: Tensor, name: str) -> Tensor:
    kept: list[Tensor] = []
    handle = model.hook_dict[name].register_forward_hook(lambda module, inputs, output: kept.append(output[0].clone()))  # noqa: ARG005
    model(ids[None])
    handle.remove()
    return kept[0].reshape(len(ids), -1, model.cfg.d_head) if ".attn.hook_" in name else kept[0]


def runs(prediction: Prediction, cells: Any, activations: Any, **options: Any) -> Tensor:
    read = partial(prediction.read, scale=SCALE)
    return patched(prediction, cells, activations, read, prediction.prompt.batches(3, len(prediction)), **options)


def expected(model: Any, prediction: Prediction, cells: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Tensor:
    logits = []
    for at in range(len(next(iter(cells.values())))):
        logits.append(by_hooks(model, prediction.ids, {name: (cells[name][at], values[name]) for name in cells}))
    return prediction.read(torch.stack(logits), SCALE)


@pytest.mark.parametrize("site", SITES)
def test_single_cells_and_whole_rows(model: Any, pair: Any, site: Site) -> None:
    clean, corrupted = pair
    n, name = len(clean), site_name(clean.adapter, site, 1)
    activations = noted(clean, [name])
    values = {name: seen(model, clean.ids, name)}
    torch.testing.assert_close(activations[name][0], values[name])
    cells = torch.cat([torch.eye(n), torch.ones(1, n), torch.zeros(1, n)]).bool()
    found, by_hand = runs(corrupted, {name: cells}, activations), expected(model, corrupted, {name: cells}, values)
    torch.testing.assert_close(found, by_hand)
    assert float(found[-1]) == pytest.approx(float(corrupted.read(corrupted.logits, SCALE))) and found[:-1].std() > 1e-3
    if site.startswith("head"):
        heads = values[name].shape[1]
        for cells in (cells_of_heads(heads, [2, 5], n), torch.eye(n * heads).reshape(-1, n, heads).bool()):
            found = runs(corrupted, {name: cells}, activations)
            torch.testing.assert_close(found, expected(model, corrupted, {name: cells}, values))


def test_several_nodes_at_several_layers_together(model: Any, pair: Any) -> None:
    clean, corrupted = pair
    n, generator = len(clean), torch.Generator().manual_seed(0)
    names = [site_name(clean.adapter, site, layer) for site in SITES[2:] for layer in range(clean.adapter.layers)]
    activations = noted(clean, names)
    values = {name: seen(model, clean.ids, name) for name in names}
    shapes = {name: (4, n, *([values[name].shape[1]] if ".attn.hook_" in name else [])) for name in names}
    cells = {name: torch.rand(shape, generator=generator) < 0.2 for name, shape in shapes.items()}
    for each in cells.values():
        each[:, :3] = False  # so that runs continue from what is kept
    assert corrupted.prompt.prefix().kept is not None
    torch.testing.assert_close(runs(corrupted, cells, activations), expected(model, corrupted, cells, values))


@pytest.mark.parametrize("layer", [None, 0, 2, 4])
def test_runs_that_begin_with_other_states_at_a_layer(model: Any, pair: Any, layer: int | None) -> None:
    clean, corrupted = pair
    adapter, n = clean.adapter, len(clean)
    begun = EMBED if layer is None else adapter.stream_name(layer)
    above = [site_name(adapter, "head_v", at) for at in range(layer or 0, adapter.layers)][:2]
    cells = {name: torch.eye(n).bool() for name in (begun, *above)}
    other = seen(model, corrupted.ids, begun).flip(0)
    values = {name: seen(model, clean.ids, name) for name in cells}
    found = runs(corrupted, cells, noted(clean, cells), states=other, layer=layer)
    logits = []
    for at in range(n):
        put = {name: (cells[name][at], values[name]) for name in cells}
        states = torch.where(cells[begun][at][:, None], values[begun], other)
        logits.append(by_hooks(model, corrupted.ids, {**put, begun: (torch.ones(n).bool(), states)}))
    torch.testing.assert_close(found, corrupted.read(torch.stack(logits), SCALE))
