"""Reading activations from a cache or from runs, which are counted."""

from collections.abc import Callable
from typing import Any

import pytest

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, relative
from helpers.attention import TARGET, N, score
from heta_lens.methods.attention import AttentionLast, AttentionNorm, AttentionRollout, ValueZeroing

ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


@pytest.mark.slow
@ONE_EACH
@pytest.mark.parametrize(
    ("method", "with_attention_cached", "without"),
    [
        (AttentionRollout(), 0, 2),
        (AttentionRollout(start_layer=1), 0, 1),
        (AttentionLast(), 0, 1),
        (AttentionNorm(), 0, 2),
        (AttentionNorm(reduce="rollout"), 0, 3),
        (AttentionNorm(reduce="mean", residual=True), 2, 5),
        (ValueZeroing(batch=1), N + 1, N + 1),
    ],
)
@pytest.mark.usefixtures("unchecked")  # the checker looks at layers that nobody asked for
def test_attention_is_read_from_the_cache_and_else_from_runs_that_are_counted(
    build: Callable[..., Any], method: Any, with_attention_cached: int, without: int, forwards: Any
) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    bare = model.run_with_cache(ids, names_filter=["hook_embed"])[1]
    for cache, expected in ((cache_of(model, ids), with_attention_cached), (bare, without)):
        prediction = heta_lens.Prediction.from_cache(cache, TARGET, tokens=ids)
        ran = forwards(model)
        found = method(prediction)
        assert len(ran) == found.diagnostics["forwards"] == method.work(prediction)["forwards"] == expected
        assert relative(found.scores, score(model, method)) < 1e-12


@pytest.mark.parametrize(
    "method", [AttentionRollout(start_layer=2), AttentionLast(layer=2), AttentionNorm(layer=2)], ids=lambda m: m.name
)
def test_a_layer_that_the_model_does_not_have_is_refused(method: Any) -> None:
    with pytest.raises(ValueError, match="layer=2 is none of the layers 0 to 1 this model has"):
        score(zoo.bridge("gpt2"), method)
