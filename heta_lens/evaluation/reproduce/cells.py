"""What a cell says: an aggregate over prompts with its interval, or why there is none."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import hypot, isfinite, isinf, isnan, nan, sqrt

import numpy as np
from jaxtyping import Float

from heta_lens.evaluation.records import Record, terms
from heta_lens.evaluation.reproduce.judges import DECODED, SEEDS, SETTINGS
from heta_lens.evaluation.statistics import AGGREGATES, Aggregate, Estimate, estimate, log_ratio, mean
from heta_lens.metrics import METRICS, relative_change


@dataclass(frozen=True)
class Measure:
    """A printed column: the mean over ``sources`` of what is made of each one's ``metric``.

    ``times`` changes its unit; ``beside`` are other figures to tell of, by what they are called; ``note`` says what
    the paper leaves open.
    """

    metric: str
    sources: tuple[str, ...]
    times: float | int = 1
    beside: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """Ours; ``told`` is None where there is nothing to say, and ``notes`` say why, or what else."""

    told: Estimate | None
    notes: tuple[str, ...] = ()


def figure(measure: Measure, records: Mapping[str, Sequence[Record]], unread: Mapping[str, str]) -> Figure:
    """Of one method: its records and, of sources that could not be read, why, by source."""
    found = [_of_source(measure.metric, records[name]) for name in measure.sources if name in records]
    notes = [unread[name] for name in measure.sources if name in unread]
    notes += [note for one in found for note in one.notes]
    if notes and (len(found) < len(measure.sources) or any(one.told is None for one in found)):
        return Figure(None, tuple(dict.fromkeys(notes)))
    told = _scaled(_together([one.told for one in found if one.told is not None]), measure.times)
    if isnan(told.value):
        return Figure(
            None, (*dict.fromkeys(notes), "no mean: it is infinite in one data set, and minus that in another")
        )
    notes += [f"{what}: {said}" for what, name in measure.beside.items() if (said := _beside(name, measure, records))]
    if isinf(told.value):
        notes.append("the logarithm of 0: by none of these prompts is anything moved")
    if isnan(told.low):
        notes.append("of one prompt, and so without an interval")
    return Figure(told, tuple(dict.fromkeys(notes)))


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
    # An instance without a template is like no other.
    clusters = [(record.template, "" if record.template else record.instance) for record in having]
    told = estimate(vectors, clusters, made_by, smooth=made_by in (mean, log_ratio))
    if isnan(told.value):
        nothing = f"{_nothing(metric)}, of {len(having)} prompts"
        return Figure(None, (*notes, nothing))
    return Figure(told, tuple(notes))


def _nothing(metric: str) -> str:
    if metric.partition("_")[0] in SETTINGS:
        return "no percentage: under these settings the figure is infinite, 0 in 0, or within two standard errors of 0"
    return "0 in 0: neither it nor random scores change anything"


def _why(record: Record, names: Sequence[str]) -> str:
    if record.failed:
        return record.failed
    return next((record.reasons[name] for name in names if name in record.reasons), "no reason given")


def _together(told: Sequence[Estimate]) -> Estimate:
    """The mean of independent estimates, whose distances to their ends add up in squares (Zou & Donner 2008)."""
    if len(told) == 1:
        return told[0]
    value = sum(one.value for one in told) / len(told)
    ends = nan, nan
    if isfinite(value) and all(isfinite(one.low) and isfinite(one.high) for one in told):
        below, above = (
            hypot(*(abs(getattr(one, end) - one.value) for one in told)) / len(told) for end in ("low", "high")
        )
        ends = value - below, value + above
    elif any(not isnan(one.low) for one in told):
        ends = -np.inf, np.inf
    n, clusters = (sum(getattr(one, what) for one in told) for what in ("n", "clusters"))
    return Estimate(value, ends[0], ends[1], n, clusters, told[0].unit)


def _scaled(told: Estimate, times: float | int) -> Estimate:
    return replace(told, value=times * told.value, low=times * told.low, high=times * told.high)


# ---------------------------------------------------------------------------------------------------------- aggregates
def _made_of(metric: str) -> tuple[list[str], Aggregate]:
    """What a figure is made of, and how."""
    settings, _, rest = metric.partition("_")
    if settings in SETTINGS:
        names = DECODED if rest == "all" else (rest,)
        made_by = partial(changed, [METRICS[name].aggregate for name in names], SETTINGS[settings], rest == "all")
        return [f"{settings}_{name}" for name in names], made_by
    return [metric], AGGREGATES[METRICS[metric].aggregate][1] if metric in METRICS else mean


def changed(
    kinds: Sequence[str], settings: int, greedy_first: bool, means: Float[np.ndarray, "draws k"]
) -> Float[np.ndarray, "draws"]:
    """How far settings are apart, in percent: at most, or on average from the first, and over these figures."""
    found, begun = [], 0
    for kind in kinds:
        width = AGGREGATES[kind][0]
        stop = begun + settings * SEEDS * width
        part = means[:, begun:stop].reshape(-1, width)
        values = (log_ratio if kind == "log_ratio" else mean)(part).reshape(len(means), settings, SEEDS)
        found.append([_change(row, greedy_first) for row in values])
        begun = stop
    return np.array(found).mean(0)


def _change(values: Float[np.ndarray, "settings seeds"], greedy_first: bool) -> float:
    if (values == values.flat[0]).all():  # whatever it is, even the logarithm of 0
        return 0.0
    if not np.isfinite(values).all():
        return nan
    of_seeds, errors = values.mean(1), values.std(1, ddof=1) / sqrt(values.shape[1])
    if not greedy_first:
        return relative_change(of_seeds.tolist(), errors.tolist())
    return relative_change(of_seeds.tolist(), errors.tolist(), reduce="mean", reference=float(of_seeds[0]))
