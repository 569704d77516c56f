"""Whatever cannot be explained is refused by heta_lens itself, in one sentence that names what is wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from helpers import zoo
from helpers.asking import cache_of, explain, relative
from helpers.refusing import TARGET, N, missing, refusal
from heta_lens import METHODS, attribute

pytestmark = [
    pytest.mark.usefixtures("unchecked"),
]

LONG = 24  # tokens enough for long work


OWN_KINDS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: zoo.bridge.__wrapped__("gpt2"),
    "native": lambda: zoo.native_bridge.__wrapped__(),
    **({"hooked": lambda: zoo.hooked.__wrapped__("gpt2")} if zoo.HAS_HOOKED else {}),
}


# ------------------------------------------------------------------------------------------------------------ options
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"beta": -1.0}, ["beta=-1.0", "at least 0"]),
        ({"gamma": -0.1}, ["gamma=-0.1", "at least 0"]),
        ({"beta": float("nan")}, ["beta=nan", "at least 0"]),
        ({"gamma": float("nan")}, ["gamma=nan", "at least 0"]),
        ({"beta": "much"}, ["beta='much'"]),
        ({"beta": 0, "gamma": 0}, ["beta=0", "gamma=0", "nothing"]),
        ({"probes": 0}, ["probes=0", "at least 1"]),
        ({"probes": -3}, ["probes=-3", "at least 1"]),
        ({"probes": 2.5}, ["probes=2.5"]),
        ({"seed": -1}, ["seed=-1", "at least 0"]),
        ({"seed": 1.5}, ["seed=1.5"]),
        ({"batch": 0}, ["batch=0", "at least 1"]),
        ({"batch": 1.5}, ["batch=1.5"]),
        ({"batch": "big"}, ["batch='big'"]),
        ({"variant": "ful"}, ["variant='ful'", "'full'", "'transition_only'", "'uniform_gate'", "did you mean 'full'"]),
        ({"variant": "hessian_only", "beta": 2.0}, ["variant='hessian_only'", "beta"]),
        ({"method": "hetta"}, ["method='hetta'", "'heta'"]),
        ({"method": "LIME"}, ["method='LIME'", "did you mean 'lime'"]),
        ({"method": None}, ["method=None", "'heta'", "a ready method"]),
        ({"method": ["lime"]}, ["method=['lime']", "'heta'"]),
        ({"method": METHODS["lime"]}, ["method=<class", "'heta'"]),
        ({"prob": 3}, ["no option 'prob'", "did you mean 'probes'", "variant", "batch"]),
        ({"steps": 3}, ["no option 'steps'", "variant", "batch"]),
        ({"norm": "l2"}, ["norm='l2'", "'hutchinson'", "'exact'", "'entrywise'"]),
        ({"kl": "forward"}, ["kl='forward'", "'orig_masked'", "'masked_orig'", "'js'"]),
        ({"support": "column"}, ["support='column'", "'block'", "'row'"]),
        ({"flow": "up"}, ["flow='up'", "'suffix'", "'direct'"]),
        ({"balance": "mean"}, ["balance='mean'", "'none'", "'sum'", "'max'"]),
        ({"value_norm": 3}, ["value_norm=3", "1, 2"]),
        ({"mask": "zeros"}, ["mask='zeros'", "zero", "mean", "vocab_mean", "token id", "vector"]),
        ({"mask": torch.zeros(2, 8)}, ["mask", "one vector", "(2, 8)"]),
        ({"mask": torch.tensor(3)}, ["mask", "one vector", "int64"]),
        ({"mask": 2.5}, ["mask=2.5"]),
        ({"mask": None}, ["mask=None"]),
        ({"mask": [0.0] * 8}, ["mask="]),
    ],
    ids=lambda given: str(given) if isinstance(given, dict) else "",
)
def test_a_wrong_option_is_refused_before_the_model_is_run(
    cache: Any, options: dict[str, Any], words: list[str], forwards: Any
) -> None:
    runs = forwards(cache.model)
    assert missing(words, refusal(cache, **options)) == ""
    assert runs == []


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(
    "options",
    [{"probes": np.int64(2)}, {"seed": np.int32(3)}, {"batch": np.int64(4)}, {"beta": np.float32(0.5)}],
    ids=["probes", "seed", "batch", "beta"],
)
def test_numbers_may_be_numpys(cache: Any, options: dict[str, Any]) -> None:
    plain = {name: value.item() for name, value in options.items()}
    assert torch.equal(attribute(cache, TARGET, **options).scores, attribute(cache, TARGET, **plain).scores)


def test_an_id_to_mask_with_may_be_any_integer(cache: Any) -> None:
    found, expected = (attribute(cache, TARGET, mask=mask, variant="kl_only") for mask in (np.int64(5), 5))
    assert torch.equal(found.scores, expected.scores)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mask": torch.zeros(3)}, ["mask", "3 entries", "8"]),
        ({"mask": 121}, ["mask=121", "not a token id", "0 to 120"]),
        ({"mask": -1}, ["mask=-1", "not a token id", "0 to 120"]),
        ({"norm": "exact", "support": "row"}, ["norm='exact'", f"2^{8 * LONG}", "2^20", "hutchinson"]),
    ],
    ids=["size", "too high", "negative", "exact"],
)
def test_an_option_that_does_not_fit_the_model_is_refused_before_long_work(
    options: dict[str, Any], words: list[str], forwards: Any
) -> None:
    model = zoo.bridge("gpt2")
    cache = cache_of(model, zoo.prompt(model, LONG))
    runs = forwards(model)
    assert missing(words, refusal(cache, **options)) == ""
    assert len(runs) <= 4


def test_a_wide_model_is_too_much_for_the_exact_norm(forwards: Any) -> None:
    model = zoo.bridge("gpt2", d_model=24)
    cache = cache_of(model, zoo.prompt(model, N))
    runs = forwards(model)
    assert missing(["norm='exact'", "2^24", "2^20", "hutchinson"], refusal(cache, norm="exact")) == ""
    assert len(runs) <= 4
    assert attribute(cache, TARGET, beta=0).scores.isfinite().all()


# ------------------------------------------------------------------------------------------------ second derivatives
class Smooth(torch.autograd.Function):
    """sin(3x), twice differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (3 * x).sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3 * (3 * ctx.saved_tensors[0]).cos()


