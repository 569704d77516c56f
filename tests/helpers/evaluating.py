"""Evaluations on the demo model, and predictions and scores that metrics are given."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import heta_lens
from helpers import zoo
from helpers.asking import predict
from heta_lens.cli import app
from heta_lens.data.instance import Instance
from heta_lens.evaluation import Entry, evaluate
from heta_lens.evaluation.prompt_evaluation import ask
from heta_lens.evaluation.records import Record
from heta_lens.evaluation.run_database import opened, read_records
from heta_lens.metrics import MetricCase

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


def recorded(folder: Path, run: Mapping[str, Any], found: Sequence[Record]) -> Path:
    """Write results that nothing has computed into a folder, as an evaluation would."""
    templates = {record.instance: record.template for record in found}
    instances = [Instance(name, "x", None, template=template) for name, template in templates.items()]
    with opened(folder, {"methods": {}, **run}, [*enumerate(instances)], ()) as database:
        claims = {claim.prompt: claim for claim in iter(lambda: database.claim("elsewhere/1/0", ()), None)}
        for record in found:
            if record.method in run["methods"]:
                assert database.commit(claims[record.instance], record)
    return folder


def scored(case: MetricCase, scores: Any) -> MetricCase:
    return replace(case, attribution=replace(case.attribution, scores=torch.as_tensor(scores, dtype=torch.float64)))


def case_of(instance: Instance) -> MetricCase:
    prediction = ask(demo(), instance)
    method = heta_lens.METHODS["leave_one_out"]()
    return MetricCase(instance, prediction, method(prediction), lambda *_: method, partial(ask, demo()))


N, TARGET = 8, 7
MODEL = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def prediction_of(model: Any, n: int = N) -> heta_lens.Prediction:
    return predict(model, zoo.prompt(model, n), TARGET)


def some_scores(n: int = N) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
