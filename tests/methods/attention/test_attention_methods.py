"""What all attention methods have in common."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.attention import TARGET, score
from heta_lens.methods.attention import AttentionLast, AttentionNorm, AttentionRollout, ValueZeroing

ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))
ALL = [AttentionRollout(), AttentionLast(), AttentionNorm(), ValueZeroing()]


@ONE_EACH
@pytest.mark.parametrize("method", ALL, ids=lambda method: method.name)
def test_attention_is_the_same_whatever_the_target(build: Callable[..., Any], method: Any) -> None:
    found = [score(build(), method, target=target) for target in (TARGET, 9)]
    assert torch.equal(*found)
    assert (found[0] >= 0).all() and not method.directed


@ONE_EACH
@pytest.mark.parametrize("method", ALL, ids=lambda method: method.name)
def test_one_token_is_all_there_is(build: Callable[..., Any], method: Any) -> None:
    model = build()
    found = score(model, method, zoo.prompt(model, 1))
    assert found.shape == (1,) and found[0] > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AttentionRollout(head_fusion="median"), "head_fusion='median' is not one of 'mean', 'max', 'min'"),  # type: ignore[arg-type]
        (lambda: AttentionRollout(start_layer=-1), "start_layer=-1 must be at least 0"),
        (lambda: AttentionLast(layer=-1), "layer=-1 must be at least 0"),
        (lambda: AttentionNorm(heads="all"), "heads='all' is not one of 'summed', 'apart'"),  # type: ignore[arg-type]
        (lambda: ValueZeroing(reduce="first"), "reduce='first' is not one of 'rollout', 'last', 'mean'"),  # type: ignore[arg-type]
        (lambda: ValueZeroing(floor=2), "floor=2 must be below 2.0"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_options_that_make_no_sense_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
