"""Peering against cosines of plainly read states."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import explain_by as explain
from helpers.asking import relative
from heta_lens.methods.hidden_states import Peering

N, TARGET, OTHER = 4, 7, 9
FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


@pytest.mark.slow
@FAMILIES
@pytest.mark.parametrize("query", ["target", "predictor"])
def test_peering_equals_cosines_of_plain_states(build: Callable[..., Any], query: Any) -> None:
    model = build()
    ids = torch.cat([zoo.prompt(model, N), torch.tensor([[TARGET]])], 1)
    _, cache = model.run_with_cache(ids)
    for layer in (0, 1, None):
        states = cache[f"blocks.{1 if layer is None else layer}.hook_resid_post"][0]
        own = states[N if query == "target" else N - 1].double()
        alike = torch.stack([state @ own / (state.norm() * own.norm()) for state in states[:N].double()])
        for threshold, theta in (("mean", alike.mean()), (0.1, 0.1), (-1, -1)):
            method = Peering(query=query, layer=layer, threshold=threshold)
            found = explain(model, method)
            torch.testing.assert_close(found.scores, (alike - theta).clamp(min=0), rtol=0, atol=1e-6)
            assert found.diagnostics["sees_target"] == (query == "target")


@ONE_EACH
def test_peering_asks_about_its_target_unless_it_is_told_not_to(build: Callable[..., Any]) -> None:
    first, second = (explain(build(), Peering(), target).scores for target in (TARGET, OTHER))
    assert relative(first, second) > 1e-3
    apart = Peering(query="predictor")
    assert torch.equal(explain(build(), apart, TARGET).scores, explain(build(), apart, OTHER).scores)


@ONE_EACH
def test_a_target_needs_room_after_the_context(build: Callable[..., Any]) -> None:
    with pytest.raises(
        ValueError,
        match=f"takes {zoo.N_CTX + 1} positions, and this model has {zoo.N_CTX}: query='predictor' needs no more",
    ):
        explain(build(), Peering(), n=zoo.N_CTX)
    assert explain(build(), Peering(query="predictor"), n=zoo.N_CTX).scores[-1] > 0
