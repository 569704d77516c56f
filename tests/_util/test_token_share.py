"""How many tokens a share of them is."""

from typing import Any

import pytest

from heta_lens._util.numerics import token_count


@pytest.mark.parametrize(
    ("rounding", "counts"), [("down", [3, 2, 2, 0]), ("nearest", [3, 2, 2, 0]), ("up", [3, 3, 3, 1])]
)
def test_a_share_is_rounded_as_a_metric_defines_it(rounding: Any, counts: list[int]) -> None:
    shares = [(0.3, 10), (0.5, 5), (0.24, 10), (0.01, 10)]  # 0.3 of 10 is 3, however floats are rounded
    assert [token_count(share, tokens, rounding) for share, tokens in shares] == counts
    assert [token_count(share, 7, rounding) for share in (0.0, 1.0)] == [0, 7]
    assert token_count(0.29, 100, rounding) == 29


def test_there_are_at_least_as_many_as_are_asked_for() -> None:
    assert token_count(0.01, 10, least=1) == 1
    assert token_count(0.5, 10, least=1) == 5
