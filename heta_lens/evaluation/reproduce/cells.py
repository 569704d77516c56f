"""The paper's tables: printed figures, recipes of columns, metrics that only tables have, and our figures.

The printed figures, and the reasons why some are impossible, are in ``paper.json``, copied from the paper.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from itertools import product, starmap
from math import hypot, inf, isfinite, isnan, nan, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from heta_lens._util.work import Allocations
from heta_lens.evaluation.prompt_evaluation import figures
from heta_lens.evaluation.records import Record, terms
from heta_lens.evaluation.statistics import AGGREGATES, Aggregate, Estimate, estimate, log_ratio, mean
from heta_lens.methods.heta.heta import Heta
from heta_lens.methods.heta.windows import edge_gap, most_central, spans_over
from heta_lens.metrics import METRICS, Metric, MetricCase
from heta_lens.metrics.metric_case import Evaluator, Value
from heta_lens.prediction.generation import drawn_token
from heta_lens.prediction.prediction import Prediction, prompt_generator


class Place(NamedTuple):
    """The place of a cell in a printed table."""

    model: str
    row: str
    column: str


@dataclass(frozen=True)
class Block:
    """The printed figures of a model, by row."""

    model: str
    hub: str  # the name of the model on the Hugging Face hub, empty for a block of several models
    rows: Mapping[str, Sequence[str]]
    last_layers: int = 0  # the number of last layers with curvature, 0 for all layers


@dataclass(frozen=True)
class Printed:
    """A printed table."""

    name: str
    labels: Sequence[str]
    title: str
    about: str
    columns: Sequence[str]
    blocks: Sequence[Block]
    impossible: Mapping[Place, tuple[str, ...]]  # the reasons why figures cannot be true
    named: bool = False  # True if the rows or the columns name the model
    across: bool = False  # True if the columns name the model
    length: int = 0  # the tokens of a prompt, if the paper says
    prompts: int = 1000  # of a runtime

    @classmethod
    def read(cls, name: str, table: Mapping[str, Any]) -> "Printed":
        reasons: dict[Place, tuple[str, ...]] = {}
        for entry in table["impossible"]:
            for place in map(Place._make, entry["cells"]):
                reasons[place] = (*reasons.get(place, ()), entry["reason"])
        blocks = [Block(**block) for block in table["blocks"]]
        return cls(name, **{**table, "blocks": blocks, "impossible": reasons})

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(self.blocks[0].rows)

    def figures(self) -> Iterator[tuple[Place, str]]:
        for block in self.blocks:
            for row, printed_figures in block.rows.items():
                for column, figure in zip(self.columns, printed_figures, strict=True):
                    yield Place(block.model, row, column), figure


@cache
def printed() -> Mapping[str, Printed]:
    tables = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))["tables"]
    return {name: Printed.read(name, table) for name, table in tables.items()}


# Metrics of tables that `METRICS` does not have: costs, the edges of windows, and settings of a decoder.
def table_metrics(full: Heta, window: int, first: str) -> dict[str, Metric]:
    """Make the metrics that only tables have; memory is measured on the prompt ``first`` alone."""
    whole = lru_cache(1)(lambda prediction: full(prediction).scores.detach().cpu().double())
    peak = lru_cache(1)(partial(peak_memory, full))

    def evaluate_memory(case: MetricCase) -> dict[str, Value]:
        """Measure the peak of memory beyond the model's, in GiB and as a share of the full method's peak."""
        if case.instance.id != first:
            return dict.fromkeys(("memory", "memory_share"), "memory is measured on the first prompt alone")
        held = peak_memory(case.explain, case.prediction)
        return {"memory": held / 2**30, "memory_share": held / peak(case.prediction)}

    def evaluate_edges(case: MetricCase) -> float:
        """Compare the scores of the full method with a windowed method's scores around the edges of windows."""
        spans = spans_over(len(case.prediction), window, 0.5)
        return edge_gap(whole(case.prediction), case.scores, most_central(spans))

    evaluators: dict[str, Evaluator] = {"seconds": lambda case: float(case.attribution.diagnostics["seconds"])}
    evaluators |= {"edge_gap": evaluate_edges} | dict.fromkeys(("memory", "memory_share"), evaluate_memory)
    for settings in SETTINGS:
        names = [f"{settings}_{name}" for name in (*DECODED, "tokens")]
        evaluators |= dict.fromkeys(names, partial(evaluate_decoding, settings))
    return {name: Metric(name, evaluator, low=None, high=None) for name, evaluator in evaluators.items()}


