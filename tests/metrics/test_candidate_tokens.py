"""Which tokens are evaluated: all but special ones, or the candidates that are given."""

from typing import Any

import pytest

from helpers import zoo
from helpers.asking import predict
from heta_lens.metrics.scores import ordinary, places, rows_of


def test_candidates_stand_in_the_order_of_the_text() -> None:
    assert places(None, 3) == [0, 1, 2] and places([2, 0, 2], 3) == [0, 2]
    with pytest.raises(ValueError, match="candidates is empty"):
        places([], 3)


def test_a_row_marks_each_set_of_positions() -> None:
    assert rows_of([[0, 2], []], 3).tolist() == [[True, False, True], [False, False, False]]


@pytest.mark.parametrize("build", zoo.models("-gpt2$"))
def test_special_tokens_are_no_candidates(build: Any) -> None:
    model = build()
    prediction = predict(model, zoo.prompt(model, 6), 3)
    special = prediction.adapter.tokenizer.special(prediction.ids.tolist())
    assert ordinary(prediction) == [position for position, hidden in enumerate(special) if not hidden]
