"""Output of subcommands: tables, files, results, saved results, comparisons and failures."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, explain
from helpers.evaluating import run
from heta_lens import Attribution
from heta_lens.cli.views import (
    Files,
    document_of,
    groups_of,
    highest_rows,
    load_result,
    read_saved,
)

MODEL = zoo.bridge("gpt2")
IDS = zoo.prompt(MODEL, 6)


@cache
def token() -> Attribution:
    return explain(MODEL, IDS, 7, method="input_x_gradient")


@cache
def span() -> heta_lens.SpanAttribution:
    return heta_lens.attribute_span(cache_of(MODEL, IDS), 4, tokens=IDS, method="input_x_gradient")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (Files(figure=Path("a")), "--figure a cannot be written: .* ends in one of .html, .htm, .png"),
        (Files(html=Path("a.png")), "--html a.png cannot be written: .* ends in one of .html, .htm"),
        (Files(save=Path("a.png")), "a.png would hold tensors: .* by --figure"),
        (Files(save=Path("/tmp")), "/tmp cannot be written"),
        (Files(html=Path("/nowhere/a.html")), "/nowhere/a.html cannot be written"),
    ],
    ids=str,
)
def test_files_that_cannot_be_written_are_refused(files: Files, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        files.check()


# ------------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("explained", [token, span])
@pytest.mark.parametrize("by", ["word", "sentence"])
def test_groups_have_all_of_the_score_the_highest_first(explained: Any, by: str) -> None:
    scores = [group.score for group in groups_of(explained(), by)]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(float(explained().summed.scores.sum()))


def test_a_document_has_rows_and_of_a_span_their_total() -> None:
    one, many = document_of(token(), Files()), document_of(span(), Files(), "word")
    assert one["attribution"]["score"] == pytest.approx(token().scores.tolist()) and "groups" not in one
    assert [len(row["token"]) for row in many["steps"]] == [4, 5]
    assert many["total"]["score"] == span().total.tolist() and len(many["total"]["token"]) == 4
    assert many["total"]["special"] == [True, False, False, False]
    assert {*many["groups"][0]} == {"text", "score", "positions"}


# ------------------------------------------------------------------------------------------------------ saved results


def test_files_without_an_attribution_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    (tmp_path / "a.txt").write_text("text")
    save_file({"a": torch.ones(1)}, tmp_path / "b")
    token().save(tmp_path / "c")
    (tmp_path / "c").write_bytes((tmp_path / "c").read_bytes()[:-8])
    for name, message in (
        ("a.txt", "a.txt is not a heta_lens.attribution file: it is not a safetensors file"),
        ("b", "b is a safetensors file without an attribution"),
        ("c", "c is a damaged heta_lens.attribution file"),
        ("d", "there is no file .*d"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            load_result(tmp_path / name)


@pytest.mark.slow
def test_scores_of_many_prompts_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("attribute-dataset", "recall", "--limit", "2", "-m", "recency,random", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    every = read_saved([tmp_path])
    assert len(every) == 4 and len({each.name for each in every}) == 4
    prompt, file = heta_lens.load_scores(tmp_path).prompts[1], tmp_path / "run.sqlite"
    (only,) = read_saved([file], prompt, "random")
    assert only.name == f"{file} {prompt} random" and vars(only.result)["method"] == "random"
    with pytest.raises(ValueError, match="prompt='nowhere' is not one of"):
        read_saved([tmp_path], "nowhere")
    monkeypatch.setattr("heta_lens.cli.views.MOST", 3)
    with pytest.raises(ValueError, match=r"holds 4 attributions, of the prompts .*: choose with --prompt and --method"):
        read_saved([tmp_path])


# --------------------------------------------------------------------------------------------------------- comparisons


def of(*scores: float, signed: bool = False) -> Attribution:
    explained = explain(MODEL, zoo.prompt(MODEL, 4), 7, method="recency")
    return replace(explained, scores=torch.tensor(scores), signed=signed)


def compared(*results: Attribution, top: int = 9, special: bool = False) -> list[list[str]]:
    """Position, and score and rank of each result."""
    rows = highest_rows(dict(zip("ab", results, strict=True)), top, special=special)
    return [[row[0], *row[2:]] for row in rows]


def test_a_row_is_a_token_among_the_highest_of_a_result() -> None:
    rows = compared(of(4.0, 3.0, 2.0, 1.0), of(1.0, 2.0, 3.0, 4.0), top=1, special=True)
    assert rows == [["0", "4 (1)", "1 (4)"], ["3", "1 (4)", "4 (1)"]]


def test_special_tokens_have_no_row_and_no_rank() -> None:
    one, other = of(4.0, 3.0, 2.0, 1.0), of(1.0, 2.0, 3.0, 4.0)
    assert one.special.tolist() == [True, False, False, False]
    assert compared(one, other, top=1) == [["1", "3 (1)", "2 (3)"], ["3", "1 (3)", "4 (1)"]]
    unaware = replace(other, special=torch.zeros(4, dtype=torch.bool))
    assert [row[0] for row in compared(one, unaware)] == ["1", "2", "3"]
