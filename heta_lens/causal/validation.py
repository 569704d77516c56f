"""Causal validation: an attribution's scores against the effects of patching every token."""

from dataclasses import dataclass
from math import atanh, isnan, nan, sqrt, tanh
from textwrap import shorten
from typing import Any, NamedTuple, SupportsIndex

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.html_view import View
from heta_lens._util.options import Batch, check_at_least
from heta_lens._util.target_kinds import described, of_logits
from heta_lens._util.work import working
from heta_lens.attribution import Attribution
from heta_lens.metrics.evidence import highest
from heta_lens.metrics.interventions import mean_effect, misattribution, patch_correlation
from heta_lens.model.lock import one_at_a_time
from heta_lens.plots.html_page import heat
from heta_lens.prediction.cache import Tokens
from heta_lens.prediction.masking import Mask
from heta_lens.prediction.patching import How, Patterns, effects
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import Scale

Z95 = 1.959964  # the 97.5 % point of the normal distribution
FEWEST_TOKENS = 4  # with an interval


class Agreement(NamedTuple):
    """Spearman's correlation over the tokens of a prompt, and its 95 % interval; NaN for an undefined number."""

    correlation: float
    low: float
    high: float
    tokens: int

    @property
    def verdict(self) -> str:
        """Verdict on the scores, in words."""
        if isnan(self.correlation):
            why = "there is one token" if self.tokens == 1 else "the scores or the effects are all equal"
            return f"undefined: {why}"
        if isnan(self.low):
            return f"cannot tell: there are {self.tokens} tokens"
        if self.low > 0:
            return "patching agrees with the scores"
        return "patching contradicts the scores" if self.high < 0 else "cannot tell: the interval includes 0"

    def __str__(self) -> str:
        if isnan(self.correlation):
            return self.verdict
        said = f"{self.verdict}: rank correlation {self.correlation:.2f}"
        if isnan(self.low):
            return said
        return f"{said} [{self.low:.2f}, {self.high:.2f}] over {self.tokens} tokens, treated as independent"


def with_interval(correlation: float, tokens: int) -> Agreement:
    """Add the interval of Bonett and Wright (2000), by Fisher's transformation, for independent tokens.

    The interval of a perfect correlation would be a point for any number of tokens, so a perfect correlation counts as
    the largest imperfect correlation.
    """
    if isnan(correlation) or tokens < FEWEST_TOKENS:
        return Agreement(correlation, nan, nan, tokens)
    most = 1 - 12 / (tokens**3 - tokens)  # two neighbours in the order, exchanged
    middle = max(-most, min(most, correlation))
    reach = Z95 * sqrt((1 + middle**2 / 2) / (tokens - 3))
    low, high = tanh(atanh(middle) - reach), tanh(atanh(middle) + reach)
    return Agreement(correlation, -1.0 if correlation < -most else low, 1.0 if correlation > most else high, tokens)


