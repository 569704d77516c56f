"""What the model would say after a change of tokens, against plain runs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import cache_of, plain_embeddings
from heta_lens import activation
from heta_lens.causal import what_if

N, TARGET, PLACES = 6, 7, [2, 4]


@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
def test_probabilities_are_those_of_plain_runs(build: Callable[[], Any]) -> None:
    model = build()
    ids, other = zoo.prompt(model, N), zoo.prompt(model, N, seed=1)
    clean, masked, replaced = (plain_embeddings(model, each).clone() for each in (ids, ids, ids))
    masked[PLACES] = 0
    replaced[PLACES] = plain_embeddings(model, other)[PLACES]
    cache = cache_of(model, ids)

    def chances(embeddings: Any) -> torch.Tensor:
        put = ("hook_embed", lambda live, hook: embeddings[None].to(live))  # noqa: ARG005
        with torch.no_grad():
            return model.run_with_hooks(ids, fwd_hooks=[put])[0, -1].double().softmax(-1)

    before = chances(clean)
    for change, after in (("zero", chances(masked)), (other[0, PLACES].tolist(), chances(replaced)), (other, None)):
        found = what_if(cache, PLACES, TARGET, change=change, k=3, tokens=ids)
        after = chances(replaced) if after is None else after
        (mine,) = found[found["target"]].to_dict("records")
        assert mine["before"] == pytest.approx(float(before[TARGET]), rel=1e-4)
        assert mine["after"] == pytest.approx(float(after[TARGET]), rel=1e-4)
        largest = found[["before", "after"]].max(axis=1)
        assert largest.is_monotonic_decreasing and 4 <= len(found) <= 7
        assert found["after"].max() == pytest.approx(float(after.max()), rel=1e-4)
        assert found["before"].nlargest(3).tolist() == pytest.approx(before.topk(3).values.tolist(), rel=1e-4)


def test_targets_of_a_contrast_are_rows_and_an_activation_is_refused() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    cache = cache_of(model, ids)
    assert what_if(cache, PLACES, (TARGET, 9), k=1, tokens=ids)["target"].sum() == 2
    with pytest.raises(ValueError, match="is an activation, of which there is no distribution"):
        what_if(cache, PLACES, activation("blocks.0.hook_resid_post", index=0), tokens=ids)
    with pytest.raises(ValueError, match="k=0"):
        what_if(cache, PLACES, k=0, tokens=ids)
