"""What one prompt says of scores and effects."""

from math import inf, isnan, nan

import numpy as np
import pytest
from scipy.stats import norm, spearmanr

from heta_lens.causal.validation import Z95, agreement


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng, n = np.random.default_rng(0), 30
    rho = 0.6
    truth = 6 / np.pi * np.arcsin(rho / 2)  # Spearman's of the bivariate normal distribution
    covered = 0
    for _ in range(2000):
        pairs = rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], n)
        interval = agreement(float(spearmanr(pairs[:, 0], pairs[:, 1])[0]), n)
        covered += interval.low <= truth <= interval.high
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)
    assert norm.ppf(0.975) == pytest.approx(Z95, abs=1e-6)


@pytest.mark.parametrize(
    ("correlation", "tokens", "verdict"),
    [
        (0.9, 20, "patching agrees with the scores"),
        (-0.9, 20, "patching contradicts the scores"),
        (0.1, 20, "cannot tell: the interval includes 0"),
        (0.9, 3, "cannot tell: there are 3 tokens"),
        (1.0, 20, "patching agrees with the scores"),
        (1.0, 6, "patching agrees with the scores"),
        (-1.0, 6, "patching contradicts the scores"),
        (1.0, 5, "cannot tell: the interval includes 0"),
        (1.0, 4, "cannot tell: the interval includes 0"),
        (nan, 1, "undefined: there is one token"),
        (nan, 20, "undefined: the scores or the effects are all equal"),
    ],
)
def test_the_verdict_is_that_of_the_interval(correlation: float, tokens: int, verdict: str) -> None:
    assert agreement(correlation, tokens).verdict == verdict


def test_an_interval_by_hand() -> None:
    interval = agreement(0.5, 30)  # atanh(0.5) ± 1.96 · sqrt(1.125 / 27)
    assert interval.low == pytest.approx(np.tanh(0.5493061 - 0.4000760), abs=1e-6)
    assert interval.high == pytest.approx(np.tanh(0.5493061 + 0.4000760), abs=1e-6)


def test_the_interval_of_a_perfect_correlation_ends_at_it_and_narrows_with_tokens() -> None:
    few, many = agreement(1.0, 6), agreement(-1.0, 30)
    assert few.low < 0.6 and few.high == 1
    assert many.low == -1 and many.high < -0.99
    assert agreement(1.0, 30).low > agreement(0.99, 30).low


def test_an_interval_has_its_correlation_in_it_even_if_that_is_rounded() -> None:
    for tokens in (5, 10, 30):
        for correlation in (1 - 2**-53, -1 + 2**-53, 1.0, -1.0, 0.99):
            interval = agreement(correlation, tokens)
            assert interval.low <= correlation <= interval.high


def test_no_interval_of_a_few_tokens() -> None:
    assert isnan(agreement(0.5, 3).low) and isnan(agreement(0.5, 3).high)
    assert -inf < agreement(0.5, 4).low < 0.5 < agreement(0.5, 4).high
