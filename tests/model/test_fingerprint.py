"""A model's fingerprint: the same wherever it is loaded, another as soon as a weight, an option or a token differs."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import heta_lens
from helpers import zoo
from heta_lens.model.weights import fingerprint

DEMO_BRIDGE = {"weights": "e832460254beb265", "tokenizer": "4fb4347be7ea93d0"}
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.bool]


def model_of(**weights: Any) -> Any:
    """As little of a model as has a fingerprint."""
    found: Any = nn.Module()
    for name, weight in weights.items():
        found.register_buffer(name, torch.as_tensor(weight))
    found.cfg, found.tokenizer = SimpleNamespace(eps=1e-5), None
    return found


def of_weights(**weights: Any) -> str:
    return fingerprint(model_of(**weights))["weights"]


def test_the_same_weights_have_the_same_fingerprint_in_every_process_and_on_every_line() -> None:
    assert fingerprint(heta_lens.load_demo_model("bridge")).items() >= DEMO_BRIDGE.items()


@pytest.mark.slow
def test_the_scales_of_quantised_weights_count_before_and_after_a_run() -> None:
    pytest.importorskip("bitsandbytes")
    model = heta_lens.load_model("demo", quantization_config="8bit")
    weight = model.original_model.model.layers[1].mlp.down_proj.weight
    before = fingerprint(model)
    weight.SCB[3] *= 1.001
    other = fingerprint(model)
    assert other["weights"] != before["weights"]
    model(torch.tensor([[1, 2, 3]]))
    assert weight.SCB is None and fingerprint(model) == other


@pytest.mark.parametrize("build", zoo.models())
def test_every_parameter_counts_and_comes_back(build: Callable[[], Any]) -> None:
    model = build()
    before = fingerprint(model)
    names = dict((*model.named_parameters(), *wrapped_parameters(model)))
    for name, parameter in names.items():
        flat = parameter.detach().view(-1) if parameter.is_contiguous() else parameter.detach()
        place = (len(flat) // 2,) if flat.ndim == 1 else (0,) * flat.ndim
        kept = flat[place].clone()
        flat[place] = torch.nextafter(kept, kept.new_tensor(9.0))
        changed = fingerprint(model)
        flat[place] = kept
        assert changed["weights"] != before["weights"], name
        assert (changed["config"], changed["tokenizer"]) == (before["config"], before["tokenizer"])
    assert fingerprint(model) == before


def wrapped_parameters(model: Any) -> list[tuple[str, Any]]:
    return [*nn.Module.named_parameters(model)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_change_of_one_weight_is_seen(dtype: torch.dtype) -> None:
    weights = torch.arange(7).mul(37).remainder(5).to(dtype)[None]
    seen = {of_weights(w=weights)}
    for place in range(weights.shape[1]):
        other = weights.clone()
        other[0, place] = 1 - other[0, place].to(torch.float64) if dtype != torch.bool else ~other[0, place]
        seen.add(of_weights(w=other))
    assert len(seen) == weights.shape[1] + 1


def test_what_makes_no_difference_does_not_count() -> None:
    weights = torch.arange(1.0, 7.0)
    alone = of_weights(w=weights)
    assert of_weights(w=weights, bias=torch.zeros(3)) == alone  # which TransformerLens 3 adds and 4 does not
    assert of_weights(w=weights, bias=torch.tensor([0.0, 1e-30, 0.0])) != alone
    assert of_weights(w=weights, rotary_sin=torch.ones(3), inv_freq=torch.ones(2)) == alone


@pytest.mark.parametrize(
    ("name", "value", "counts"),
    [
        *(("eps", 1e-6, True), ("act_fn", "relu", True), ("window_size", 4, True), ("act_fn", torch.relu, True)),
        *(("device", "cuda", False), ("model_name", "other", False), ("a_new_flag", False, False), ("_x", 1, False)),
        *(("attn_types", ["global", "local"], True), ("rope", {"theta": 2.0}, True), ("dtype", torch.half, True)),
    ],
)
def test_options_count_where_they_make_a_difference(name: str, value: Any, counts: bool) -> None:
    model, other = model_of(), model_of()
    setattr(other.cfg, name, value)
    assert (fingerprint(other) != fingerprint(model)) == counts
    assert fingerprint(other) == fingerprint(other)
