"""Runs in which the user's hooks stay active."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, explain, relative
from helpers.predicting import gpt2
from helpers.single_token import reference
from heta_lens import attribute

N, PROBES, TARGET = 6, 3, 7


SOME_KINDS = "bridge-(gpt2|native)|hooked-llama"


CHEAP = {"variant": "kl_only"}


OWN_KINDS: dict[str, Callable[[], Any]] = {
    "gpt2": gpt2,
    "gemma2": lambda: zoo.bridge.__wrapped__("gemma2"),
    "native": lambda: zoo.native_bridge.__wrapped__(),
    **({"hooked": lambda: zoo.hooked.__wrapped__("llama")} if zoo.HAS_HOOKED else {}),
}


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


@pytest.mark.slow
@pytest.mark.parametrize("way", ["added", "context", "batch", "embeddings", "torch_module"])
@pytest.mark.parametrize("build", zoo.models(SOME_KINDS))
def test_hooks_find_the_whole_prompt_also_where_a_position_is_explained(build: Any, way: str) -> None:
    model, ids = build(), zoo.prompt(build(), N)
    with ACTIVE[way](model):  # most look at position 3, which is after the context
        check_one_token(explain(model, ids, TARGET, position=3, probes=PROBES), model, ids, read=2)


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


@pytest.mark.parametrize("raw", [False, True], ids=["TransformerLens", "torch"])
@pytest.mark.parametrize("build", zoo.models(SOME_KINDS))
def test_a_hook_that_watches_gradients_sees_plain_numbers(build: Any, raw: bool) -> None:
    model, ids, seen = build(), zoo.prompt(build(), N), []
    expected = explain(model, ids, TARGET, probes=PROBES)

    def watch(module: Any, before: Any, after: Any) -> None:  # noqa: ARG001
        seen.append((tuple(after[0].shape), float(after[0].detach().abs().max())))

    point = model.hook_dict["blocks.0.hook_resid_post"]
    with (
        registered(point.register_full_backward_hook(watch))
        if raw
        else added(model, point.name, lambda gradient, hook: watch(hook, None, [gradient]), dir="bwd")
    ):
        attribution = explain(model, ids, TARGET, probes=PROBES)
    assert {shape for shape, _ in seen} == {(1, N, 8)}
    assert relative(attribution.scores, expected.scores) < 1e-6
    assert attribution.diagnostics["prefix_reuse"].startswith("off: hooks on the model")


def innermost_embedding(model: Any) -> Any:
    return getattr(model.embed, "original_component", model.embed)


@pytest.mark.sample(quick=3)
@pytest.mark.parametrize("mask", ["zero", "vocab_mean"])
@pytest.mark.parametrize("kind", OWN_KINDS)
def test_a_torch_hook_on_the_embedding_only_ever_sees_the_prompt(kind: str, mask: Any) -> None:
    model = OWN_KINDS[kind]()
    ids = zoo.prompt(model, N)
    expected = explain(model, ids, TARGET, mask=mask, **CHEAP)
    nothing = torch.zeros(N, 8, dtype=torch.float64)  # added to the prompt's embeddings: it fits nothing else
    innermost_embedding(model).register_forward_hook(lambda module, args, output: output + nothing)  # noqa: ARG005
    found = attribute(cache_of(model, ids), TARGET, mask=mask, **CHEAP)
    assert relative(found.scores, expected.scores) < 1e-6
