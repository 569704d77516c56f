"""The paper's tables: rows, columns and figures, and the reasons why some figures are impossible.

All of it is data in ``paper.json``, copied from the paper and not computed here.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from math import hypot, isfinite, isinf, isnan, nan, sqrt
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from heta_lens._util.work import Allocations
from heta_lens.attribution import Attribution
from heta_lens.data.instance import Instance
from heta_lens.evaluation.prompt_evaluation import ask, figures
from heta_lens.evaluation.reproduce.rows import Known, Recombined, parts_of
from heta_lens.evaluation.run_folder import Record, terms
from heta_lens.evaluation.statistics import AGGREGATES, Aggregate, Estimate, estimate, log_ratio, mean
from heta_lens.methods.heta.heta import Heta
from heta_lens.methods.heta.windows import edge_gap, most_central, windows
from heta_lens.metrics import FEW, GRID, METRICS, Metric, MetricCase, Setting, first_token, relative_change
from heta_lens.metrics.metric_case import MetricCache, Value
from heta_lens.prediction.prediction import Prediction


class Place(NamedTuple):
    """A cell of a printed table."""

    model: str
    row: str
    column: str


@dataclass(frozen=True)
class Block:
    """The rows of entry model; ``hub`` is its name there, empty where a block is of several models.

    ``last_layers``: of how many layers curvature is taken, where it is not of all.
    """

    model: str
    hub: str
    rows: Mapping[str, tuple[str, ...]]
    last_layers: int = 0


@dataclass(frozen=True)
class Printed:
    """A table. ``named``: its rows or columns say which model they are of; ``across``: its columns do."""

    name: str
    labels: tuple[str, ...]
    title: str
    about: str
    columns: tuple[str, ...]
    blocks: tuple[Block, ...]
    impossible: Mapping[Place, tuple[str, ...]]
    named: bool = False
    across: bool = False
    length: int = 0
    """Tokens of its prompts, where the paper says."""
    prompts: int = 1000
    """The number of prompts of its runtimes."""

    @classmethod
    def read(cls, name: str, table: Mapping[str, Any]) -> "Printed":
        blocks = tuple(
            Block(**{**entry, "rows": {row: tuple(figures) for row, figures in entry["rows"].items()}})
            for entry in table["blocks"]
        )
        reasons: dict[Place, tuple[str, ...]] = {}
        for entry in table["impossible"]:
            for place in map(Place._make, entry["cells"]):
                reasons[place] = (*reasons.get(place, ()), entry["reason"])
        read = {"labels", "columns", "blocks", "impossible"}
        rest = {key: value for key, value in table.items() if key not in read}
        labels, columns = tuple(table["labels"]), tuple(table["columns"])
        return cls(name, labels, columns=columns, blocks=blocks, impossible=reasons, **rest)

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(self.blocks[0].rows)

    def figures(self) -> Iterator[tuple[Place, str]]:
        for block in self.blocks:
            for row, own in block.rows.items():
                for column, figure in zip(self.columns, own, strict=True):
                    yield Place(block.model, row, column), figure


@cache
def printed() -> Mapping[str, Printed]:
    tables = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
    return {name: Printed.read(name, table) for name, table in tables["tables"].items()}


# --------------------------------------------------------------------------------------------------------- peak memory
# The peak of memory that a method's own tensors hold, measured on the device where it runs.


def peak_memory(explain: Any, prediction: Prediction) -> float:
    """The peak of memory that new tensors hold, in bytes; at least one, to divide by."""
    device = prediction.adapter.device
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        explain(prediction)
        return float(torch.cuda.max_memory_allocated(device) - before)
    with Allocations() as held:
        explain(prediction)
    return float(max(1, held.most))


# ------------------------------------------------------------------------------------------------------- table metrics
# Metrics of the paper's tables that `METRICS` does not have: costs, window edges, and settings of a decoder.


SEEDS = 3
DECODED = ("soft_nc", "soft_ns", "dsa")


@dataclass(frozen=True, eq=False)
class Trial:
    """A prompt, with what the evaluations of several methods share. ``first``: of its data set."""

    model: Any
    instance: Instance
    prediction: Prediction
    full: Heta
    window: int
    first: bool
    known: Known = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any, instance: Instance, full: Heta, window: int, first: bool) -> "Trial":
        return cls(model, instance, ask(model, instance), full, window, first)

    @cached_property
    def measurements(self) -> MetricCache:
        return MetricCache(self.prediction)

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        """Those of these tables, by name; metrics of one evaluator share it."""
        bound = {evaluator: partial(evaluator, self) for evaluator in EVALUATORS.values()}
        return {name: Metric(name, bound[evaluator]) for name, evaluator in EVALUATORS.items()}

    @cached_property
    def peak(self) -> float:
        """The peak of memory of the full method, in bytes."""
        return peak_memory(self.full, self.prediction)


OfTrial: TypeAlias = Callable[[Trial, MetricCase], Mapping[str, Value]]


# ----------------------------------------------------------------------------------------------------- cost and windows
def evaluate_seconds(_: Trial, case: MetricCase) -> dict[str, Value]:
    return {"seconds": float(case.attribution.diagnostics["seconds"])}


def evaluate_memory(trial: Trial, case: MetricCase) -> dict[str, Value]:
    """The peak of memory beyond the model's, in GiB and as a share of the full method's."""
    if not trial.first:
        return dict.fromkeys(("memory", "memory_share"), "memory is measured on the first prompt alone")
    held = peak_memory(_itself(case.explain), case.prediction)
    return {"memory": held / 2**30, "memory_share": held / trial.peak}


def _itself(explain: Any) -> Any:
    return explain.configuration if isinstance(explain, Recombined) else explain


def evaluate_edges(trial: Trial, case: MetricCase) -> dict[str, Value]:
    """How much score differs, where windows meet, between the whole method and a windowed one."""
    whole = parts_of(trial.full, trial.prediction, trial.known).scores.detach().cpu().double()
    seams = most_central(windows(len(whole), trial.window, 0.5))
    return {"edge_gap": edge_gap(whole, case.scores, seams)}


# ------------------------------------------------------------------------------------------------------------- decoding
def evaluate_decoding(settings: Sequence[Setting], name: str, _: Trial, case: MetricCase) -> dict[str, Value]:
    """Every metric under every setting and seed: a tuple by setting, seed and term (of a ratio there are two)."""
    tokens = [first_token(case.prediction, setting, seed) for setting in settings for seed in range(SEEDS)]
    of_tokens = {token: _of_target(case, token) for token in dict.fromkeys(tokens)}
    results: dict[str, Value] = {}
    for metric in DECODED:
        missing = next((reasons[metric] for values, reasons in of_tokens.values() if values[metric] is None), "")
        terms = [of_tokens[token][0][metric] for token in tokens]
        results[f"{name}_{metric}"] = missing or tuple(float(term) for term in np.ravel(np.array(terms, dtype=float)))
    return results | {f"{name}_tokens": float(len(of_tokens))}


def _of_target(case: MetricCase, token: int) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Values and reasons with another token as the target."""
    if token == case.prediction.target:
        return figures(case, DECODED)
    prediction = replace(case.prediction, target=token)
    attribution: Attribution = case.explain(prediction)
    return figures(replace(case, prediction=prediction, attribution=attribution), DECODED)


