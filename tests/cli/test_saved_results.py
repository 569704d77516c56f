"""Results that were saved are read again, whatever kind they are of."""

from pathlib import Path

import pytest
import torch

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, explain
from helpers.evaluating import run
from heta_lens.cli.views import load_result, saved_results

MODEL = zoo.bridge("gpt2")
IDS = zoo.prompt(MODEL, 6)


def test_a_token_and_a_span(tmp_path: Path) -> None:
    token = explain(MODEL, IDS, 7, method="recency")
    span = heta_lens.attribute_span(cache_of(MODEL, IDS), 4, tokens=IDS, method="recency")
    token.save(tmp_path / "token")
    span.save(tmp_path / "span")
    found, spanned = load_result(tmp_path / "token"), load_result(tmp_path / "span")
    assert isinstance(found, heta_lens.Attribution) and torch.equal(found.scores, token.scores)
    assert isinstance(spanned, heta_lens.SpanAttribution) and torch.equal(spanned.total, span.total)


def test_what_is_neither_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    (tmp_path / "a.txt").write_text("text")
    save_file({"a": torch.ones(1)}, tmp_path / "b")
    explain(MODEL, IDS, 7, method="recency").save(tmp_path / "c")
    (tmp_path / "c").write_bytes((tmp_path / "c").read_bytes()[:-8])
    for name, message in (
        ("a.txt", "a.txt is not a heta_lens.attribution file: it is not a safetensors file"),
        ("b", "b is a safetensors file without an attribution"),
        ("c", "c is not a heta_lens.attribution file: its tensors do not fill it"),
        ("d", "d: there is no such file"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            load_result(tmp_path / name)


@pytest.mark.slow
def test_scores_of_many_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        run("attribute-dataset", "recall", "--limit", "2", "-m", "recency,random", "--out", str(tmp_path)).exit_code
        == 0
    )
    every = saved_results(tmp_path)
    assert len(every) == 4 and len({each.name for each in every}) == 4
    prompt = heta_lens.load_scores(tmp_path).prompts[1]
    (only,) = saved_results(tmp_path / "scores.jsonl", prompt, "random")
    assert only.name == f"{tmp_path / 'scores.jsonl'} {prompt} random" and vars(only.result)["method"] == "random"
    with pytest.raises(ValueError, match="prompt='nowhere' is not one of"):
        saved_results(tmp_path, "nowhere")
    monkeypatch.setattr("heta_lens.cli.views.MOST", 3)
    with pytest.raises(ValueError, match=r"holds 4 attributions, of the prompts .*: choose with --prompt and --method"):
        saved_results(tmp_path)


def test_one_attribution_has_no_prompts_to_choose_among(tmp_path: Path) -> None:
    explain(MODEL, IDS, 7, method="recency").save(tmp_path / "token")
    with pytest.raises(ValueError, match="--prompt a chooses among the scores of many prompts"):
        saved_results(tmp_path / "token", "a")
