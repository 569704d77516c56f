"""``causal``, as a user types it."""

import re
from pathlib import Path
from typing import Any

import pytest

from helpers.evaluating import demo, run
from heta_lens import causal, names_filter
from heta_lens.model import loading

TEXT = "Mia put the key in the drawer. Leo put the key in the box. Question: Where did Mia put the key? Answer: in the"
OTHER = TEXT.replace("Mia", "Tom", 1)


def done(*words: str) -> Any:
    result = run("causal", *words)
    assert result.exit_code == 0, result.output
    return result.stdout


def cached(text: str = TEXT) -> Any:
    ids = demo().to_tokens(text)
    return demo().run_with_cache(ids, names_filter=names_filter)[1], ids


def test_scores_are_validated_and_a_verdict_given(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    shown = done("validate", TEXT, "-m", "ixg", "--how", "input", "--html", str(page))
    assert re.search(r"^7 +' drawer' +\S+ +\S+ *$", shown, re.MULTILINE)
    verdict = r"patching agrees with the scores: rank correlation 0\.48 \[0\.12, 0\.73\] over 29 tokens"
    assert re.search(verdict, shown) and "A single prompt is weak evidence" in shown and page.exists()
    assert "weak evidence" not in done("validate", TEXT, "-m", "ixg", "-q")


def test_the_effects_of_patching_each_token() -> None:
    shown = done("patch", TEXT, "--target", " drawer", "--top", "1")
    assert re.search(r"^7 +' drawer' +9\.357 *$", shown, re.MULTILINE)
    assert "(effect: by how much its log_prob falls)" in shown
    assert "how much its logit falls" in done("patch", TEXT, "--scale", "logit", "--top", "1")
    number = "--activation", "blocks.0.hook_resid_post", "--index", "5", "--top", "1"
    assert "how much its value falls" in done("patch", TEXT, *number)
    assert "how much its prob falls" in done("patch", TEXT, "--target", "id:124", "--scale", "prob", "--top", "1")


def test_a_grid_is_that_of_the_library(tmp_path: Path) -> None:
    page, figure = tmp_path / "a.html", tmp_path / "a.svg"
    words = "--corrupted", OTHER, "--target", " drawer", "--top", "1"
    shown = done("patch", TEXT, *words, "--html", str(page), "--figure", str(figure))
    assert page.exists() and "<svg" in figure.read_text()
    assert "its log_prob: " in shown and " in the clean run, " in shown
    (clean, ids), (corrupted, other) = cached(), cached(OTHER)
    grid = causal.patch(clean, corrupted, " drawer", tokens=ids, corrupted_tokens=other)
    (best,) = grid.top(1)
    assert re.search(rf"^{best.layer} +{best.column} +{re.escape(repr(best.label))} ", shown, re.MULTILINE)


def test_the_components_that_carry_a_passage(tmp_path: Path) -> None:
    page, saved = tmp_path / "a.html", tmp_path / "a.safetensors"
    shown = done("components", TEXT, "--passage", "drawer", "--verify", "4", "--html", str(page), "--save", str(saved))
    cache, ids = cached()
    found = causal.components(cache, [7], tokens=ids, verify=4)
    assert repr(found).splitlines()[1] in shown and page.exists()
    assert repr(causal.Components.load(saved)) == repr(found)
    with_other = ("--corrupted", OTHER, "--knock-out", "--verify", "2", "-q")
    refused = run("causal", "components", TEXT, "--corrupted", OTHER, "--position", "4")
    assert refused.exit_code == 2 and "--position 4 has no effect with --corrupted" in refused.stderr
    same = run("causal", "components", TEXT, "--corrupted", TEXT)
    assert same.exit_code == 2 and "is the prompt itself: change a word" in same.stderr
    found = causal.components(cache, change=cached(OTHER)[1], tokens=ids, verify=2, direction="knock_out")
    assert repr(found) in done("components", TEXT, *with_other)
    assert "replaced by token 5" in done("components", TEXT, "--at", "7", "--change", "5", "--verify", "1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["components", TEXT], "nothing says what is changed: give one of --passage WORDS"),
        (["components", TEXT, "--passage", "box", "--at", "3"], "--passage and --at both say what is changed"),
        (["components", TEXT, "--corrupted", OTHER, "--change", "mean"], "--change mean has no effect with --corr"),
        (["validate", TEXT, "-m", "loo,lime"], "this command takes one method, and --method names 2"),
        (["patch", TEXT, "--what", "head_out"], "--what head_out needs --corrupted"),
        (["patch", TEXT, "--corrupted", OTHER, "--how", "input"], "--how input has no effect with --corrupted"),
        (["patch", TEXT, "--corrupted", OTHER, "--figure", "a.tex"], "--figure a.tex cannot be written"),
    ],
    ids=str,
)
def test_mistakes_are_refused_before_a_model_is_loaded(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    result = run("causal", *words)
    assert result.exit_code == 2 and message in result.stderr


def test_runs_that_cannot_be_compared_are_refused() -> None:
    same, shorter = (
        run("causal", "patch", TEXT, "--corrupted", TEXT),
        run("causal", "patch", TEXT, "--corrupted", "Mia"),
    )
    assert same.exit_code == 2 and "nothing was lost" in same.stderr and not same.stdout
    assert shorter.exit_code == 2 and "patch between prompts of the same length" in shorter.stderr


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["patch", TEXT, "--how", "edge"], "how='edge' is not one of 'edge_patch'"),
        (["patch", TEXT, "--layer", "2"], "only how='resid_patch' has a layer"),
    ],
    ids=str,
)
def test_the_library_refuses_what_does_not_go_together(words: list[str], message: str) -> None:
    result = run("causal", *words)
    assert result.exit_code == 2 and message in result.stderr
