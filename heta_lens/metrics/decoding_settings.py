"""Decoding: which token a setting of the sampler chooses, and how much a metric depends on that.

A setting does not change how a given token is explained, only which token is the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import nan
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.options import check_at_least, check_choice
from heta_lens.prediction.generation import drawn_token
from heta_lens.prediction.prediction import Prediction, prompt_generator


@dataclass(frozen=True)
class Setting:
    """A setting of the sampler. A temperature of 0 takes the most likely token, a ``top_k`` of 0 draws from all.

    ``repetition`` multiplies the log-probabilities of tokens that the context has.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("temperature", self.temperature), ("top_p", self.top_p), ("repetition", self.repetition)):
            check_at_least(name, value, 0)
        check_at_least("top_k", self.top_k, 0, whole=True)


GREEDY = Setting()
GRID = tuple(
    Setting(temperature, top_p, top_k, repetition)
    for temperature, top_p, top_k, repetition in product((0.2, 0.5, 0.9), (0.8, 0.9, 0.95), (20, 50, 100), (1.0, 1.2))
)
"""The paper's 54 settings, each of which it runs with 3 seeds."""
FEW = (GREEDY, Setting(1.0, 0.9), Setting(0.8))
"""Those of the paper's appendix: greedy, a nucleus, a temperature."""


def first_token(prediction: Prediction, setting: Setting, seed: int = 0) -> int:
    """The token that the model continues with under this setting."""
    check_at_least("seed", seed, 0, whole=True)
    log_probs = shaped(prediction.log_probs.cpu().double(), setting, prediction.ids.cpu().tolist())
    draw = prompt_generator(seed, prediction.ids).random(1)
    chosen = drawn_token(log_probs[None], torch.from_numpy(draw), setting.temperature, setting.top_p)
    return int(chosen[0])


def shaped(log_probs: Float[Tensor, "vocab"], setting: Setting, context: Sequence[int]) -> Float[Tensor, "vocab"]:
    """The log-probabilities before the temperature: context tokens less likely, those beyond ``top_k`` excluded."""
    adjusted = log_probs.clone()
    if setting.repetition != 1.0:
        spoken = torch.tensor(sorted({*context}))
        adjusted[spoken] *= setting.repetition  # a log-probability is below 0, and so falls
    if setting.top_k:
        adjusted[adjusted.argsort(descending=True, stable=True)[setting.top_k :]] = -torch.inf
    return adjusted


def relative_change(
    figures: Sequence[float],
    errors: Sequence[float],
    *,
    reduce: Literal["max", "mean"] = "max",
    reference: float | None = None,
) -> float:
    """How far apart the values of settings are, in percent of their mean; 0 and above, less is better.

    ``max`` is of the two that are furthest apart, ``mean`` over all settings of their distance from the mean; with a
    ``reference``, from that, in percent of it. NaN where the mean is within two of its standard errors of 0, because a
    percentage of it would be meaningless.
    """
    check_choice("reduce", reduce, ("max", "mean"))
    if len(figures) != len(errors) or len(figures) < 2:
        raise ValueError(f"{len(figures)} figures with {len(errors)} standard errors: give as many, and two at least")
    for place, error in enumerate(errors):
        check_at_least(f"errors[{place}]", float(error), 0)
    values = np.array(figures, dtype=float)
    if np.isinf(values).any():
        raise ValueError(f"figures[{int(np.isinf(values).argmax())}] is {values[np.isinf(values)][0]}")
    base = float(values.mean()) if reference is None else reference
    if np.isnan(values).any() or abs(base) < max(1e-6, 2 * float(np.mean(errors))):
        return nan
    if reduce == "mean" or reference is not None:
        gaps = np.abs(values - base)
        return 100 * float(gaps.max() if reduce == "max" else gaps.mean()) / abs(base)
    return 100 * float(np.ptp(values)) / abs(base)