@dataclass(frozen=True, eq=False, repr=False)
class Validation:
    """Agreement of an attribution's scores with the effects of patching, an effect per evaluated token.

    Scores without signs (``signed=False``) say how much a token matters: their agreement and misattribution go by the
    sizes of the effects.

    - ``patch_correlation``: Spearman's correlation of scores and effects; NaN for constant scores or effects
    - ``joint``: the effect of patching the ``k`` tokens with the highest scores together (Intervention@k)
    - ``mean_single``: the mean of their effects, patched one at a time
    - ``quantity``: the quantity that effects lower: a log-probability, a difference of two, the value of a function
    - ``misattribution``: the share of the ``top`` tokens with the highest scores and an effect below ``least``
    """

    positions: tuple[int, ...]
    tokens: tuple[str, ...]
    scores: Float[Tensor, "token"]
    effects: Float[Tensor, "token"]
    patch_correlation: float
    joint: float
    mean_single: float
    misattribution: float
    signed: bool
    title: str
    quantity: str
    options: dict[str, Any]

    @property
    def agreement(self) -> Agreement:
        """Rank correlation with its 95 % interval over tokens, and the verdict."""
        return with_interval(self.patch_correlation, len(self.positions))

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row per evaluated token."""
        columns = {"score": self.scores.tolist(), "effect": self.effects.tolist()}
        return pd.DataFrame({"position": self.positions, "token": self.tokens, **columns})

    def plot(self) -> View:
        """Draw scores above effects, as shares of the largest score and the largest effect."""
        rows = torch.stack([values / (values.abs().max() or 1) for values in (self.scores, self.effects)])
        names = ["score / largest", "effect / largest"]
        return heat(self.title, names, self.tokens, rows, "; ".join(self._summary), self.positions)

    def __repr__(self) -> str:
        return "\n".join([self.title, *self._summary])

    @property
    def _summary(self) -> list[str]:
        layer = self.options["layer"]
        way = f"how={self.options['how']!r}" + (f", layer={layer}" if layer is not None else "")
        k, top = (min(self.options[name], len(self.positions)) for name in ("k", "top"))
        by_size, size = ("", "") if self.signed else ("; effects by size, since the scores have no signs", " in size")
        return [
            f"{self.agreement} (by {way}{by_size})",
            f"patching the {k} highest lowers {self.quantity} by {self.joint:.3g}; patching one of them, by "
            f"{self.mean_single:.3g} on average",
            f"{self.misattribution:.0%} of the {top} highest have an effect below {self.options['least']:g}{size}",
        ]


@one_at_a_time("cache")
def validate(
    cache: Any,
    attribution: Attribution,
    *,
    position: SupportsIndex | None = None,
    tokens: Tokens = None,
    how: How = "edge_patch",
    mask: Mask = "zero",
    layer: int | None = None,
    patterns: Patterns = "frozen",
    scale: Scale = "log_prob",
    k: int = 5,
    top: int = 10,
    least: float | int = 0.01,
    special: bool = False,
    batch: Batch = "auto",
    progress: bool | None = None,
) -> Validation:
    """Patch every token of an attribution, and compare the effects with the scores.

    A single prompt is weak evidence: ``heta-lens evaluate`` repeats the comparison on many prompts, with intervals.

    The model must have the hooks that it had when the attribution was made. ``position`` and ``tokens`` are those given
    to `attribute`; ``how``, ``mask``, ``layer``, ``patterns`` and ``scale`` are options of `effects`.

    Args:
        attribution: the attribution, by any method. Tokens without a score are not evaluated.
        k: the number of tokens with the highest scores to patch together; every token, if there are fewer.
        top: the number of tokens that should have an effect of at least ``least``.
        least: the smallest effect of a correctly attributed token.
        special: evaluate special tokens too, which often are attention sinks.
        batch: the number of copies of the context that run at once.
        progress: show a progress bar; None shows the bar on a terminal or in a notebook.

    Example:
        >>> validation = heta_lens.causal.validate(cache, attribution, tokens=tokens, how="delete")
        >>> validation.agreement.verdict
        'patching agrees with the scores'
    """
    for name, value in {"k": k, "top": top}.items():
        check_at_least(name, value, 1, whole=True)
    check_at_least("least", least, 0)
    if not isinstance(attribution, Attribution):
        raise TypeError("validate takes the attribution of one target: give span.steps[i], and its position=")
    prediction = Prediction.from_cache(cache, attribution.target, position=position, tokens=tokens)
    check_explains(attribution, prediction)
    if not special and bool(attribution.special.all()):
        raise ValueError("every token of this attribution is special: special=True (--special) evaluates them too")
    scored = attribution if special else attribution.without_special()
    way: dict[str, Any] = {"how": how, "mask": mask, "layer": layer, "patterns": patterns, "scale": scale}
    places, scores = scored.positions.tolist(), scored.scores.double()
    groups = [[places[at] for at in highest(scores, k)], *([at] for at in places)]
    with working({"forwards": len(groups) + 1}, progress):
        patched = effects(prediction, **way, batch=batch, groups=groups).cpu().double()
    joint, alone = float(patched[0]), patched[1:]
    quantity = f"the difference of the two in {scale}" if isinstance(attribution.target, tuple) else scale
    if callable(attribution.target):
        quantity = of_logits(attribution.target)
    return Validation(
        positions=tuple(places),
        tokens=scored.tokens,
        scores=scores,
        effects=alone,
        patch_correlation=patch_correlation(scores, alone, signed=attribution.signed),
        joint=joint,
        mean_single=mean_effect(scores, alone, k),
        misattribution=misattribution(scores, alone, top, float(least), signed=attribution.signed),
        signed=attribution.signed,
        title=attribution.title,
        quantity=quantity,
        options={**way, "k": k, "top": top, "least": least, "special": special},
    )


def check_explains(attribution: Attribution, prediction: Prediction) -> None:
    """Refuse an attribution of another prompt or position."""
    text = prediction.located[0]
    if attribution.text == text and torch.equal(prediction.ids.cpu()[attribution.positions], attribution.ids):
        return
    explained, cached = (shorten(each, 60, placeholder=" …") for each in (attribution.text, text))
    raise ValueError(
        "this attribution is of another prompt than the cache, or of another position=: it explains "
        f"{described(attribution.target, attribution.target_text)} by {explained!r}, and the cache is of {cached!r}: "
        "give the cache that it was made from"
    )
