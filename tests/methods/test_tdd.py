"""TDD against logits read with plain hooks."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import hooked_up, on_bridge, plain_logits, predict, relative
from heta_lens.methods.tdd import Tdd

N, TARGET = 8, 7

FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))
pytestmark = pytest.mark.filterwarnings("ignore:none of . probes found .* tokens that suffice:UserWarning")


def pair_score(logits: Tensor, target: int, foil: int | None) -> float:
    if foil is None:
        return float(logits.softmax(-1)[target])
    first, second = (math.exp(float(logits[token] - logits.max())) for token in (target, foil))
    return (first - second) / (first + second)


def plain_tdd(model: Any, ids: Tensor, target: int, foil: int | None, bos: int | None) -> dict[str, Tensor]:
    forward = [0.0, *(pair_score(logits, target, foil) for logits in plain_logits(model, ids))]
    backward = [0.0]
    for length in range(1, ids.shape[1] + 1):
        part = ids[:, -length:]
        if bos is not None and int(part[0, 0]) != bos:
            part = torch.cat([torch.tensor([[bos]]), part], 1)
        backward.append(pair_score(plain_logits(model, part)[-1], target, foil))
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
    for target, foil, named in ((order[0], order[1], {}), (TARGET, order[0], {}), (TARGET, None, {"foil": "none"})):
        expected = plain_tdd(model, ids, target, foil, None)
        for direction in ("forward", "backward", "bidirectional"):
            found = Tdd(direction=direction, **named)(predict(model, ids, target))
            assert relative(found.scores, expected[direction]) < 1e-5, (direction, foil)
            assert found.diagnostics["foil"] == foil and found.signed


@ONE_EACH
def test_a_contrast_names_the_foil_and_parts_may_begin_as_texts_do(build: Callable[..., Any]) -> None:
    model = build()
    ids, bos = zoo.prompt(model, N), model.tokenizer.bos_token_id
    for context in (ids, ids[:, 1:]):
        expected = plain_tdd(model, context, TARGET, 30, bos)["backward"]
        found = Tdd(add_bos=True)(predict(model, context, (TARGET, 30)))
        assert relative(found.scores, expected) < 1e-9
        assert found.diagnostics["foil"] == 30
    assert abs(float(Tdd(add_bos=True)(predict(model, ids, (TARGET, 30))).scores[0])) < 1e-9
    opposite = Tdd()(predict(model, ids, (30, TARGET))).scores
    assert relative(-opposite, Tdd()(predict(model, ids, (TARGET, 30))).scores) < 1e-9


@ONE_EACH
@pytest.mark.parametrize("foil", ["rival", "none"])
def test_tdd_adds_up_to_the_choice_after_the_whole_context(build: Callable[..., Any], foil: Any) -> None:
    model = build()
    asked = predict(model, zoo.prompt(model, N), TARGET)
    found = [Tdd(direction=each, foil=foil)(asked) for each in ("forward", "backward", "bidirectional")]
    whole = pair_score(plain_logits(model, zoo.prompt(model, N))[-1], TARGET, found[0].diagnostics["foil"])
    assert [float(one.scores.sum()) for one in found] == pytest.approx([whole] * 3, rel=1e-9)
    assert [one.diagnostics["forwards"] for one in found] == [1, N, N + 1]
    assert [Tdd(direction=each).work(asked).forwards for each in ("forward", "backward", "bidirectional")] == [
        1,
        N,
        N + 1,
    ]


def test_what_tdd_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    with pytest.raises(ValueError, match=r"target=\(7, 30\) has a foil, and foil='none' asks for none"):
        Tdd(foil="none")(predict(model, ids, (TARGET, 30)))
    asked = on_bridge()
    with monkeypatch.context() as patch:
        patch.setattr(model, "tokenizer", None)
        with pytest.raises(ValueError, match="add_bos=True needs a tokenizer"):
            Tdd(add_bos=True)(asked)
    full = zoo.prompt(model, zoo.N_CTX + 1)[:, 1:]
    with pytest.raises(ValueError, match=rf"takes {zoo.N_CTX + 1} positions, .*: leave out add_bos=True"):
        Tdd(add_bos=True)(predict(model, full, TARGET))
    try:
        asked = predict(hooked_up(model), ids, TARGET)
        with pytest.raises(ValueError, match=r"\(unless direction='forward'\), which hooks on"):
            Tdd()(asked)
        expected = plain_tdd(model, ids, TARGET, int(plain_logits(model, ids)[-1].argmax()), None)["forward"]
        assert relative(Tdd(direction="forward")(asked).scores, expected) < 1e-9
    finally:
        model.reset_hooks()
