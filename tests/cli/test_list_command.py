"""``heta-lens methods`` and ``heta-lens metrics``: everything there is, by name."""

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heta_lens import METHODS
from heta_lens.cli import app
from heta_lens.metrics import METRICS


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "100", "NO_COLOR": "1"})


def test_every_method_is_listed() -> None:
    shown = {line.split()[0] for line in run("methods").output.splitlines() if line.strip()}
    assert {*METHODS} <= shown


@pytest.mark.parametrize("method", METHODS)
def test_a_method_has_all_of_its_options(method: str) -> None:
    done = run("methods", method)
    assert done.exit_code == 0, done.output
    shown = [line.split()[0] for line in done.output.splitlines() if line and not line.startswith(" ")]
    assert {field.name for field in fields(METHODS[method])} - {"progress"} <= {*shown}


def test_a_method_is_described() -> None:
    shown = " ".join(run("methods", "lime").output.split())
    assert "LIME (Ribeiro 2016)" in shown and "cost samples · F" in shown and "signed: above 0" in shown
    assert "surrogate ridge or lasso ridge" in shown and "samples int ≥ 1 or none none number of random z" in shown
    assert "example heta-lens attribute" in shown and "--method lime -o samples=50" in shown


WITHOUT_PAPER = {"attention_last", "leave_one_out", "random", "recency"}  # which nobody claims to have invented


def test_a_method_names_its_paper() -> None:
    listed = json.loads(run("methods", "--json").stdout)["methods"]
    papers = {about["name"]: about["paper"] for about in listed}
    assert {name for name, paper in papers.items() if not paper} == WITHOUT_PAPER
    for paper in filter(None, papers.values()):
        for each in paper.split("; "):
            assert re.fullmatch(r"[A-Z].*, .{20,}, .*\b20[0-2]\d(, arXiv:\d{4}\.\d{4,5})?", each), each
    assert "paper Ribeiro, Singh & Guestrin" in " ".join(run("methods", "lime").output.split())


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("method", ["lime", "leave_one_out", "heta"])
def test_the_example_of_a_method_runs(method: str) -> None:
    (about,) = json.loads(run("methods", method, "--json").stdout)["methods"]
    program, *words = shlex.split(about["example"])
    done = run(*words)
    assert program == "heta-lens" and done.exit_code == 0 and f"{method}: why" in done.output


def test_an_alias_is_listed_and_described() -> None:
    assert "also called loo" in " ".join(run("methods").output.split())
    assert run("methods", "loo").output == run("methods", "leave_one_out").output


def test_a_method_of_ones_own_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "def length(prediction):\n    return prediction.embeddings.norm(dim=-1)\n"
    (tmp_path / "lengths_of_mine.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    done = run("methods", "lengths_of_mine:length")
    assert done.exit_code == 0 and re.search(r"package +lengths_of_mine", done.output), done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["methods", "limes"], "there is no method 'limes': did you mean 'lime'"),
        (["methods", "IG"], "there is no method 'IG': did you mean 'ig'?"),
        (["methods", "zzzz"], "there is no method 'zzzz': heta-lens methods lists them"),
        (["metrics", "soft_n"], "there is no metric 'soft_n': did you mean 'soft_n"),
        (["methods", "nowhere:x"], "nowhere:x cannot be loaded"),
    ],
    ids=str,
)
def test_an_unknown_name_is_refused_with_those_that_are_near(words: list[str], message: str) -> None:
    done = run(*words)
    assert done.exit_code == 2 and message in done.stderr and not done.stdout


def test_a_metric_is_described() -> None:
    shown = " ".join(run("metrics", "hard_nc").output.split())
    assert "measures How much the prediction changes without the tokens with the highest scores." in shown
    assert "ReAGent (Zhao & Shan 2024)" in shown and "better more" in shown and "range 0 to unbounded" in shown
    assert "--metrics hard_nc" in shown


def test_every_metric_is_listed() -> None:
    shown = {line.split()[0] for line in run("metrics").output.splitlines() if line.strip()}
    assert {*METRICS} <= shown
