"""Attention of the last position against patterns read from a run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import relative
from helpers.attention import N, plain_patterns, score
from heta_lens.methods.attention import AttentionLast, AttentionRollout

ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


@ONE_EACH
def test_rollout_and_last_attention_read_the_layers_they_are_told(build: Callable[..., Any]) -> None:
    model = build()
    patterns = plain_patterns(model, zoo.prompt(model, N))
    for layer, pattern in enumerate(patterns):
        assert relative(score(model, AttentionLast(layer=layer)), pattern[:, -1].mean(0)) < 1e-12
    assert torch.equal(score(model, AttentionLast()), score(model, AttentionLast(layer=1)))
    half = (patterns[1].mean(0)[-1] + torch.eye(N)[-1]) / 2
    assert relative(score(model, AttentionRollout(start_layer=1)), half) < 1e-12
