"""``--json``: one document on stdout, whatever happens, and nothing else there."""

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from heta_lens import METHODS
from heta_lens.cli import app
from heta_lens.cli.json_output import SCHEMA, plain
from heta_lens.evaluation.kept_scores import load_scores
from heta_lens.metrics import METRICS

SCHEMAS = json.loads((Path(__file__).parents[2] / "docs" / "command_output.schema.json").read_text())


def document(*words: str, code: int = 0) -> dict[str, Any]:
    """What the command prints on stdout, which is one line, as its schema says."""
    done = CliRunner().invoke(app, [*words, "--json"], env={"NO_COLOR": "1"})
    assert done.exit_code == code, done.output
    assert done.stdout.count("\n") == 1 and done.stdout.endswith("\n")
    printed = json.loads(done.stdout)
    jsonschema.validate(printed, SCHEMAS)
    assert printed["schema"] == SCHEMA and printed["command"] == words[0]
    return printed


def test_methods_and_metrics_are_listed() -> None:
    methods = {each["name"]: each for each in document("methods")["methods"]}
    assert [*methods] == [*METHODS]
    assert methods["lime"]["family"] == "perturbation" and methods["heta"]["signed"] is False
    assert [each["name"] for each in document("metrics")["metrics"]] == [*METRICS]


def test_an_error_is_in_the_document_and_on_stderr() -> None:
    done = CliRunner().invoke(app, ["attribute", "", "--json"])
    assert done.exit_code == 2 and "the text is empty" in done.stderr
    assert document("attribute", "", code=2)["error"].startswith("the text is empty: give the prompt")
    assert "attribution" not in document("attribute", "x", "--method", "lame", code=2)


@pytest.mark.slow
def test_an_attribution_is_a_line_that_load_scores_reads(tmp_path: Path) -> None:
    printed = document("attribute", "The key is in the", "--method", "leave_one_out")
    (tmp_path / "scores.jsonl").write_text(json.dumps(printed["attribution"]) + "\n")
    (attribution,) = load_scores(tmp_path)
    assert attribution.scores.tolist() == pytest.approx(printed["attribution"]["score"], rel=1e-6)
    assert attribution.method == "leave_one_out"


@pytest.mark.slow
def test_the_demo_says_what_the_evidence_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = document("demo", "--html", "page.html")
    tokens = printed["attribution"]["token"]
    assert printed["evidence"] and printed["answer"].strip() in "".join(tokens[place] for place in printed["evidence"])
    assert printed["page"] == "page.html"


@pytest.mark.slow
@pytest.mark.filterwarnings("default:merged what there is:UserWarning")
def test_scores_evaluations_and_reports_of_many_prompts(tmp_path: Path) -> None:
    out, scores = str(tmp_path / "o"), str(tmp_path / "s")
    recall = "recall", "--limit", "4", "-m", "recency,random"
    printed = document("attribute-dataset", *recall, "--out", scores, "--save", str(tmp_path / "s.csv"))
    assert (printed["attributions"], printed["prompts"], printed["failed"]) == (8, 4, [])
    assert printed["saved"] == [str(tmp_path / "s.csv")] and Path(printed["scores"]).exists()
    printed = document("evaluate", *recall, "--metrics", "f1", "--out", out)
    results = {(row["metric"], row["method"]): row for row in printed["results"]}
    assert {*results} == {("f1", "recency"), ("f1", "random")}
    assert isinstance(results["f1", "random"]["value"], float) and results["f1", "random"]["n"] == 4
    assert [row["method"] for row in printed["costs"]] == ["recency", "random"]
    assert document("report", out)["results"] == printed["results"]
    other = str(tmp_path / "other")
    document("evaluate", *recall, "--metrics", "f1", "--seed", "1", "--out", other)
    board = document("report", out, other, "--out", str(tmp_path / "board"))
    assert {row["method"] for row in board["standings"]} == {"recency", "random"} and len(board["files"]) == 4
    shard = document("evaluate", *recall, "--metrics", "f1", "--shard", "0/2", "--out", str(tmp_path / "parts"))
    assert shard["folder"].endswith("shard-0-of-2")
    merged = document("merge", str(tmp_path / "parts"), "--partial")
    assert merged["merged"] == 4


@pytest.mark.slow
def test_an_evaluation_without_any_value_says_so_in_its_document(tmp_path: Path) -> None:
    recall = "recall", "--limit", "1", "-m", "lime features=@gold"
    printed = document("attribute-dataset", *recall, "--out", str(tmp_path / "o"), code=2)
    assert printed["error"].startswith("Lime has no option 'features'") and not (tmp_path / "o").exists()
    recall = "recall", "--limit", "1", "-m", "leave_one_out", "--budget", "2F"
    printed = document("evaluate", *recall, "--metrics", "f1", "--out", str(tmp_path / "p"), code=1)
    assert "over the budget of 2" in printed["failed"][0]["reason"] and printed["error"].startswith("no metric has a")


@pytest.mark.parametrize(
    ("error", "expected"), [(KeyboardInterrupt(), "interrupted"), (KeyError("odd"), "KeyError: 'odd'")]
)
def test_whatever_ends_a_command_is_in_its_document(
    error: BaseException, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("heta_lens.evaluation.shard_merging.merge", fail)
    done = CliRunner().invoke(app, ["merge", "anything", "--json"])
    assert done.exit_code != 0
    printed = json.loads(done.stdout)
    jsonschema.validate(printed, SCHEMAS)
    assert printed["error"] == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, None),
        ([math.inf, -math.inf, 1.5], ["+inf", "-inf", 1.5]),
        ({"a": Path("x"), 3: (True, None)}, {"a": "x", "3": [True, None]}),
    ],
)
def test_values_are_those_of_json(value: Any, expected: Any) -> None:
    assert plain(value) == expected
