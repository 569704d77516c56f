"""Reruns under the user's hooks, and refusals of options and models before long work."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import heta_lens
from helpers import zoo
from helpers.asking import TARGET, N, cache_of, explain, missing, reference, refusal, relative
from heta_lens import attribute

PROBES = 3
SOME_KINDS = "bridge-(gpt2|native)|hooked-llama"
CHEAP = {"variant": "kl_only"}


def at_three(activation: Tensor, hook: Any = None) -> Tensor:  # noqa: ARG001
    changed = activation.clone()
    changed[:, 3] = (activation[:, 3] + activation[:, 1]) / 2
    return changed


def at_three_in_place(activation: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
    activation[:, 3] = (activation[:, 3] + activation[:, 1]) / 2
    return activation


def of_the_first_prompt(activation: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
    assert len(activation) == 1
    return torch.stack([activation[0] * torch.linspace(0.5, 1.5, activation.shape[-1])])


@contextmanager
def added(model: Any, name: str, hook: Any, **how: Any) -> Iterator[None]:
    try:
        model.add_hook(name, hook, **how)
        yield
    finally:
        model.reset_hooks(including_permanent=True)


@contextmanager
def registered(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


def raw(module: Any) -> AbstractContextManager[None]:
    return registered(module.register_forward_hook(lambda module, args, output: at_three(output)))  # noqa: ARG005


def raw_pre(module: Any) -> AbstractContextManager[None]:
    return registered(
        module.register_forward_pre_hook(lambda module, args: (at_three(args[0]), *args[1:]))  # noqa: ARG005
    )


ACTIVE: dict[str, Callable[[Any], AbstractContextManager[Any]]] = {
    "added": lambda model: added(model, "blocks.0.hook_resid_post", at_three),
    "context": lambda model: model.hooks(fwd_hooks=[("blocks.0.attn.hook_v", at_three)]),
    "permanent": lambda model: added(model, "blocks.0.hook_resid_post", at_three, is_permanent=True),
    "in_place": lambda model: added(model, "blocks.0.hook_resid_post", at_three_in_place),
    "embeddings": lambda model: added(model, "hook_embed", at_three),
    "batch": lambda model: added(model, "blocks.0.hook_resid_post", of_the_first_prompt),
    "pattern": lambda model: added(model, "blocks.1.attn.hook_pattern", of_the_first_prompt),
    "unembedding": lambda model: added(model, "unembed.hook_in", of_the_first_prompt),
    "logits": lambda model: added(model, "unembed.hook_out", of_the_first_prompt),
    "torch_hook_point": lambda model: raw(model.hook_dict["blocks.0.hook_resid_post"]),
    "torch_module": lambda model: raw(model.blocks[0].ln1),
    "torch_pre": lambda model: raw_pre(model.blocks[1].ln1),
    "torch_embedding": lambda model: raw(model.embed),
}


def check_one_token(attribution: heta_lens.Attribution, model: Any, ids: Tensor, read: int) -> None:
    curvature, information = reference(model, ids, TARGET, 1, read)
    assert float(attribution.parts["curvature"][1]) == pytest.approx(curvature, rel=1e-6)
    assert float(attribution.parts["information"][1]) == pytest.approx(information, rel=1e-6)
    assert attribution.diagnostics["prefix_reuse"].startswith("off: hooks on the model")


@pytest.mark.sample(quick=2, test=6)
@pytest.mark.slow
@pytest.mark.parametrize("way", ACTIVE)
@pytest.mark.parametrize("build", zoo.models("bridge-gpt2|hooked-llama"))
def test_hooks_that_stay_active_are_part_of_what_is_explained(build: Any, way: str) -> None:
    model, ids = build(), zoo.prompt(build(), N)
    without = explain(model, ids, TARGET, **CHEAP).parts
    with ACTIVE[way](model):
        attribution = explain(model, ids, TARGET, probes=PROBES)
        check_one_token(attribution, model, ids, read=N - 1)
    assert max(relative(attribution.parts[name], part) for name, part in without.items()) > 1e-3


def scale(gradient: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
    return gradient * 0.5


def detach(activation: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
    return activation.detach()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hook", "direction"),
    [
        ("blocks.0.hook_resid_post", scale, "bwd"),
        ("blocks.0.attn.hook_pattern", detach, "fwd"),
        ("blocks.1.hook_mlp_out", detach, "fwd"),
        ("ln_final.hook_scale", detach, "fwd"),
    ],
    ids=["scaled", "frozen attention", "frozen MLP", "frozen norm"],
)
@pytest.mark.parametrize("build", zoo.models(SOME_KINDS))
def test_a_hook_that_changes_gradients_is_part_of_what_is_explained(
    build: Any, name: str, hook: Any, direction: str
) -> None:
    model, ids = build(), zoo.prompt(build(), N)
    with added(model, name, hook, dir=direction):
        check_one_token(explain(model, ids, TARGET, probes=PROBES), model, ids, read=N - 1)


pytestmark = pytest.mark.usefixtures("unchecked")

LONG = 24  # tokens enough for long work


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mask": torch.zeros(3)}, ["mask", "3 entries", "8"]),
        ({"mask": 121}, ["mask=121", "not a token id", "0 to 120"]),
        ({"mask": -1}, ["mask=-1", "not a token id", "0 to 120"]),
    ],
    ids=["size", "too high", "negative"],
)
def test_an_option_that_does_not_fit_the_model_is_refused_before_long_work(
    options: dict[str, Any], words: list[str], forwards: Any
) -> None:
    model = zoo.bridge("gpt2")
    cache = cache_of(model, zoo.prompt(model, LONG))
    runs = forwards(model)
    assert missing(words, refusal(cache, **options)) == ""
    assert len(runs) <= 4


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


@pytest.mark.sample(quick=2, test=8)
@pytest.mark.slow
@pytest.mark.parametrize("function", [Once, Detached])
@pytest.mark.parametrize("where", [whole, first_mlp, last_mlp])
@pytest.mark.parametrize("kind", zoo.NEW)
def test_a_model_without_second_derivatives_is_refused_before_long_work(
    kind: str, where: Any, function: Any, forwards: Any
) -> None:
    model = zoo.NEW[kind]()
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", zoo.NEW)
def test_a_backward_pass_that_cannot_be_batched_is_run_one_by_one(kind: str) -> None:
    ids, found = zoo.prompt(zoo.bridge("gpt2"), N), []
    for function in (Smooth, Careful):
        model = zoo.NEW[kind]()
        through(function, first_mlp(model))
        found.append(explain(model, ids, TARGET).parts["curvature"])
    assert relative(found[1], found[0]) < 1e-9
