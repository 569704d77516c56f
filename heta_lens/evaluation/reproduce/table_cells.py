"""The cells of a table: an aggregate over prompts with its interval, or the reason why there is none."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import hypot, isfinite, isinf, isnan, nan, sqrt

import numpy as np
import pandas as pd
from jaxtyping import Float

from heta_lens.evaluation.aggregates import AGGREGATES, Aggregate, log_ratio, mean
from heta_lens.evaluation.intervals import Estimate, estimate
from heta_lens.evaluation.reproduce.table_metrics import DECODED, SEEDS, SETTINGS
from heta_lens.evaluation.run_records import Record, terms
from heta_lens.metrics import METRICS, relative_change


@dataclass(frozen=True)
class Measure:
    """A printed column: the mean over ``sources`` of the aggregate of ``metric``.

    ``times`` changes its unit; ``beside`` are other metrics for a note, by their descriptions; ``note`` says what the
    paper leaves open.
    """

    metric: str
    sources: tuple[str, ...]
    times: float | int = 1
    beside: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """Our value; without an ``estimate``, the ``notes`` say why."""

    estimate: Estimate | None
    notes: tuple[str, ...] = ()


def figure(measure: Measure, records: Mapping[str, Sequence[Record]], unread: Mapping[str, str]) -> Figure:
    """The figure of one method, from its records by source; ``unread`` has the reasons of unreadable sources."""
    figures = [_of_source(measure.metric, records[name]) for name in measure.sources if name in records]
    notes = [unread[name] for name in measure.sources if name in unread]
    notes += [note for one in figures for note in one.notes]
    if notes and (len(figures) < len(measure.sources) or any(one.estimate is None for one in figures)):
        return Figure(None, tuple(dict.fromkeys(notes)))
    estimates = [one.estimate for one in figures if one.estimate is not None]
    together = _scaled(_together(estimates), measure.times)
    if isnan(together.value):
        return Figure(
            None, (*dict.fromkeys(notes), "no mean: it is infinite in one data set, and minus that in another")
        )
    notes += [f"{what}: {mean}" for what, name in measure.beside.items() if (mean := _beside(name, measure, records))]
    if isinf(together.value):
        notes.append("the logarithm of 0: none of these prompts changes the prediction")
    if isnan(together.low):
        notes.append("of one prompt, and so without an interval")
    return Figure(together, tuple(dict.fromkeys(notes)))


def _beside(name: str, measure: Measure, records: Mapping[str, Sequence[Record]]) -> str:
    values = [
        terms(record.values[name])[0]
        for source in measure.sources
        for record in records[source]
        if record.values.get(name) is not None
    ]
    return f"{np.mean(values):.3g}" if values else ""


def _of_source(metric: str, records: Sequence[Record]) -> Figure:
    """An estimate over the prompts that have a value, and why others have none."""
    names, made_by = _made_of(metric)
    having = [record for record in records if all(record.values.get(name) is not None for name in names)]
    missing = Counter(_why(record, names) for record in records if record not in having)
    notes = [f"{reason} ({count} of {len(records)} prompts)" for reason, count in missing.most_common()]
    if not having:
        return Figure(None, tuple(notes))
    vectors = [[part for name in names for part in terms(record.values[name])] for record in having]
    # An instance without a template is a cluster of its own.
    clusters = [(record.template, "" if record.template else record.instance) for record in having]
    result = estimate(vectors, clusters, made_by, smooth=made_by in (mean, log_ratio))
    if isnan(result.value):
        nothing = f"{_nothing(metric)}, of {len(having)} prompts"
        return Figure(None, (*notes, nothing))
    return Figure(result, tuple(notes))


def _nothing(metric: str) -> str:
    if metric.partition("_")[0] in SETTINGS:
        return "no percentage: under these settings the figure is infinite, 0 in 0, or within two standard errors of 0"
    return "0 in 0: neither it nor random scores change anything"


def _why(record: Record, names: Sequence[str]) -> str:
    if record.failed or record.skipped:
        return record.failed or record.skipped
    return next((record.reasons[name] for name in names if name in record.reasons), "no reason given")


def _together(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of independent estimates, whose distances to their ends add up in squares (Zou & Donner 2008)."""
    if len(estimates) == 1:
        return estimates[0]
    value = sum(each.value for each in estimates) / len(estimates)
    low, high = nan, nan
    if isfinite(value) and all(isfinite(each.low) and isfinite(each.high) for each in estimates):
        low = value - hypot(*(abs(each.low - each.value) for each in estimates)) / len(estimates)
        high = value + hypot(*(abs(each.high - each.value) for each in estimates)) / len(estimates)
    elif any(not isnan(each.low) for each in estimates):
        low, high = -np.inf, np.inf
    n, clusters = sum(each.n for each in estimates), sum(each.clusters for each in estimates)
    return Estimate(value, low, high, n, clusters, estimates[0].unit)