def _decoded(name: str) -> list[str]:
    return [f"{name}_{metric}" for metric in (*DECODED, "tokens")]


EVALUATORS: Mapping[str, OfTrial] = {
    "seconds": evaluate_seconds,
    **dict.fromkeys(("memory", "memory_share"), evaluate_memory),
    "edge_gap": evaluate_edges,
    **dict.fromkeys(_decoded("grid"), partial(evaluate_decoding, GRID, "grid")),
    **dict.fromkeys(_decoded("few"), partial(evaluate_decoding, FEW, "few")),
}
"""By the names of the metrics that each gives."""
SETTINGS: Mapping[str, int] = {"grid": len(GRID), "few": len(FEW)}


# --------------------------------------------------------------------------------------------------------- table cells
# The cells of a table: an aggregate over prompts with its interval, or the reason why there is none.


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


# ------------------------------------------------------------------------------------------------------- table columns
# The columns of every printed table: which metric, on which prompts.


BENCHMARKS = ("longra", "tellmewhy", "wikibio")
TITLES = {"longra": "LongRA", "tellmewhy": "TellMeWhy", "wikibio": "WikiBio"}
CURATED = ("curated",)

SUPERVISED = "DSA: of annotated tokens, less all of the distracting segment, as shares of both"
UNSAID = "Sensitivity: noise of 0.01 of the embeddings' size, 5 runs, scores over their maximum; the paper says neither"
CALIBRATED = "Faithfulness: one scale is fitted to all scores, since the paper names none"