class Careful(Smooth):
    """Looks at its gradient, which cannot be done to a batch of them."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if not gradient.isfinite().all():
            raise ValueError("not finite")
        return gradient * 3 * (3 * ctx.saved_tensors[0]).cos()


class Once(Smooth):
    """Says that it has no second derivative."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3 * (3 * ctx.saved_tensors[0]).cos()


class Detached(Smooth):
    """Has no second derivative, and does not say so."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3 * (3 * ctx.saved_tensors[0]).cos().detach()


def through(function: type[torch.autograd.Function], module: Any) -> None:
    """Put a function after a module, unnoticed: no hook."""
    forward = module.forward
    vars(module)["forward"] = lambda *args, **kwargs: function.apply(forward(*args, **kwargs))


def whole(model: Any) -> Any:
    """Everything passes through the last norm."""
    return model.ln_final


def first_mlp(model: Any) -> Any:
    return model.blocks[0].mlp


def last_mlp(model: Any) -> Any:
    return model.blocks[1].mlp


@pytest.mark.slow
@pytest.mark.parametrize("function", [Once, Detached])
@pytest.mark.parametrize("where", [whole, first_mlp, last_mlp])
@pytest.mark.parametrize("kind", OWN_KINDS)
def test_a_model_without_second_derivatives_is_refused_before_long_work(
    kind: str, where: Any, function: Any, forwards: Any
) -> None:
    model = OWN_KINDS[kind]()
    through(function, where(model))
    cache = cache_of(model, zoo.prompt(model, LONG))
    runs = forwards(model)
    assert missing(["differentiate", 'variant="kl_only"'], refusal(cache).replace("'", '"')) == ""
    assert len(runs) <= 8
    assert attribute(cache, TARGET, variant="kl_only").scores.isfinite().all()


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("watched", [False, True])
def test_a_layer_that_says_so_is_refused_in_any_precision_and_under_hooks(dtype: torch.dtype, watched: bool) -> None:
    model = zoo.bridge.__wrapped__("gpt2", dtype)
    through(Once, last_mlp(model))
    if watched:
        model.add_hook("blocks.0.hook_resid_post", lambda activation, hook: None)  # noqa: ARG005
    assert "differentiate" in refusal(cache_of(model, zoo.prompt(model, N)))


@pytest.mark.parametrize("function", [Once, Detached])
def test_a_model_whose_attention_has_no_second_derivative_is_refused(function: Any) -> None:
    model = OWN_KINDS["gpt2"]()
    through(function, model.blocks[1].ln1)
    assert "differentiate" in refusal(cache_of(model, zoo.prompt(model, N)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("length", "seed"), [(15, 11), (6, 43)])
def test_a_sharply_curved_model_in_low_precision_is_not_refused(length: int, seed: int, dtype: torch.dtype) -> None:
    model = zoo.bridge("gemma2", dtype)
    for target, probes_seed in ((TARGET, 0), (80, 11)):
        found = explain(model, zoo.prompt(model, length, seed), target, seed=probes_seed, probes=1)
        assert found.scores.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", OWN_KINDS)
def test_a_backward_pass_that_cannot_be_batched_is_run_one_by_one(kind: str) -> None:
    ids, found = zoo.prompt(zoo.bridge("gpt2"), N), []
    for function in (Smooth, Careful):
        model = OWN_KINDS[kind]()
        through(function, first_mlp(model))
        found.append(explain(model, ids, TARGET).parts["curvature"])
    assert relative(found[1], found[0]) < 1e-9


@pytest.mark.parametrize("error", [RuntimeError("mine"), NotImplementedError("mine"), ZeroDivisionError("mine")])
@pytest.mark.parametrize("call", [1, 2, 3, 8])
def test_an_error_in_a_callers_hook_is_the_callers(cache: Any, call: int, error: Exception) -> None:
    calls = []

    def failing(activation: Tensor, hook: Any) -> None:  # noqa: ARG001
        calls.append(1)
        if len(calls) == call:
            raise error

    with (
        cache.model.hooks(fwd_hooks=[("blocks.0.hook_resid_post", failing)]),
        pytest.raises(type(error), match=r"^mine$"),
    ):
        attribute(cache, TARGET)
