"""Value swaps: the prediction with the values of another prompt."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import cache_of
from heta_lens.causal import swap_values

N, TARGET = 6, 7
FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


@FAMILIES
def test_any_method_explains_what_the_swapped_model_says(build: Callable[[], Any]) -> None:
    model = build()
    a, b, layer, places = zoo.prompt(model, N), zoo.prompt(model, N, seed=1), 1, [1, 3]
    name = f"blocks.{layer}.attn.hook_v"
    values = model.run_with_cache(a)[1][name][0]

    def put(found: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        found = found.clone()
        found[:, places] = values[places]
        return found

    with torch.no_grad():
        clean = model(b)
        expected = model.run_with_hooks(b, fwd_hooks=[(name, put)])
    with swap_values(cache_of(model, a), cache_of(model, b), layer, places, tokens=b) as cache:
        with torch.no_grad():
            torch.testing.assert_close(model(b), expected)
            torch.testing.assert_close(model(b[:, :3])[:, 1], expected[:, 1])  # where the others are not reached
        found = heta_lens.attribute(cache, TARGET, tokens=b, method="leave_one_out")
        log_probs = expected[0, -1].double().log_softmax(-1)
        assert found.diagnostics["target_log_prob"] == pytest.approx(float(log_probs[TARGET]), rel=1e-6)
        scores = []
        for at in range(N):
            embeddings = model.run_with_cache(b, names_filter=["hook_embed"])[1]["hook_embed"].clone()
            embeddings[0, at] = 0
            hooks = [("hook_embed", lambda live, hook, e=embeddings: e), (name, put)]  # noqa: ARG005
            with torch.no_grad():
                left = model.run_with_hooks(b, fwd_hooks=hooks)[0, -1].double().log_softmax(-1)
            scores.append(float(log_probs[TARGET] - left[TARGET]))
    torch.testing.assert_close(found.scores.double(), torch.tensor(scores).double(), rtol=1e-5, atol=1e-7)
    with torch.no_grad():
        torch.testing.assert_close(model(b), clean)
    assert not torch.allclose(clean, expected)


@ONE_EACH
def test_a_swap_ends_whatever_happens_under_it(build: Callable[[], Any]) -> None:
    model = build()
    a, b = zoo.prompt(model, N), zoo.prompt(model, N, seed=1)
    before = model(b)
    caches = cache_of(model, a), cache_of(model, b)
    with pytest.raises(KeyError, match="in the middle"), swap_values(*caches, 0, [1], tokens=b):
        raise KeyError("in the middle")
    torch.testing.assert_close(model(b), before)
    with swap_values(cache_of(model, b), cache_of(model, b), 0, [1, 2], tokens=b) as cache:  # its own: nothing
        torch.testing.assert_close(model(b), before)
        assert "hook_embed" in cache


def test_values_of_some_positions_only_are_refused() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    some = model.run_with_cache(ids, pos_slice=slice(2, None))[1]
    with (
        pytest.raises(ValueError, match="holds 4 of the prompt's 6 positions: it was taken with pos_slice="),
        swap_values(some, cache_of(model, ids), 0, [1], tokens=ids),
    ):
        pass


@pytest.mark.parametrize(
    ("layer", "places", "message"), [(2, [1], "layer=2 is none of"), (0, [N], "position 6 is none of the 6 positions")]
)
def test_a_missing_layer_or_position_is_refused(layer: int, places: list[int], message: str) -> None:
    model = zoo.bridge("gpt2")
    cache = cache_of(model, zoo.prompt(model, N))
    with pytest.raises(ValueError, match=message), swap_values(cache, cache, layer, places):
        pass