@dataclass(frozen=True)
class Recipe:
    """How a table's cells are made. ``turned``: printed rows are what is measured, and columns are methods.

    ``extra`` are options of HETA in this table alone.
    """

    measures: Mapping[str, Measure]
    turned: bool = False
    extra: Mapping[str, Any] | None = None


def _faithfulness() -> Recipe:
    return Recipe(
        {
            f"{TITLES[name]}, {title}": Measure(metric, (name,))
            for name in BENCHMARKS
            for title, metric in (("Soft-NC", "soft_nc"), ("Soft-NS", "soft_ns"))
        }
    )


DSA = Measure("dsa", CURATED, note=SUPERVISED)
SENSITIVITY = Measure("sensitivity", ("tellmewhy",), note=UNSAID)
VOICES = Measure("paraphrase_consistency", ("voices",))
F1 = Measure("f1", CURATED)
TOGETHER = {"batch": 8}  # as the paper has it, so that memory can be compared


def _runtime(table: str) -> Recipe:
    return Recipe(
        {
            "AOPC": Measure("aopc_del", ("long",)),
            "DSA": Measure("dsa", ("long",), note=SUPERVISED),
            "Runtime (s)": _seconds(table),
            "Peak Mem (GB)": Measure("memory", ("long",), note=BESIDE),
        },
        extra=TOGETHER,
    )


def _seconds(table: str) -> Measure:
    prompts = printed()[table].prompts
    return Measure(
        "seconds", ("long",), times=prompts, note=f"Runtime: a prompt's seconds on this machine, times {prompts:,}"
    )


BESIDE = "Memory: the most that tensors held at once beside the model, in GiB, of the first prompt"

RECIPES: Mapping[str, Recipe] = {
    "main": _faithfulness(),
    "qwen": _faithfulness(),
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
        {"Runtime (s)": _seconds("hessian"), "AOPC": Measure("aopc_del", ("long",)), "F1": Measure("f1", ("long",))},
        extra=TOGETHER,
    ),
    "long_context": Recipe(
        {"AOPC": Measure("aopc_del", ("long",)), "Runtime (s)": _seconds("long_context")}, extra=TOGETHER
    ),
    "decoding": Recipe(
        {
            title: Measure(f"grid_{metric}", CURATED, beside={"target tokens per prompt": "grid_tokens"})
            for title, metric in (("Soft-NC", "soft_nc"), ("Soft-NS", "soft_ns"), ("DSA", "dsa"))
        },
        turned=True,
    ),
    "compute_quality": Recipe(
        {
            "AOPC": Measure("aopc_del", ("long",)),
            "DSA": Measure("dsa", ("long",), note=SUPERVISED),
            "Runtime": _seconds("compute_quality"),
            "Memory": Measure("memory_share", ("long",), note=f"{BESIDE}, in units of the full method's"),
            "ε(W)": Measure(
                "edge_gap",
                ("long",),
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
