"""Probabilities in words."""

import math

import pytest

from heta_lens._util.text import probability


@pytest.mark.parametrize(
    ("p", "shown"),
    [
        (1.0, "p = 1"),
        (1 - 1e-12, "p > 0.9999"),
        (0.99991, "p > 0.9999"),
        (0.99989, "p = 0.9999"),
        (0.9996, "p = 0.9996"),
        (0.9994, "p = 0.999"),
        (0.25, "p = 0.25"),
        (1.234e-12, "p = 1.23e-12"),
    ],
)
def test_it_is_rounded_but_never_to_1(p: float, shown: str) -> None:
    assert probability(math.log(p)) == shown


def test_what_no_float_can_tell_from_0_or_1_is_neither() -> None:
    assert probability(-800.0) == "p = 3.67e-348"
    assert probability(-1e-20) == "p > 0.9999"
    assert probability(-math.inf) == "p = 0"


def test_a_log_probability_that_rounding_put_above_0_is_1() -> None:
    assert probability(0.02) == "p = 1"
