"""TDD against logits read with plain hooks."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import hooked_up, plain_logits, predict, relative
from heta_lens.methods.hidden_states import Tdd

N, TARGET = 8, 7
FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))
pytestmark = pytest.mark.filterwarnings("ignore:none of . probes found .* tokens that suffice:UserWarning")


def pair_score(logits: Tensor, target: int, foil: int) -> float:
    first, second = (math.exp(float(logits[token] - logits.max())) for token in (target, foil))
    return (first - second) / (first + second)


def plain_tdd(model: Any, ids: Tensor, target: int, foil: int) -> dict[str, Tensor]:
    forward = [0.0, *(pair_score(logits, target, foil) for logits in plain_logits(model, ids))]
    backward = [0.0]
    for length in range(1, ids.shape[1] + 1):
        backward.append(pair_score(plain_logits(model, ids[:, -length:])[-1], target, foil))
    found = {
        "forward": torch.tensor([now - before for before, now in pairwise(forward)], dtype=torch.float64),
        "backward": torch.tensor([now - before for before, now in pairwise(backward)][::-1], dtype=torch.float64),
    }
    return found | {"bidirectional": (found["forward"] + found["backward"]) / 2}


@FAMILIES
def test_tdd_is_how_each_token_moves_the_choice(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    order = plain_logits(model, ids)[-1].argsort(descending=True).tolist()
    for target, foil in ((order[0], order[1]), (TARGET, order[0])):
        expected = plain_tdd(model, ids, target, foil)
        for direction in ("forward", "backward", "bidirectional"):
            found = Tdd(direction=direction)(predict(model, ids, target))
            assert relative(found.scores, expected[direction]) < 1e-5, (direction, foil)
            assert found.diagnostics["foil"] == foil and found.signed


@ONE_EACH
def test_a_contrast_names_the_foil(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    found = Tdd()(predict(model, ids, (TARGET, 30)))
    assert relative(found.scores, plain_tdd(model, ids, TARGET, 30)["backward"]) < 1e-9
    assert found.diagnostics["foil"] == 30
    assert relative(-Tdd()(predict(model, ids, (30, TARGET))).scores, found.scores) < 1e-9


@ONE_EACH
def test_tdd_adds_up_to_the_choice_after_the_whole_context(build: Callable[..., Any]) -> None:
    model = build()
    asked = predict(model, zoo.prompt(model, N), TARGET)
    found = [Tdd(direction=each)(asked) for each in ("forward", "backward", "bidirectional")]
    whole = pair_score(plain_logits(model, zoo.prompt(model, N))[-1], TARGET, found[0].diagnostics["foil"])
    assert [float(one.scores.sum()) for one in found] == pytest.approx([whole] * 3, rel=1e-9)
    assert [one.diagnostics["forwards"] for one in found] == [1, N, N + 1]
    assert [Tdd(direction=each).work(asked).forwards for each in ("forward", "backward", "bidirectional")] == [
        1,
        N,
        N + 1,
    ]


def test_what_tdd_refuses() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    try:
        asked = predict(hooked_up(model), ids, TARGET)
        with pytest.raises(ValueError, match=r"\(unless direction='forward'\), which hooks on"):
            Tdd()(asked)
        expected = plain_tdd(model, ids, TARGET, int(plain_logits(model, ids)[-1].argmax()))["forward"]
        assert relative(Tdd(direction="forward")(asked).scores, expected) < 1e-9
    finally:
        model.reset_hooks()
