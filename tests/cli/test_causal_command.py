"""``heta-lens causal``, as a user types it."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from helpers.evaluating import demo
from heta_lens import causal, names_filter
from heta_lens.cli import app
from heta_lens.model import loading

TEXT = "Mia put the key in the drawer. Leo put the key in the box. Question: Where did Mia put the key? Answer: in the"
OTHER = TEXT.replace("Mia", "Tom", 1)


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["causal", *words], env={"COLUMNS": "100", "NO_COLOR": "1"})


def cached(text: str = TEXT) -> Any:
    ids = demo().to_tokens(text)
    return demo().run_with_cache(ids, names_filter=names_filter)[1], ids


def test_scores_are_validated_and_a_verdict_given(tmp_path: Path) -> None:
    done = run("validate", TEXT, "-m", "ixg", "--how", "input", "--mask", "mean", "--html", str(tmp_path / "a.html"))
    assert done.exit_code == 0, done.output
    assert re.search(r"^7 +' drawer' +\S+ +\S+ *$", done.stdout, re.MULTILINE)
    said = r"patching agrees with the scores: rank correlation 0\.51 \[0\.15, 0\.75\] over 29 tokens"
    assert re.search(said, done.stdout)
    assert "A single prompt is weak evidence" in done.stdout and (tmp_path / "a.html").exists()
    assert "weak evidence" not in run("validate", TEXT, "-m", "ixg", "-q").stdout


def test_another_prompt_may_be_what_is_patched_in() -> None:
    done = run("validate", TEXT, "-m", "loo", "--reference", OTHER, "--special")
    assert done.exit_code == 0 and "over 30 tokens" in done.stdout


def test_the_effects_of_patching_each_token() -> None:
    done = run("patch", TEXT, "--target", " drawer", "--top", "1")
    assert done.exit_code == 0 and re.search(r"^7 +' drawer' +9\.357 *$", done.stdout, re.MULTILINE)
    assert "(effect: by how much its log-probability falls)" in done.stdout
    assert "how much its logit falls" in run("patch", TEXT, "--scale", "logit", "--top", "1").stdout


def test_a_grid_is_that_of_the_library(tmp_path: Path) -> None:
    page, figure = tmp_path / "a.html", tmp_path / "a.svg"
    words = "--corrupted", OTHER, "--target", " drawer", "--layers", "0:2", "--top", "1"
    done = run("patch", TEXT, *words, "--html", str(page), "--figure", str(figure))
    assert done.exit_code == 0 and page.exists() and "<svg" in figure.read_text()
    assert "its log-probability: " in done.stdout and " in the clean run, " in done.stdout
    (clean, ids), (corrupted, other) = cached(), cached(OTHER)
    grid = causal.patch(clean, corrupted, " drawer", tokens=ids, corrupted_tokens=other, layers=[0, 1])
    (best,) = grid.top(1)
    assert re.search(rf"^{best.layer} +{best.column} +{re.escape(repr(best.label))} ", done.stdout, re.MULTILINE)


def test_heads_are_named_by_layer_and_number(tmp_path: Path) -> None:
    done = run("heads", TEXT, "--top", "2", "--html", str(tmp_path / "a.html"))
    cache, ids = cached()
    best = causal.gate_heads(cache, tokens=ids).top(2)
    assert re.findall(r"^L(\d+)H(\d+) ", done.stdout, re.MULTILINE) == [(str(h.layer), str(h.head)) for h in best]
    assert (tmp_path / "a.html").exists()
    assert "' key'" in run("heads", TEXT, "--source", "4", "--top", "1").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["validate", TEXT, "-m", "loo,lime"], "one method is validated at a time, and --method names 2"),
        (["validate", TEXT, "--mask", "mean", "--reference", OTHER], "--mask and --reference both say"),
        (["validate", TEXT, "--how", "edge"], "--how='edge' is not one of"),
        (["patch", TEXT, "--what", "head_out"], "--what head_out needs --corrupted"),
        (["patch", TEXT, "--figure", "a.svg"], "--figure a.svg needs --corrupted"),
        (["patch", TEXT, "--corrupted", OTHER, "--mask", "mean"], "--mask mean has no effect with --corrupted"),
        (["patch", TEXT, "--corrupted", OTHER, "--position", "3"], "--position 3 has no effect with --corrupted"),
        (["patch", TEXT, "--corrupted", OTHER, "--figure", "a.tex"], "--figure a.tex cannot be written"),
        (["heads", TEXT, "--flow", "x"], "--flow='x' is not one of"),
        (["heads", ""], "the text is empty"),
        (["heads", TEXT, "--html", "a.png"], "--html a.png is a page"),
        (["validate", TEXT, "--html", "a.png"], "--html a.png is a page"),
    ],
    ids=str,
)
def test_mistakes_are_refused_before_a_model_is_loaded(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    done = run(*words)
    assert done.exit_code == 2 and message in done.stderr


def test_nothing_is_restored_where_nothing_was_lost() -> None:
    done = run("patch", TEXT, "--corrupted", TEXT)
    assert done.exit_code == 2 and "nothing was lost: the target is as likely" in done.stderr and not done.stdout


def test_prompts_of_different_lengths_are_refused() -> None:
    done = run("patch", TEXT, "--corrupted", "Mia put the key in the")
    assert done.exit_code == 2 and "patch between prompts of the same length" in done.stderr