def peak_memory(explain: Any, prediction: Prediction) -> float:
    """Measure the peak of the memory of new tensors, in bytes (at least 1), on the device of the model."""
    device = prediction.adapter.device
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        explain(prediction)
        return float(torch.cuda.max_memory_allocated(device) - before)
    with Allocations() as held:
        explain(prediction)
    return float(max(1, held.most))


@dataclass(frozen=True)
class Measure:
    """The recipe of a column: the mean over data sets of the aggregate of a metric."""

    metric: str
    sources: tuple[str, ...]  # the names of the data sets
    times: float | int = 1  # the factor of the printed unit
    beside: Mapping[str, str] = field(default_factory=dict)  # metrics for a note, by their descriptions
    note: str = ""  # a choice that the paper leaves open

    @property
    def names(self) -> list[str]:
        """The metrics in a record that make the figure."""
        settings, _, rest = self.metric.partition("_")
        return [f"{settings}_{name}" for name in DECODED] if rest == "all" else [self.metric]

    @property
    def aggregate(self) -> Aggregate:
        settings, _, rest = self.metric.partition("_")
        if settings in SETTINGS:
            decoded = DECODED if rest == "all" else (rest,)
            kinds = [METRICS[name].aggregate for name in decoded]
            return partial(changed, kinds, len(SETTINGS[settings]), rest == "all")
        return AGGREGATES[METRICS[self.metric].aggregate].aggregate if self.metric in METRICS else mean


NOTHING = "no number: it is infinite, 0 in 0, or a percentage of a number near 0"


@dataclass(frozen=True)
class Figure:
    """Our value in a cell, with notes; the notes say why if there is no ``estimate``."""

    estimate: Estimate | None
    notes: tuple[str, ...] = ()


def figure(measure: Measure, records: Mapping[str, Sequence[Record]], unread: Mapping[str, str]) -> Figure:
    """Compute the figure of a method from its records by data set; ``unread`` has reasons for missing data sets."""
    found = [_of_source(measure, records[name]) for name in measure.sources if name in records]
    notes = [unread[name] for name in measure.sources if name in unread]
    notes += [note for each in found for note in each.notes]
    estimates = [each.estimate for each in found if each.estimate is not None]
    if notes and len(estimates) < len(measure.sources):
        return Figure(None, tuple(dict.fromkeys(notes)))
    total = _mean_of(estimates)
    if isnan(total.value):
        return Figure(None, (*dict.fromkeys(notes), NOTHING))
    value, low, high = (measure.times * number for number in (total.value, total.low, total.high))
    for description, name in measure.beside.items():
        values = [terms(record.values.get(name)) for source in measure.sources for record in records[source]]
        if known := [numbers[0] for numbers in values if numbers]:
            notes.append(f"{description}: {np.mean(known):.3g}")
    return Figure(replace(total, value=value, low=low, high=high), tuple(dict.fromkeys(notes)))


def _of_source(measure: Measure, records: Sequence[Record]) -> Figure:
    """Estimate a figure over the prompts with values, with notes on the prompts without values."""
    names, aggregate = measure.names, measure.aggregate
    missing: Counter[str] = Counter()
    vectors, clusters = [], []
    for record in records:
        if any(record.values.get(name) is None for name in names):
            reasons = (record.reasons[name] for name in names if name in record.reasons)
            missing[record.failed or record.skipped or next(reasons, "no reason given")] += 1
        else:
            vectors.append([number for name in names for number in terms(record.values[name])])
            clusters.append(record.cluster)
    notes = [f"{reason} ({count} of {len(records)} prompts)" for reason, count in missing.most_common()]
    if not vectors:
        return Figure(None, tuple(notes))
    result = estimate(vectors, clusters, aggregate, smooth=aggregate in (mean, log_ratio))
    return Figure(result, tuple(notes))


