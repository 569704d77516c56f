"""What a single prompt says of whether scores agree with the effects of patching: a correlation with an interval."""

from math import atanh, isnan, nan, sqrt, tanh
from typing import NamedTuple

Z95 = 1.959964  # the normal distribution's 97.5 % point
FEWEST = 4  # tokens, of which there is an interval


class Agreement(NamedTuple):
    """Spearman's correlation over the tokens of a prompt, and its 95 % interval; NaN where there is none."""

    correlation: float
    low: float
    high: float
    tokens: int

    @property
    def verdict(self) -> str:
        if isnan(self.correlation):
            why = "there is one token" if self.tokens == 1 else "the scores or the effects are all equal"
            return f"undefined: {why}"
        if isnan(self.low):
            return f"cannot tell: there are {self.tokens} tokens"
        if self.low > 0:
            return "patching agrees with the scores"
        return "patching contradicts the scores" if self.high < 0 else "cannot tell: the interval includes 0"

    def __str__(self) -> str:
        """The verdict, and what it rests on."""
        if isnan(self.correlation):
            return self.verdict
        interval = (
            ""
            if isnan(self.low)
            else f" [{self.low:.2f}, {self.high:.2f}] over {self.tokens} tokens, treated as independent"
        )
        return f"{self.verdict}: rank correlation {self.correlation:.2f}{interval}"


def agreement(correlation: float, tokens: int) -> Agreement:
    """With the interval of Bonett and Wright (2000), by Fisher's transformation, as if tokens were independent.

    A perfect correlation, whose interval would be a point however few the tokens, counts as the next one below it.
    """
    if isnan(correlation) or tokens < FEWEST:
        return Agreement(correlation, nan, nan, tokens)
    most = 1 - 12 / (tokens**3 - tokens)  # two neighbours in the order, exchanged
    middle = max(-most, min(most, correlation))
    reach = Z95 * sqrt((1 + middle**2 / 2) / (tokens - 3))
    low, high = tanh(atanh(middle) - reach), tanh(atanh(middle) + reach)
    return Agreement(correlation, -1.0 if correlation < -most else low, 1.0 if correlation > most else high, tokens)
