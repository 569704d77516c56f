"""First and second derivatives in closed form, against numerical differences of the values."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from heta_lens.model.closed_forms import Normalised, Pointwise, Rotated, Softmax, in_closed_form

N, D, HEADS = 4, 6, 2


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def normalised(eps: float, x: Tensor) -> Tensor:
    divided = x / (x.square().mean(-1, keepdim=True) + eps).sqrt().detach()
    return in_closed_form(Normalised(divided.detach()), divided, [divided])


def rotated(x: Tensor) -> Tensor:
    angles = torch.arange(3 * N, dtype=torch.float64).reshape(N, 1, 3)
    cos, sin = angles.cos().repeat(1, 1, 2), torch.cat([-angles.sin(), angles.sin()], -1)
    form = Rotated(cos, sin, lambda own: torch.cat([own[..., 3:], own[..., :3]], -1))
    return in_closed_form(form, form.turned(x.detach()), [x])


def softmax(sink: bool, scores: Tensor) -> Tensor:
    masked = scores.masked_fill(torch.ones(N, N).triu(1).bool(), -torch.inf)
    columns = torch.cat([masked, torch.zeros(1, HEADS, N, 1, dtype=torch.float64)], -1) if sink else masked
    value = columns.softmax(-1)[..., :N].detach()
    return in_closed_form(Softmax(value), value, [scores])


def gated(before: Tensor, linear: Tensor) -> Tensor:
    return pointwise(torch.nn.functional.silu(before) * linear, [before, linear])


def activated(function: Callable[[Tensor], Tensor], before: Tensor) -> Tensor:
    return pointwise(function(before), [before])


def pointwise(value: Tensor, inputs: list[Tensor]) -> Tensor:
    form = Pointwise.of(value, inputs)
    assert form is not None
    return in_closed_form(form, value, inputs)


FUNCTIONS = {
    "normalised": (partial(normalised, 0.0), [random(1, N, D)]),
    "normalised with epsilon": (partial(normalised, 0.3), [random(1, N, D)]),
    "rotated": (rotated, [random(1, N, HEADS, D)]),
    "softmax": (partial(softmax, False), [random(1, HEADS, N, N)]),
    "softmax with a sink": (partial(softmax, True), [random(1, HEADS, N, N)]),
    "gated": (gated, [random(1, N, D), random(1, N, D, seed=1)]),
    "gelu": (partial(activated, torch.nn.functional.gelu), [random(1, N, D)]),
    "relu": (partial(activated, torch.nn.functional.relu), [random(1, N, D)]),
    "cube": (partial(activated, lambda x: x**3), [random(1, N, D)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_those_of_the_values(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    assert gradcheck(function, inputs, check_batched_grad=True)
    assert gradgradcheck(function, inputs, check_batched_grad=True)


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - {"rotated", "relu"}))  # whose second derivatives are 0
def test_a_wrong_second_derivative_would_be_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, inputs = FUNCTIONS[name]
    for kind in (Normalised, Softmax, Pointwise):
        monkeypatch.setattr(kind, "second", first_only(kind.second))
    assert not gradgradcheck(function, inputs, raise_exception=False)


def first_only(second: Callable[..., Any]) -> Callable[..., Any]:
    """Without what changes with the inputs."""
    return lambda form, g: lambda *v: (second(form, g)(*v)[0], *map(torch.zeros_like, v))


def test_the_value_is_kept_to_the_bit() -> None:
    x = random(1, N, D)
    plain = x.detach() / x.detach().square().mean(-1, keepdim=True).sqrt()
    assert torch.equal(normalised(0.0, x), plain)


def test_a_function_without_slopes_that_change_has_no_second_derivative() -> None:
    x = random(N)
    value = activated(lambda own: 2 * own, x)
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    assert torch.equal(slope, torch.full_like(x, 2))
    assert torch.autograd.grad(slope.sum(), x, allow_unused=True)[0] is None


def test_what_does_not_depend_on_an_input_or_mixes_its_entries_is_not_pointwise() -> None:
    x, other = random(N, D), random(N, D, seed=1)
    assert Pointwise.of(x**2, [x]) is not None
    assert Pointwise.of(x**2, [x, other]) is None
    assert Pointwise.of(x**2 * x.softmax(-1), [x]) is None
    assert Pointwise.of(x**2 + x.mean(0), [x]) is None


def test_third_derivatives_are_refused() -> None:
    x, direction = random(N, D), random(N, D, seed=1)
    (slope,) = torch.autograd.grad(normalised(0.0, x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((slope * direction).sum(), x, create_graph=True)
    for by in (x, direction):
        with pytest.raises(RuntimeError, match=r"once_differentiable|not have been used"):
            torch.autograd.grad(second.sum(), by, retain_graph=True)