def _scaled(estimate: Estimate, times: float | int) -> Estimate:
    return replace(estimate, value=times * estimate.value, low=times * estimate.low, high=times * estimate.high)


# ---------------------------------------------------------------------------------------------------------- aggregates
def _made_of(metric: str) -> tuple[list[str], Aggregate]:
    """What a figure is made of, and how."""
    settings, _, rest = metric.partition("_")
    if settings in SETTINGS:
        names = DECODED if rest == "all" else (rest,)
        made_by = partial(changed, [METRICS[name].aggregate for name in names], SETTINGS[settings], rest == "all")
        return [f"{settings}_{name}" for name in names], made_by
    return [metric], AGGREGATES[METRICS[metric].aggregate].aggregate if metric in METRICS else mean


def changed(
    kinds: Sequence[str], settings: int, greedy_first: bool, means: Float[np.ndarray, "draws k"]
) -> Float[np.ndarray, "draws"]:
    """How far settings are apart, in percent: at most, or on average from the first; the mean over these metrics."""
    frame = pd.DataFrame(means, columns=decoded_columns(kinds, settings))
    changes = [
        _changes(_by_setting_and_seed(kind, pd.DataFrame(frame[metric])), greedy_first)
        for metric, kind in enumerate(kinds)
    ]
    return np.mean(changes, axis=0)


def decoded_columns(kinds: Sequence[str], settings: int) -> pd.MultiIndex:
    """What the numbers of a decoded record are of, in their order; ``kinds`` are the aggregates of its metrics."""
    columns = [
        (metric, setting, seed, term)
        for metric, kind in enumerate(kinds)
        for setting in range(settings)
        for seed in range(SEEDS)
        for term in range(AGGREGATES[kind].terms)
    ]
    return pd.MultiIndex.from_tuples(columns, names=["metric", "setting", "seed", "term"])


def _by_setting_and_seed(kind: str, terms: pd.DataFrame) -> pd.DataFrame:
    """The aggregate of the terms of every setting and seed, a row per draw."""
    by_term = terms.stack(["setting", "seed"], future_stack=True)
    return pd.Series(AGGREGATES[kind].aggregate(by_term.to_numpy()), by_term.index).unstack(["setting", "seed"])


def _changes(values: pd.DataFrame, greedy_first: bool) -> list[float]:
    """The change of each draw: 0 where all values are equal, even to the logarithm of 0; NaN where one is infinite."""
    settings = values.columns.unique("setting")
    with np.errstate(invalid="ignore"):  # of infinite values, which have no change
        means = pd.DataFrame({setting: values[setting].to_numpy().mean(1) for setting in settings})
        errors = pd.DataFrame({setting: values[setting].to_numpy().std(1, ddof=1) for setting in settings}) / sqrt(
            SEEDS
        )
    table = values.to_numpy()
    equal = np.asarray((table == table[:, :1]).all(axis=1))
    finite = np.asarray(np.isfinite(table).all(axis=1))
    return [
        0.0 if equal[draw] else _change(means.loc[draw], errors.loc[draw], greedy_first) if finite[draw] else nan
        for draw in range(len(values))
    ]


def _change(means: pd.Series, errors: pd.Series, greedy_first: bool) -> float:
    if not greedy_first:
        return relative_change(means.tolist(), errors.tolist())
    return relative_change(means.tolist(), errors.tolist(), reduce="mean", reference=float(means.iloc[0]))
