"""Settings of a decoder: the change of metrics with the sampled target, in percent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product, starmap
from math import nan, sqrt
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from heta_lens.evaluation.prompt_evaluation import figures
from heta_lens.evaluation.records import terms
from heta_lens.evaluation.statistics import AGGREGATES
from heta_lens.metrics import MetricCase
from heta_lens.metrics.metric_case import Value
from heta_lens.prediction.generation import drawn_token
from heta_lens.prediction.prediction import Prediction, prompt_generator

SEEDS = 3
DECODED = ("soft_nc", "soft_ns", "dsa")


@dataclass(frozen=True)
class Setting:
    """A setting of the sampler: another target token, but the same explanation of a given token.

    A temperature of 0 takes the most likely token, a ``top_k`` of 0 draws from the whole vocabulary. ``repetition``
    multiplies the log-probabilities of the context's tokens.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition: float = 1.0


SETTINGS: Mapping[str, Sequence[Setting]] = {
    "grid": [*starmap(Setting, product((0.2, 0.5, 0.9), (0.8, 0.9, 0.95), (20, 50, 100), (1.0, 1.2)))],
    "few": [Setting(), Setting(1.0, 0.9), Setting(0.8)],  # of the appendix: greedy, a nucleus, a temperature
}


def first_token(prediction: Prediction, setting: Setting, seed: int = 0) -> int:
    """Draw the model's next token under a setting of the sampler."""
    log_probs = prediction.log_probs.cpu().double().clone()
    if setting.repetition != 1.0:
        log_probs[prediction.ids.cpu().unique()] *= setting.repetition  # a log-probability is below 0, and so falls
    if setting.top_k:
        log_probs[log_probs.argsort(descending=True, stable=True)[setting.top_k :]] = -torch.inf
    draw = torch.from_numpy(prompt_generator(seed, prediction.ids).random(1))
    return int(drawn_token(log_probs[None], draw, setting.temperature, setting.top_p)[0])


def evaluate_decoding(name: str, case: MetricCase) -> dict[str, Value]:
    """Compute the decoded metrics for the first token of every setting and seed.

    The value of a metric is a tuple by setting, seed and term.
    """
    tokens = [first_token(case.prediction, setting, seed) for setting in SETTINGS[name] for seed in range(SEEDS)]
    of_tokens = {token: _figures_of(case, token) for token in dict.fromkeys(tokens)}
    results: dict[str, Value] = {f"{name}_tokens": float(len(of_tokens))}
    for metric in DECODED:
        missing = next((reasons[metric] for values, reasons in of_tokens.values() if values[metric] is None), "")
        values = [number for token in tokens for number in terms(of_tokens[token][0][metric])]
        results[f"{name}_{metric}"] = missing or tuple(map(float, values))
    return results


def _figures_of(case: MetricCase, token: int) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Compute the decoded metrics and the reasons of missing values with another token as the target."""
    if token == case.prediction.target:
        return figures(case, DECODED)
    prediction = replace(case.prediction, target=token)
    attribution = case.explain(prediction)
    return figures(replace(case, prediction=prediction, attribution=attribution), DECODED)


def changed(
    kinds: Sequence[str], settings: int, greedy_first: bool, means: Float[np.ndarray, "draws k"]
) -> Float[np.ndarray, "draws"]:
    """Compute the distance of the settings of a decoder in percent, as a mean over metrics of these aggregates.

    The distance is the largest between settings, or the mean distance from the first setting. A row of ``means`` has
    numbers by metric, setting, seed and term.
    """
    changes, start = [], 0
    for kind in kinds:
        count, aggregate = AGGREGATES[kind]
        columns = means[:, start : start + settings * SEEDS * count]
        values = aggregate(columns.reshape(-1, count)).reshape(len(means), settings, SEEDS)
        changes.append([change(draw, greedy_first) for draw in values])
        start += columns.shape[1]
    return np.mean(changes, axis=0)


def change(values: Float[np.ndarray, "settings seeds"], greedy_first: bool) -> float:
    """Return the distance of the two settings furthest apart, in percent of the mean.

    With ``greedy_first``, return the mean distance from the first, in percent of it. Equal values, even infinite
    ones, have a change of 0; NaN for other infinite values, and if the divisor is within two standard errors of 0.
    """
    if (values == values[0, 0]).all():
        return 0.0
    if not np.isfinite(values).all():
        return nan
    means, errors = values.mean(1), values.std(1, ddof=1) / sqrt(SEEDS)
    base = float(means[0] if greedy_first else means.mean())
    if abs(base) < max(1e-6, 2 * float(errors.mean())):
        return nan
    return 100 * float(np.abs(means - base).mean() if greedy_first else np.ptp(means)) / abs(base)
