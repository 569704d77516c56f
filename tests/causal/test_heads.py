"""Predictions without a head."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import cache_of
from heta_lens.causal import ablate_heads

N, TARGET = 6, 7
FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


# ------------------------------------------------------------------------------------------------------ without a head
@pytest.mark.slow
@FAMILIES
@pytest.mark.parametrize("fill", ["zero", "mean"])
@pytest.mark.parametrize("places", [None, [2, N - 1]])
def test_a_prediction_without_a_head_is_what_a_hook_makes_of_it(
    build: Callable[[], Any], fill: Any, places: list[int] | None
) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    found = ablate_heads(cache_of(model, ids), TARGET, fill=fill, positions=places, tokens=ids).values
    with torch.no_grad():
        full = model.run_with_cache(ids)[1]
        clean = model(ids)[0, -1].double().log_softmax(-1)[TARGET]
    for layer, row in enumerate(found):
        name = f"blocks.{layer}.attn.hook_z"
        for head, effect in enumerate(row):

            def empty(live: Tensor, hook: Any, head: int = head, name: str = name) -> Tensor:  # noqa: ARG001
                live = live.clone()
                instead = full[name][0, :, head].mean(0) if fill == "mean" else 0
                live[0, places if places else slice(None), head] = instead
                return live

            with torch.no_grad():
                left = model.run_with_hooks(ids, fwd_hooks=[(name, empty)])[0, -1].double().log_softmax(-1)[TARGET]
            assert float(effect) == pytest.approx(float(clean - left), rel=1e-5, abs=1e-9)
    one_by_one = ablate_heads(cache_of(model, ids), TARGET, fill=fill, positions=places, batch=1)
    torch.testing.assert_close(one_by_one.values, found)
    first, second = one_by_one.top(2)
    values = one_by_one.values
    assert first.value == float(values.max()) >= second.value == float(values[second.layer, second.head])
    assert len(one_by_one.to_frame()) == found.numel() and "layer 1" in one_by_one.plot().fragment
    assert f"most by L{first.layer}H{first.head} {first.value:.3g}" in repr(one_by_one)


@pytest.mark.usefixtures("unchecked")
def test_wrong_options_are_refused() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    cache: Any = cache_of(model, ids)
    part = model.run_with_cache(ids, pos_slice=-1)[1]
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: ablate_heads(cache, TARGET, positions=[]), "positions is empty"),
        (lambda: ablate_heads(cache, TARGET, positions=[9]), "position 9"),
        (lambda: ablate_heads(cache, TARGET, fill="noise"), "fill='noise'"),  # type: ignore[arg-type]
        (lambda: ablate_heads(part, TARGET, tokens=ids), "the cache holds 1 of the prompt's 6 positions"),
        (lambda: ablate_heads(cache, TARGET).top(0), "k=0"),
    ]
    for ask, message in cases:
        with pytest.raises(ValueError, match=message):
            ask()