def _mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """Average independent estimates, whose distances to their ends add up in squares (Zou & Donner 2008)."""
    if len(estimates) == 1:
        return estimates[0]
    value = sum(each.value for each in estimates) / len(estimates)
    low, high = nan, nan
    if isfinite(value) and all(isfinite(each.low) and isfinite(each.high) for each in estimates):
        low = value - hypot(*(each.low - each.value for each in estimates)) / len(estimates)
        high = value + hypot(*(each.high - each.value for each in estimates)) / len(estimates)
    elif any(not isnan(each.low) for each in estimates):
        low, high = -inf, inf
    n, clusters = sum(each.n for each in estimates), sum(each.clusters for each in estimates)
    return Estimate(value, low, high, n, clusters)


@dataclass(frozen=True)
class Recipe:
    """The columns of a table.

    ``turned`` tables measure rows, and have methods as columns. ``extra`` are options of HETA in this table alone.
    """

    measures: Mapping[str, Measure]
    turned: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


BENCHMARKS = ("longra", "tellmewhy", "wikibio")
TITLES = {"longra": "LongRA", "tellmewhy": "TellMeWhy", "wikibio": "WikiBio"}
LONG, CURATED = ("long",), ("curated",)
TOGETHER = {"batch": 8}  # the paper's batch, so that memory can be compared
SUPERVISED = "DSA: of annotated tokens, less all of the distracting segment, as shares of both"
UNSAID = "Sensitivity: noise of 0.01 of the embeddings' size, 5 runs, scores over their maximum; the paper says neither"
CALIBRATED = "Faithfulness: one scale is fitted to all scores, since the paper names none"
PEAK = "Memory: the most that tensors held at once beside the model, in GiB, of the first prompt"

DSA = Measure("dsa", CURATED, note=SUPERVISED)
LONG_DSA = Measure("dsa", LONG, note=SUPERVISED)
LONG_AOPC = Measure("aopc_del", LONG)
F1 = Measure("f1", CURATED)
VOICES = Measure("paraphrase_consistency", ("voices",))
SENSITIVITY = Measure("sensitivity", ("tellmewhy",), note=UNSAID)
FAITHFULNESS = Recipe(
    {
        f"{TITLES[name]}, {title}": Measure(metric, (name,))
        for name in BENCHMARKS
        for title, metric in (("Soft-NC", "soft_nc"), ("Soft-NS", "soft_ns"))
    }
)


def _seconds(table: str) -> Measure:
    prompts = printed()[table].prompts
    note = f"Runtime: a prompt's seconds on this machine, times {prompts:,}"
    return Measure("seconds", LONG, times=prompts, note=note)


def _runtime(table: str) -> Recipe:
    memory = Measure("memory", LONG, note=PEAK)
    measures = {"AOPC": LONG_AOPC, "DSA": LONG_DSA, "Runtime (s)": _seconds(table), "Peak Mem (GB)": memory}
    return Recipe(measures, extra=TOGETHER)


