"""The command for many prompts: what it writes, says and refuses."""

import json
from pathlib import Path

import pandas as pd
import pytest

import heta_lens
from helpers.evaluating import run

STORIES = "The whistle of Tom was placed in the", "The ladder of Enzo was placed in the"


def written(folder: Path) -> str:
    path = folder / "p.csv"
    path.write_text("story,label\n" + "".join(f"{story}, jar\n" for story in STORIES))
    return str(path)


@pytest.mark.slow
def test_a_file_of_prompts_becomes_scores(tmp_path: Path) -> None:
    saved = tmp_path / "all.parquet"
    options = ["--field", "text=story", "--field", "answer=label", "--save", str(saved)]
    done = run("attribute-dataset", written(tmp_path), "--out", str(tmp_path / "out"), "-m", "random,recency", *options)
    assert done.exit_code == 0, done.output
    assert "4 attributions of 2 prompts: " in done.output and str(saved) in done.output
    scores = heta_lens.load_scores(tmp_path / "out")
    assert scores.methods == ("random", "recency") and scores[0].target_text == " jar"
    assert sorted(pd.read_parquet(saved)["prompt"]) == ["p-0", "p-0", "p-1", "p-1"]
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert facts["model"] == "demo" and facts["source"].endswith("p.csv") and facts["metrics"] == {}


@pytest.mark.slow
def test_a_suite(tmp_path: Path) -> None:
    options = ["--limit", "2", "--seed", "3", "-o", "hops=2", "-m", "random"]
    done = run("attribute-dataset", "recall", "--out", str(tmp_path), *options)
    assert done.exit_code == 0, done.output
    assert len(heta_lens.load_scores(tmp_path)) == 2


@pytest.mark.slow
def test_failures_are_said(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"text": "The unheard-of wordzzz"}\n')
    done = run("attribute-dataset", str(path), "--out", str(tmp_path / "out"), "-m", "random")
    assert done.exit_code != 0
    assert "1 of 1 failed, most often (1) by: " in done.output and "no prompt was explained" in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["p.txt"], "'p.txt' is no source of prompts"),
        (["recall", "-m", "hetta"], "did you mean 'heta'"),
        (["recall", "--save", "x.xlsx"], "the suffix of --save x.xlsx='.xlsx' is not one of '.jsonl'"),
        (["recall", "--field", "text"], "--field text names no column: write FIELD=COLUMN, as in text=question"),
        (["recall", "--field", "text=x"], "has no effect: the suite is read by its own fields"),
        (["recall", "-o", "limit=3"], "-o limit=3 is not an option of a suite: use --limit"),
        (["hf:/nowhere/at-all"], "the train split of /nowhere/at-all could not be read"),
    ],
)
def test_what_is_wrong_is_refused_before_a_model_is_loaded(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heta_lens.model.loading.load_model", lambda *_, **__: pytest.fail("it was loaded"))
    monkeypatch.chdir(tmp_path)
    done = run("attribute-dataset", *words, "--out", str(tmp_path / "out"))
    assert done.exit_code == 2 and message in done.output
    assert not (tmp_path / "out").exists()
