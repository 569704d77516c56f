"""``--json``: the documents of every command fit the schema and hold the results."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from helpers import ROOT
from helpers.evaluating import run

SCHEMAS = json.loads((ROOT / "docs" / "command_output.schema.json").read_text())
TEXT = "Mia put the key in the drawer. Question: Where did Mia put the key? Answer: in the"


def document(*words: str, code: int = 0) -> dict[str, Any]:
    """The document of a command, a line that fits the schema."""
    done = run(*words, "--json")
    assert done.exit_code == code, done.output
    assert done.stdout.count("\n") == 1 and done.stdout.endswith("\n")
    printed = json.loads(done.stdout)
    jsonschema.validate(printed, SCHEMAS)
    assert printed["command"] == (" ".join(words[:2]) if words[0] == "causal" else words[0])
    return printed


def test_saved_results(tmp_path: Path) -> None:
    kept = [str(tmp_path / name) for name in ("a", "b")]
    for path, method in zip(kept, ("loo", "ixg"), strict=True):
        assert document("attribute", TEXT, "-m", method, "--save", path)["saved"] == path
    shown = document("show", *kept)["shown"]
    assert [each["file"] for each in shown] == kept and shown[0]["attribution"]["method"] == "leave_one_out"
    printed = document("compare", *kept, "--html", str(tmp_path / "c.html"))
    assert [each["label"] for each in printed["compared"]] == ["leave_one_out", "input_x_gradient"]
    assert printed["page"] == str(tmp_path / "c.html")
    assert "error" in document("show", "nowhere", code=2) and "error" in document("compare", kept[0], code=2)


def test_tokens_of_an_answer_that_depend_on_a_passage() -> None:
    printed = document("attribute-context", TEXT, "--context", "Mia put the key in the drawer.", "--generate", "2")
    assert [row["depends"] for row in printed["tokens"]] == [True, False] and len(printed["steps"]) == 1
    assert printed["answer"] == "".join(row["token"] for row in printed["tokens"])
    assert "error" in document("attribute-context", TEXT, "--context", "Leo", code=2)


@pytest.mark.thorough
def test_patching() -> None:
    printed = document("causal", "validate", TEXT, "-m", "loo")
    agreement = printed["patch_correlation"]
    assert agreement["low"] < agreement["value"] < agreement["high"] and agreement["n"] == len(printed["tokens"])
    effects = [each["effect"] for each in document("causal", "patch", TEXT)["effects"]]
    assert effects == sorted(effects, reverse=True)
    printed = document("causal", "patch", TEXT, "--corrupted", TEXT.replace("Mia", "Leo", 1))
    assert {each["layer"] for each in printed["patches"]} == {*range(6)} and printed["clean"] != printed["corrupted"]
    found = document("causal", "components", TEXT, "--passage", "drawer", "--verify", "4")
    assert found["claim"].startswith("With ' drawer' (7) replaced") and len(found["components"]) == 4
    assert "error" in document("causal", "components", TEXT, "--passage", "Paris", code=2)


@pytest.mark.thorough
@pytest.mark.filterwarnings("default:merged what there is:UserWarning")
def test_scores_evaluations_and_reports_of_many_prompts(tmp_path: Path) -> None:
    out, scores = (str(tmp_path / name) for name in ("o", "s"))
    recall = "recall", "--limit", "4", "-m", "recency,random"
    printed = document("attribute-dataset", *recall, "--out", scores, "--export", "csv")
    assert (printed["attributions"], printed["prompts"], printed["failed"]) == (8, 4, [])
    assert printed["exported"] == [str(Path(scores) / "scores.csv")] and Path(printed["scores"]).exists()
    printed = document("evaluate", *recall, "--metrics", "f1", "--out", out)
    results = {(row["metric"], row["method"]): row for row in printed["results"]}
    assert {*results} == {("f1", "recency"), ("f1", "random")}
    assert isinstance(results["f1", "random"]["value"], float) and results["f1", "random"]["n"] == 4
    assert [row["method"] for row in printed["costs"]] == ["recency", "random"]
    assert document("report", out)["results"] == printed["results"]
    shard = document("evaluate", *recall, "--metrics", "f1", "--shard", "0/2", "--out", str(tmp_path / "parts"))
    assert shard["folder"].endswith("shard-0-of-2")
    assert document("merge", str(tmp_path / "parts"), "--partial")["merged"] == 4