TABLES: Mapping[str, Recipe] = {
    "main": FAITHFULNESS,
    "qwen": FAITHFULNESS,
    "dsa": Recipe({"DSA": DSA}),
    "components": Recipe(
        {"Soft-NC": Measure("soft_nc", BENCHMARKS), "Soft-NS": Measure("soft_ns", BENCHMARKS), "DSA": DSA}
    ),
    "beta_gamma": Recipe(
        {
            "Faithfulness": Measure("faithfulness_error_calibrated", ("tellmewhy",), note=CALIBRATED),
            "Sensitivity": SENSITIVITY,
            "Robustness": VOICES,
            "F1 (Alignment)": F1,
        }
    ),
    "robustness": Recipe({"Sensitivity": SENSITIVITY, "Act./Pass. Robustness": VOICES, "F1 (Alignment)": F1}),
    "hessian": Recipe(
        {"Runtime (s)": _seconds("hessian"), "AOPC": LONG_AOPC, "F1": Measure("f1", LONG)},
        extra=TOGETHER,
    ),
    "long_context": Recipe({"AOPC": LONG_AOPC, "Runtime (s)": _seconds("long_context")}, extra=TOGETHER),
    "decoding": Recipe(
        {
            title: Measure(f"grid_{metric}", CURATED, beside={"target tokens per prompt": "grid_tokens"})
            for title, metric in (("Soft-NC", "soft_nc"), ("Soft-NS", "soft_ns"), ("DSA", "dsa"))
        },
        turned=True,
    ),
    "compute_quality": Recipe(
        {
            "AOPC": LONG_AOPC,
            "DSA": LONG_DSA,
            "Runtime": _seconds("compute_quality"),
            "Memory": Measure("memory_share", LONG, note=f"{PEAK}, in units of the full method's"),
            "ε(W)": Measure(
                "edge_gap",
                LONG,
                note="ε(W): half the difference to the full method's shares within 16 tokens of where windows meet",
            ),
        },
        extra=TOGETHER,
    ),
    "causal_gate": Recipe(
        {
            "Patch-Corr": Measure(
                "patch_correlation",
                BENCHMARKS,
                note="Patch-Corr: 1 for a ranking by the same intervention; the paper's causal tracing is by another",
            ),
            "Intervention@5": Measure(
                "intervention_5",
                BENCHMARKS,
                note="Intervention@5: the five tokens' values are patched together, in nats",
            ),
            "Misattr.": Measure("misattribution", BENCHMARKS),
        }
    ),
    "causal_downstream": Recipe(
        {
            "Causal Pass@5": Measure(
                "causal_pass_5",
                ("counterfactuals",),
                beside={"a random order passes": "causal_pass_5_chance", "unpatched": "causal_pass_5_unpatched"},
            ),
            "CF-AOPC": Measure("counterfactual_aopc", ("counterfactuals",)),
            "Fact EMΔ": Measure("verdict_change", ("claims",)),
            "Tool Hit@1Δ": Measure("tool_change", ("tools",)),
            "Span-F1": Measure("span_f1", CURATED),
            "Decoding Δ%": Measure("few_all", CURATED),
        }
    ),
    **{name: _runtime(name) for name in ("runtime_gptj", "runtime_phi", "runtime_qwen", "runtime_llama")},
    "extended_faithfulness": Recipe(
        {
            "MoRF": Measure("morf", ("longra",), times=100, note="MoRF and LeRF: areas of the drop, times 100"),
            "LeRF": Measure("lerf", ("longra",), times=100),
            "ABPC": Measure("abpc", ("longra",)),
            "AOPC-Del": Measure("aopc_del", ("longra",)),
            "AOPC-Ins": Measure("aopc_ins", ("longra",)),
        }
    ),
}


# ------------------------------------------------------------------------------------------------ settings of a decoder
# The change of metrics with the sampled target, in percent.
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

    With ``greedy_first``, return the mean distance of the others from the first, in percent of it. Equal values, even
    infinite ones, have a change of 0; NaN for other infinite values, and if the divisor is within two standard errors
    of 0.
    """
    if (values == values[0, 0]).all():
        return 0.0
    if not np.isfinite(values).all():
        return nan
    means, errors = values.mean(1), values.std(1, ddof=1) / sqrt(SEEDS)
    base = float(means[0] if greedy_first else means.mean())
    if abs(base) < max(1e-6, 2 * float(errors.mean())):
        return nan
    return 100 * float(np.abs(means[1:] - base).mean() if greedy_first else np.ptp(means)) / abs(base)
