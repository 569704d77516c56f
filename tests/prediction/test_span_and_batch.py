"""The predictions of a span, and those of a batch."""

import pytest
import torch

from helpers import zoo
from helpers.asking import cache_of
from heta_lens.prediction.from_cache import batch_predictions, one_each, reasoning_of, span_of, span_predictions

N = 8


def test_a_span_has_a_prediction_for_each_of_its_tokens_and_of_the_reasoning() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    reasoning, answer = span_predictions(cache_of(model, ids), -2, None, None, (3, 5), ids)
    assert [len(one) for one in reasoning] == [3, 4] and [len(one) for one in answer] == [6, 7]
    assert [one.target for one in (*reasoning, *answer)] == ids[0, [3, 4, 6, 7]].tolist()
    assert len({id(one.prompt) for one in (*reasoning, *answer)}) == 1


def test_a_batch_has_a_prediction_for_each_prompt_which_is_checked_in_its_turn() -> None:
    model = zoo.native_bridge()
    ids = torch.cat([zoo.prompt(model, N), zoo.prompt(model, N)])
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    checked: list[int] = []
    cache = model.run_with_cache(ids, attention_mask=mask)[1]
    found = batch_predictions(cache, [7, 9], None, ids, mask, lambda one: checked.append(len(one)))
    assert [len(one) for one in found] == checked == [N - 3, N] and [one.target for one in found] == [7, 9]


def test_places_may_be_counted_from_the_end() -> None:
    assert span_of(9, -3, None) == (6, 9) and span_of(9, 2, -1) == (2, 8)
    assert reasoning_of(9, (-7, -4), 6) == range(2, 5)


def test_one_value_is_meant_for_all() -> None:
    assert one_each("targets", " a", 2, "prompt") == [" a", " a"]
    assert one_each("targets", torch.tensor([3, 4]), 2, "prompt") == [3, 4]
    with pytest.raises(ValueError, match="targets= has 3 entries for 2 prompts: a list has one for each"):
        one_each("targets", [1, 2, 3], 2, "prompt")
