"""Values of metrics, the reasons why there is none, and degenerate scores."""

from pathlib import Path

import pytest
import torch

from helpers.evaluating import case_of, evaluated, scored
from heta_lens.data.instance import Instance
from heta_lens.data.suites import suite
from heta_lens.evaluation import figures
from heta_lens.evaluation.prompt_evaluation import MetricValues, record_of
from heta_lens.metrics import Metric


def test_what_is_not_known_of_a_prompt_is_said() -> None:
    (known,) = suite("recall", limit=1)
    values, reasons = figures(
        case_of(Instance(known.id, known.text, known.answer)), ["dsa", "counterfactual_aopc", "morf"]
    )
    assert reasons == {
        "dsa": "no support, gold, distractor known of this prompt",
        "counterfactual_aopc": "no counterfactual known of this prompt",
    }
    assert values["dsa"] is None and isinstance(values["morf"], float)


def test_scores_that_say_little_are_doubted() -> None:
    (instance,) = suite("recall", limit=1, facts=2)
    case = case_of(instance)
    values = dict.fromkeys(["soft_nc", "dsa", "morf"], 0.0)
    doubts = [
        [*record_of(scored(case, scores), "", MetricValues(values, {}, {})).degenerate]
        for scores in (case.scores, -case.scores.abs() - 1e-9, torch.ones(len(case.scores)))
    ]
    assert doubts == [[], ["soft_nc", "dsa"], ["soft_nc", "dsa", "morf"]]


def test_a_metric_of_one_value_may_call_it_as_it_likes() -> None:
    case = case_of(suite("recall", limit=1, facts=2)[0])
    assert figures(case, [Metric("mine", lambda _: {"short": 2.0})])[0] == {"mine": 2.0}
    _, reasons = figures(case, [Metric("mine", lambda _: {"a": 1.0, "b": 2.0})])
    assert "it returned a, b, and has to return a number for 'mine'" in reasons["mine"]


def test_figures_and_folders_that_cannot_be_are_refused(tmp_path: Path) -> None:
    case = case_of(suite("recall", limit=1)[0])
    with pytest.raises(
        ValueError,
        match=r"^metric='dsaa' is not in \S+METRICS \(did you mean 'dsa'\?\): `heta-lens metrics` lists",
    ):
        figures(case, ["dsaa"])
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file is a file: give a folder"):
        evaluated(tmp_path / "file", suite("recall", limit=1), "random", metrics=["morf"])
