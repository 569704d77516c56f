"""``heta-lens evaluate``: what its help names."""

from pathlib import Path

import pytest

from helpers.evaluating import run
from heta_lens.cli.evaluate import SUITES
from heta_lens.data import suites
from heta_lens.metrics import METRICS


def test_the_help_names_every_suite() -> None:
    assert {*SUITES} == {*suites.SUITES}


@pytest.mark.slow
def test_methods_and_metrics_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_my_own.py").write_text(
        "def length(prediction):\n    return prediction.embeddings.norm(dim=-1)\n\n\n"
        "def longest(case):\n    return float(case.scores.argmax())\n\n\n"
        "longest.better = 'less'\n\n\ndef aimless(case):\n    return 1.0\n"
    )
    monkeypatch.chdir(tmp_path)
    two = "evaluate", "recall", "--limit", "2"
    done = run(*two, "-m", "of_my_own:length", "--metrics", "of_my_own:longest", "--out", "o")
    assert done.exit_code == 0, done.output
    assert "of_my_own:longest (less is better, n = 2)" in (tmp_path / "o" / "report.md").read_text()
    assert "of_my_own:longest (less is better, n = 2)" in done.stdout and "o/report.md" in done.stdout
    still = run("report", "o", "-q")
    assert "of_my_own:longest (less is better, n = 2)" in still.stdout and "o/report.md" not in still.stdout
    assert "of_my_own:longest" not in [*METRICS]  # a run with one's own adds nothing to what everybody is shown
    for words, message in (
        (["-m", "of_my_own:lenght"], "of_my_own:lenght cannot be loaded: AttributeError"),
        (["-m", "recency", "--metrics", "of_my_own:aimless"], "metric of_my_own:aimless: it declares no direction"),
    ):
        done = run(*two, *words, "--out", "p")
        assert done.exit_code == 2 and message in done.output
