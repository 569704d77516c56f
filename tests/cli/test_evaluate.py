"""``evaluate``, ``report``, ``merge``, ``reproduce``, ``fit-at2`` and ``attribute-dataset``, as a user types them."""

from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import heta_lens
from helpers.evaluating import run
from heta_lens.cli import app
from heta_lens.evaluation.run_database import reading
from heta_lens.methods.at2 import HeadWeights
from heta_lens.metrics import METRICS


@pytest.mark.slow
def test_a_report_is_printed(tmp_path: Path) -> None:
    words = "recall", "--limit", "2", "-m", "recency,random", "--metrics", "f1"
    done = run("evaluate", *words, "--out", str(tmp_path / "o"))
    assert done.exit_code == 0 and "F1 ↑" in done.stdout and "In brackets: 95 %" not in done.stdout
    whole = run("report", str(tmp_path / "o"), "--intervals")
    assert "F1 (more is better, n = 2)" in whole.stdout and "In brackets: 95 %" in whole.stdout


@pytest.mark.thorough
def test_methods_and_metrics_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_my_own.py").write_text(
        "def length(prediction):\n    return prediction.embeddings.norm(dim=-1)\n\n\n"
        "def longest(case):\n    return float(case.scores.argmax())\n\n\n"
        "longest.better = 'less'\n\n\ndef aimless(case):\n    return 1.0\n"
    )
    monkeypatch.chdir(tmp_path)
    two, title = ("evaluate", "recall", "--limit", "2"), "of_my_own:longest (less is better, n = 2)"
    done = run(*two, "-m", "of_my_own:length", "--metrics", "of_my_own:longest", "--out", "o")
    assert done.exit_code == 0, done.output
    assert title in (tmp_path / "o" / "report.md").read_text() and "o/report.md" in done.stdout
    assert "of_my_own:longest ↓" in done.stdout
    still = run("report", "o", "-q", "--intervals")
    assert title in still.stdout and "o/report.md" not in still.stdout and "of_my_own:longest" not in [*METRICS]
    for words, message in (
        (["-m", "of_my_own:lenght"], "of_my_own:lenght cannot be loaded: AttributeError"),
        (["-m", "recency", "--metrics", "of_my_own:aimless"], "metric of_my_own:aimless: it declares no direction"),
    ):
        done = run(*two, *words, "--out", "p")
        assert done.exit_code == 2 and message in done.output


@pytest.mark.thorough
def test_head_weights_are_fitted_and_used(tmp_path: Path) -> None:
    file = str(tmp_path / "w.safetensors")
    fitted = run("fit-at2", "recall", "--split", "train", "--limit", "2", "--samples", "4", "--out", file)
    assert fitted.exit_code == 0 and "correlate by" in fitted.output and file in fitted.output
    assert HeadWeights.load(file).fitted["prompts"] == 2
    used = run("attribute", "Leo put the key in the box.", "--method", "at2", "-o", f"weights={file}")
    assert used.exit_code == 0 and "at2: why" in used.output


# --------------------------------------------------------------------------------------------------- attribute-dataset


@pytest.mark.slow
def test_a_file_of_prompts_becomes_scores(tmp_path: Path) -> None:
    source, out = tmp_path / "p.csv", tmp_path / "out"
    source.write_text(
        "story,label\nThe whistle of Tom was placed in the, jar\nThe ladder of Enzo was placed in the, jar\n"
    )
    options = ["--field", "text=story", "--field", "answer=label", "--export", "parquet"]
    done = run("attribute-dataset", str(source), "--out", str(out), "-m", "random,recency", *options)
    assert done.exit_code == 0 and "4 attributions of 2 prompts: " in done.output and "scores.parquet" in done.output
    scores = heta_lens.load_scores(out)
    assert scores.methods == ("random", "recency") and scores[0].target_text == " jar"
    assert sorted({*pd.read_parquet(out / "scores.parquet")["prompt"]}) == ["p-0", "p-1"]
    with reading(out) as database:
        facts = database.run
    assert facts["model"] == "demo" and facts["source"].endswith("p.csv") and facts["metrics"] == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["p.txt"], "'p.txt' is no source of prompts"),
        (["recall", "--field", "text=x"], "has no effect: the suite is read by its own fields"),
        (["recall", "-o", "limit=3"], "-o limit=3 is no option of a suite: give --limit 3"),
        (["hf:/nowhere/at-all"], "the train split of /nowhere/at-all could not be read"),
    ],
)
def test_mistakes_are_refused_before_a_model_is_loaded(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heta_lens.model.loading.load_model", lambda *_, **__: pytest.fail("it was loaded"))
    monkeypatch.chdir(tmp_path)
    done = run("attribute-dataset", *words, "--out", str(tmp_path / "out"))
    assert done.exit_code == 2 and message in done.output and not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_nine_methods_and_nine_metrics_fit_a_screen(tmp_path: Path) -> None:
    methods = "careful,fast,leave_one_out,random,recency,attention_last,input_x_gradient,gradient_norm,attention_norm"
    metrics = "f1,evidence_mass,morf,lerf,dsa,soft_nc,aopc_ins,aopc_del,abpc"
    words = "recall", "--limit", "2", "-m", methods, "--metrics", metrics
    done = CliRunner().invoke(app, ["evaluate", *words, "--out", str(tmp_path)], env={"COLUMNS": "80"})
    lines = [line for line in done.stdout.splitlines() if str(tmp_path) not in line]
    assert done.exit_code == 0 and len(lines) < 50 and max(map(len, lines)) <= 80
