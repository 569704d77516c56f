"""Former names of metrics lead to today's, in every part of a saved evaluation."""

import json
from pathlib import Path

from heta_lens.evaluation.report.results import summary
from heta_lens.evaluation.run_folder import RECORDS, RUN, read_records, read_run
from heta_lens.metrics import METRICS
from heta_lens.metrics.registry import FORMER_NAMES, FORMER_TITLES, renamed, renamed_all, reworded


def test_every_former_name_leads_to_a_metric_of_today() -> None:
    assert {*FORMER_NAMES.values()} <= {*METRICS} and not {*FORMER_NAMES} & {*METRICS}
    for (name, former), title in FORMER_TITLES.items():
        assert METRICS[name].title == title != former


def test_names_that_are_no_former_ones_stay() -> None:
    assert renamed({"support_mass": 1, "mine": 2}) == {"evidence_mass": 1, "mine": 2}
    assert renamed_all(["support_mass", "f1", 3]) == ["evidence_mass", "f1", 3]


def test_reasons_are_read_in_the_words_of_today() -> None:
    recorded = {"f1": "seed=1 means nothing with passes='single'", "aopc": "no twin known of this prompt", "mine": 3}
    today = "seed=1 has no effect with passes='single'"
    assert reworded(recorded) == {**recorded, "f1": today, "aopc": "no counterfactual known of this prompt"}


def test_a_folder_written_under_former_names_is_read(tmp_path: Path) -> None:
    metric = {"title": "Own chance", "better": "less", "low": 0.0, "high": 1.0, "aggregate": "mean", "needs": ["twin"]}
    run = {"methods": {"heta": {"method": "heta", "options": {}}}, "metrics": {"sensitivity_chance": metric}}
    record = {
        **{"instance": "a", "method": "heta", "values": {"sensitivity_chance": 0.25, "support_mass": None}},
        **{"reasons": {"support_mass": "no support"}, "errors": {"support_mass": ""}, "doubts": ["sensitivity_chance"]},
    }
    (tmp_path / RUN).write_text(json.dumps(run))
    (tmp_path / RECORDS).write_text(json.dumps(record) + "\n")
    kept = read_run(tmp_path)["metrics"]["seed_variance"]
    assert (kept["title"], kept["needs"]) == ("Seed variance", ["counterfactual"])
    (read,) = read_records(tmp_path)
    assert read.values == {"seed_variance": 0.25, "evidence_mass": None}
    assert read.reasons == {"evidence_mass": "no support"} and read.errors == {"evidence_mass": ""}
    assert read.degenerate == ("seed_variance",)
    cell = summary(tmp_path).cells["seed_variance", "heta"]
    assert cell.estimate.value == 0.25 and cell.degenerate == 1
