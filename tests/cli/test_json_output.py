"""``--json``: one document on stdout, whatever happens, and nothing else there."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
from typer.testing import CliRunner

from heta_lens import METHODS
from heta_lens.cli import app
from heta_lens.cli.app import SCHEMA
from heta_lens.evaluation.saved_scores import load_scores
from heta_lens.metrics import METRICS

SCHEMAS = json.loads((Path(__file__).parents[2] / "docs" / "command_output.schema.json").read_text())


def document(*words: str, code: int = 0) -> dict[str, Any]:
    """What the command prints on stdout, which is one line, as its schema says."""
    done = CliRunner().invoke(app, [*words, "--json"], env={"NO_COLOR": "1"})
    assert done.exit_code == code, done.output
    assert done.stdout.count("\n") == 1 and done.stdout.endswith("\n")
    printed = json.loads(done.stdout)
    jsonschema.validate(printed, SCHEMAS)
    named = " ".join(words[:2]) if words[0] == "causal" else words[0]
    assert printed["schema"] == SCHEMA and printed["command"] == named
    return printed


def test_methods_and_metrics_are_listed() -> None:
    methods = {each["name"]: each for each in document("methods")["methods"]}
    assert [*methods] == [*METHODS]
    assert methods["lime"]["family"] == "perturbation" and methods["heta"]["signed"] is False
    assert [each["name"] for each in document("metrics")["metrics"]] == [*METRICS]


def test_one_method_has_its_options() -> None:
    (lime,) = document("methods", "lime")["methods"]
    options = {option["name"]: option for option in lime["options"]}
    assert options["surrogate"]["type"] == "ridge or lasso" and lime["takes"] and lime["example"]
    (metric,) = document("metrics", "f1")["metrics"]
    assert metric["name"] == "f1" and metric["example"]
    assert "did you mean" in document("methods", "limes", code=2)["error"]


TEXT = "Mia put the key in the drawer. Question: Where did Mia put the key? Answer: in the"


def test_spans_and_several_methods() -> None:
    printed = document("attribute", TEXT, "-m", "loo", "--generate", "2", "--by", "word")
    assert len(printed["steps"]) == 2 and printed["generated"].startswith(" drawer") and printed["groups"]
    assert len(printed["total"]["score"]) == len(printed["steps"][0]["score"])
    printed = document("attribute", TEXT, "-m", "loo,ixg")
    assert [each["method"] for each in printed["methods"]] == ["loo", "ixg"]
    assert -1 <= printed["correlations"][0]["rank_correlation"] <= 1


def test_what_was_saved(tmp_path: Path) -> None:
    kept = [str(tmp_path / name) for name in ("a", "b")]
    for path, method in zip(kept, ("loo", "ixg"), strict=True):
        assert document("attribute", TEXT, "-m", method, "--save", path)["saved"] == path
    shown = document("show", *kept)["shown"]
    assert [each["file"] for each in shown] == kept and shown[0]["attribution"]["method"] == "leave_one_out"
    printed = document("compare", *kept, "--html", str(tmp_path / "c.html"))
    assert [each["label"] for each in printed["compared"]] == ["leave_one_out", "input_x_gradient"]
    assert printed["page"] == str(tmp_path / "c.html")
    assert "error" in document("show", "nowhere", code=2) and "error" in document("compare", kept[0], code=2)


@pytest.mark.slow
def test_patching() -> None:
    printed = document("causal", "validate", TEXT, "-m", "loo")
    agreement = printed["patch_correlation"]
    assert agreement["low"] < agreement["value"] < agreement["high"] and agreement["n"] == len(printed["tokens"])
    effects = [each["effect"] for each in document("causal", "patch", TEXT)["effects"]]
    assert effects == sorted(effects, reverse=True)
    printed = document("causal", "patch", TEXT, "--corrupted", TEXT.replace("Mia", "Leo", 1), "--layers", "0:2")
    assert {each["layer"] for each in printed["patches"]} == {0, 1} and printed["clean"] != printed["corrupted"]
    assert sum(each["value"] for each in document("causal", "heads", TEXT)["heads"]) == pytest.approx(1)
    assert "error" in document("causal", "heads", "", code=2)


def test_every_command_has_a_schema() -> None:
    groups: Any = typer.main.get_command(app)
    names = [
        f"{name} {part}".strip()
        for name, command in groups.commands.items()
        for part in getattr(command, "commands", {"": None})
    ]
    assert sorted(SCHEMAS["properties"]["command"]["enum"]) == sorted(names)
    assert len(SCHEMAS["allOf"]) == len(names)


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
    assert {row["method"] for row in board["standings"]} == {"recency", "random"} and len(board["files"]) == 5
    shard = document("evaluate", *recall, "--metrics", "f1", "--shard", "0/2", "--out", str(tmp_path / "parts"))
    assert shard["folder"].endswith("shard-0-of-2")
    merged = document("merge", str(tmp_path / "parts"), "--partial")
    assert merged["merged"] == 4


@pytest.mark.slow
def test_an_evaluation_without_any_value_says_so_in_its_document(tmp_path: Path) -> None:
    recall = "recall", "--limit", "1", "-m", "lime features=@gold"
    printed = document("attribute-dataset", *recall, "--out", str(tmp_path / "o"), code=2)
    assert printed["error"].startswith("lime has no option 'features'") and not (tmp_path / "o").exists()
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

    monkeypatch.setattr("heta_lens.evaluation.run_folder.merge", fail)
    done = CliRunner().invoke(app, ["merge", "anything", "--json"])
    assert done.exit_code != 0
    printed = json.loads(done.stdout)
    jsonschema.validate(printed, SCHEMAS)
    assert printed["error"] == expected
