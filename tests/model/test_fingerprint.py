"""A model's fingerprint: the same wherever it is loaded, another as soon as a weight, an option or a token differs."""

from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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


class Wrapped(Tensor):
    """As torchao keeps weights: the numbers, and their scales beside them."""

    @staticmethod
    def __new__(cls, numbers: Tensor, scale: Tensor) -> "Wrapped":
        return Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scale.dtype)

    def __init__(self, numbers: Tensor, scale: Tensor) -> None:
        self.numbers, self.scale = numbers, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise NotImplementedError(func)


def test_what_a_packed_weight_consists_of_counts() -> None:
    numbers, scale = torch.arange(6, dtype=torch.int8).reshape(2, 3), torch.ones(2, 1)

    def of(numbers: Tensor, scale: Tensor) -> str:
        found: Any = nn.Module()
        found.register_buffer("w", Wrapped(numbers, scale))
        found.cfg, found.tokenizer = SimpleNamespace(), None
        return fingerprint(found)["weights"]

    assert of(numbers, scale) == of(numbers.clone(), scale.clone())
    assert len({of(numbers, scale), of(numbers, scale * 2), of(numbers + 1, scale)}) == 3


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


def test_places_names_shapes_and_types_of_weights_count() -> None:
    weights = torch.arange(1.0, 7.0)
    same = [of_weights(w=weights), of_weights(w=weights.reshape(3, 2).T.contiguous().T.reshape(6))]
    assert len(set(same)) == 1
    swapped = weights[[1, 0, 2, 3, 4, 5]]
    others: list[dict[str, Tensor]] = [
        {"w": swapped},
        {"v": weights},
        {"w": weights.reshape(2, 3)},
        {"w": weights.double()},
        {"w": weights.view(torch.int32)},
        {"w": weights, "v": weights.clone()},
        {"w": weights.flip(0)},
        {"w": torch.cat([weights, torch.zeros(1)])},
        {"w": weights.reshape(3, 2).T},
        {"w": torch.complex(weights[:3], weights[3:])},
    ]
    assert len({same[0], *(of_weights(**one) for one in others)}) == len(others) + 1


def test_what_makes_no_difference_does_not_count() -> None:
    weights = torch.arange(1.0, 7.0)
    alone = of_weights(w=weights)
    assert of_weights(w=weights, bias=torch.zeros(3)) == alone  # which TransformerLens 3 adds and 4 does not
    assert of_weights(w=weights, bias=torch.tensor([0.0, 1e-30, 0.0])) != alone
    assert of_weights(w=weights, rotary_sin=torch.ones(3), inv_freq=torch.ones(2)) == alone


def test_weights_that_are_not_in_memory_count_by_their_shapes() -> None:
    found = {of_weights(w=torch.empty(shape, device="meta")) for shape in ((2, 3), (2, 3), (3, 2), (6,))}
    assert len(found) == 3


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


def test_a_tokenizer_counts_but_not_how_it_was_last_used() -> None:
    model = heta_lens.load_demo_model()
    before = fingerprint(model)
    model.tokenizer = deepcopy(model.tokenizer)
    model.tokenizer(["a b", "a"], padding=True, truncation=True, max_length=3)
    assert fingerprint(model) == before
    model.tokenizer.add_tokens(["zanzibar"])
    after = fingerprint(model)
    assert after["tokenizer"] != before["tokenizer"] and after["weights"] == before["weights"]
    model.tokenizer = None
    assert fingerprint(model)["tokenizer"] not in (before["tokenizer"], after["tokenizer"])
