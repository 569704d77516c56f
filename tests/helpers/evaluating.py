"""Evaluations on the demo model that tests share."""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner

import heta_lens
from heta_lens.cli import app
from heta_lens.data.instance import Instance
from heta_lens.evaluation import Entry, evaluate
from heta_lens.evaluation.prompt_evaluation import ask
from heta_lens.evaluation.run_folder import read_records
from heta_lens.metrics import MetricCase
from heta_lens.prediction.prediction import Prediction

FEW = ["soft_nc", "soft_ns", "aopc_del", "evidence_mass", "dsa", "f1"]


@cache
def demo() -> Any:
    return heta_lens.load_demo_model()


def run(*words: str, given: str | None = None) -> Any:
    return CliRunner().invoke(app, list(words), input=given, env={"COLUMNS": "200", "NO_COLOR": "1"})


def entries(*written: str) -> list[Entry]:
    return [Entry.read(one) for one in written]


def evaluated(folder: Path, instances: list[Instance], *written: str, metrics: Any = FEW, model: Any = None) -> Any:
    evaluate(model or demo(), instances, entries(*written), metrics, folder, progress=False)
    return {record.key: record for record in read_records(folder)}


def scored(case: MetricCase, scores: Any) -> MetricCase:
    return replace(case, attribution=replace(case.attribution, scores=torch.as_tensor(scores, dtype=torch.float64)))


def case_of(instance: Instance) -> MetricCase:
    prediction = ask(demo(), instance)
    method = heta_lens.METHODS["leave_one_out"]()
    return MetricCase(instance, prediction, method(prediction), lambda *_: method, partial(ask, demo()))


def recency_of(prediction: Prediction) -> Any:
    """A method that is a plain function, of a module that workers can import."""
    return torch.arange(float(len(prediction)))
