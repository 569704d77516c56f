"""Metrics of the paper's tables that `METRICS` does not have: costs, window edges, and settings of a decoder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np

from heta_lens.attribution import Attribution
from heta_lens.data.instance import Instance
from heta_lens.evaluation.metric_values import figures
from heta_lens.evaluation.prompt_evaluation import ask
from heta_lens.evaluation.reproduce.peak_memory import peak_memory
from heta_lens.evaluation.reproduce.row_configurations import Known, Recombined, parts_of
from heta_lens.methods.heta.heta import Heta
from heta_lens.methods.heta.windows import edge_gap, most_central, windows
from heta_lens.metrics import FEW, GRID, ExplainedPrompt, Metric, Setting, first_token
from heta_lens.metrics.metric import Value
from heta_lens.metrics.shared_measurements import SharedMeasurements
from heta_lens.prediction.prediction import Prediction

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
    def measurements(self) -> SharedMeasurements:
        return SharedMeasurements(self.prediction)

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        """Those of these tables, by name; metrics of one evaluator share it."""
        bound = {evaluator: partial(evaluator, self) for evaluator in EVALUATORS.values()}
        return {name: Metric(name, bound[evaluator]) for name, evaluator in EVALUATORS.items()}

    @cached_property
    def peak(self) -> float:
        """The peak of memory of the full method, in bytes."""
        return peak_memory(self.full, self.prediction)


OfTrial: TypeAlias = Callable[[Trial, ExplainedPrompt], Mapping[str, Value]]


# ----------------------------------------------------------------------------------------------------- cost and windows
def evaluate_seconds(_: Trial, case: ExplainedPrompt) -> dict[str, Value]:
    return {"seconds": float(case.attribution.diagnostics["seconds"])}


def evaluate_memory(trial: Trial, case: ExplainedPrompt) -> dict[str, Value]:
    """The peak of memory beyond the model's, in GiB and as a share of the full method's."""
    if not trial.first:
        return dict.fromkeys(("memory", "memory_share"), "memory is measured on the first prompt alone")
    held = peak_memory(_itself(case.explain), case.prediction)
    return {"memory": held / 2**30, "memory_share": held / trial.peak}


def _itself(explain: Any) -> Any:
    return explain.configuration if isinstance(explain, Recombined) else explain


def evaluate_edges(trial: Trial, case: ExplainedPrompt) -> dict[str, Value]:
    """How much score differs, where windows meet, between the whole method and a windowed one."""
    whole = parts_of(trial.full, trial.prediction, trial.known).scores.detach().cpu().double()
    seams = most_central(windows(len(whole), trial.window, 0.5))
    return {"edge_gap": edge_gap(whole, case.scores, seams)}


# ------------------------------------------------------------------------------------------------------------- decoding
def evaluate_decoding(settings: Sequence[Setting], name: str, _: Trial, case: ExplainedPrompt) -> dict[str, Value]:
    """Every metric under every setting and seed: a tuple by setting, seed and term (of a ratio there are two)."""
    tokens = [first_token(case.prediction, setting, seed) for setting in settings for seed in range(SEEDS)]
    of_tokens = {token: _of_target(case, token) for token in dict.fromkeys(tokens)}
    results: dict[str, Value] = {}
    for metric in DECODED:
        missing = next((reasons[metric] for values, reasons in of_tokens.values() if values[metric] is None), "")
        terms = [of_tokens[token][0][metric] for token in tokens]
        results[f"{name}_{metric}"] = missing or tuple(float(term) for term in np.ravel(np.array(terms, dtype=float)))
    return results | {f"{name}_tokens": float(len(of_tokens))}


def _of_target(case: ExplainedPrompt, token: int) -> tuple[Mapping[str, Any], Mapping[str, str]]:
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
