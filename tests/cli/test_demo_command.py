"""``heta-lens demo``, as a user types it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heta_lens.cli import app
from heta_lens.cli.questions import Question, ReadPrompt


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "100", "NO_COLOR": "1"})


@pytest.mark.slow
def test_demo_explains_a_story_and_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("demo")
    assert done.exit_code == 0, done.output
    assert re.search(r"heta: why ' \w+'\?", done.output)
    for part in ("score", "gate", "curvature", "information", "Underlined: the evidence for"):
        assert part in done.output
    assert "Underlined" in (tmp_path / "heta_lens_demo.html").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_two_hops_show_a_story_whose_evidence_is_first(tmp_path: Path) -> None:
    done = run("demo", "--hops", "2", "--html", str(tmp_path / "a.html"), "--json")
    content = json.loads(done.stdout)
    position, score = (content["attribution"][name] for name in ("position", "score"))
    best = sorted(zip(score, position, strict=True), reverse=True)[:2]
    assert {place for _, place in best} <= set(content["evidence"])


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked")
def test_demos_differ_by_seed_and_hops(tmp_path: Path) -> None:
    page = str(tmp_path / "a.html")
    said = {run("demo", *words, "--html", page).output for words in ([], ["--seed", "1"], ["--hops", "2"])}
    assert len(said) == 3
    assert run("demo", "--hops", "3").exit_code == 2
    assert "is a page" in run("demo", "--html", str(tmp_path / "a.png")).stderr


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked")
def test_demo_says_when_the_model_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = str(tmp_path / "a.html")
    assert "which the model answers: " in run("demo", "--html", page).output
    explained = ReadPrompt.explained
    wrong = lambda read, _, method: explained(read, Question(target=" bag"), method)  # noqa: E731
    monkeypatch.setattr(ReadPrompt, "explained", wrong)
    assert "which the model does not answer: " in run("demo", "--html", page).output
