"""Known mechanisms of real models: `causal.components` finds the heads that exact grids and induction scores find."""

import pytest
import torch

from benchmarks.components_mechanisms import GEMMA, SMALL, heads_found, induced, induction_scores
from benchmarks.real_models import MODELS

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("unchecked")]


def skip_without(name: str) -> None:
    if not (MODELS / name).exists():
        pytest.skip("make real-models makes it")


@pytest.mark.parametrize("name", [SMALL, GEMMA])
def test_screening_ranks_heads_as_the_exact_grid_does_on_indirect_objects(name: str) -> None:
    skip_without(name)
    ((_, correlation, shared),) = heads_found(name, "restore", 1)
    assert correlation > 0.85 and shared >= 0.6


def test_heads_that_repeat_a_token_are_induction_heads() -> None:
    skip_without(SMALL)
    scores, heads = induction_scores(), [*induced(1)]
    assert scores[heads[0]] == scores.max()
    first = torch.stack([scores[head] for head in heads[:5]])
    assert (first > scores.quantile(0.9)).sum() >= 3
