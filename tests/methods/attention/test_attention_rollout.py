"""Attention rollout by hand, and against products of whole matrices."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import heta_lens
from helpers import zoo
from helpers.asking import predict, relative
from helpers.attention import TARGET, N, last_row_of_product, plain_patterns, score
from heta_lens.methods.attention import AttentionLast, AttentionRollout, walked_down, with_residual

FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
BY_HAND = [
    torch.tensor([[1, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]], dtype=torch.float64),
    torch.tensor([[1, 0, 0], [0.4, 0.6, 0], [0.1, 0.6, 0.3]], dtype=torch.float64),
]


def test_rollout_by_hand() -> None:
    maps = [with_residual(pattern) for pattern in reversed(BY_HAND)]
    torch.testing.assert_close(walked_down(maps), torch.tensor([0.19, 0.3225, 0.4875], dtype=torch.float64))
    earlier = [rows[:2, :2] for rows in maps]
    torch.testing.assert_close(walked_down(earlier), torch.tensor([0.4, 0.6, 0]).double()[:2])


def test_rollout_by_hand_of_a_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, 3), TARGET)
    heads = [torch.stack([pattern, pattern]) for pattern in BY_HAND]
    monkeypatch.setattr(heta_lens.Prediction, "patterns", heads)
    assert AttentionRollout()(prediction).scores.tolist() == pytest.approx([0.19, 0.3225, 0.4875])
    plain = AttentionRollout(residual=False)(prediction).scores
    assert plain.tolist() == pytest.approx([0.1 + 0.6 * 0.5 + 0.3 * 0.2, 0.6 * 0.5 + 0.3 * 0.3, 0.3 * 0.5])
    assert AttentionRollout(start_layer=1)(prediction).scores.tolist() == pytest.approx([0.05, 0.3, 0.65])
    assert AttentionLast()(prediction).scores.tolist() == pytest.approx([0.1, 0.6, 0.3])


@FAMILIES
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
def test_rollout_equals_the_product_of_whole_matrices(build: Callable[..., Any], residual: bool, fusion: str) -> None:
    model = build()
    fuse = {"mean": lambda p: sum(p) / len(p), "max": lambda p: p.max(0).values, "min": lambda p: p.min(0).values}
    maps = [fuse[fusion](pattern) for pattern in plain_patterns(model, zoo.prompt(model, N))]
    if residual:
        maps = [
            torch.stack([(row + one) / (row + one).sum() for row, one in zip(rows, torch.eye(N), strict=True)])
            for rows in maps
        ]
    found = score(model, AttentionRollout(residual=residual, head_fusion=fusion))  # type: ignore[arg-type]
    assert relative(found, last_row_of_product(maps)) < 1e-9


@pytest.mark.parametrize("build", zoo.models("sinks|gptoss|mistral|local"))
def test_rollout_sums_to_one_also_where_a_sink_swallows_attention(build: Callable[..., Any]) -> None:
    model = build()
    assert float(score(model, AttentionRollout()).sum()) == pytest.approx(1, rel=1e-6)
    swallows = bool((plain_patterns(model, zoo.prompt(model, N))[0].sum(-1) < 0.999).any())
    assert (float(score(model, AttentionRollout(residual=False)).sum()) < 0.999) == swallows
