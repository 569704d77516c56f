"""Scores of many prompts are read and written in every format, and damaged files are refused."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from helpers.attributions import TOKENS, attribution, of_chat, uncertain
from heta_lens.evaluation.saved_scores import SCORES, KeptScores, Packed, load_scores, row_of, score_lines


def kept() -> KeptScores:
    """Two prompts by two methods, whose rows have different columns."""
    made = {("a", "heta"): uncertain(), ("a", "lime"): attribution(signed=True), ("b", "heta"): of_chat()}
    return KeptScores(tuple(Packed.of(row_of(*key, one)) for key, one in made.items()))


def test_attributions_by_number_and_by_name() -> None:
    scores = kept()
    assert len(scores) == 3 and scores.names == (("a", "heta"), ("a", "lime"), ("b", "heta"))
    assert scores.prompts == ("a", "b") and scores.methods == ("heta", "lime")
    assert scores["a", "lime"].signed and not scores[0].signed
    assert [len(each) for each in scores] == [6, 6, 6]
    assert scores[1:].names == scores.names[1:]
    assert repr(scores) == "KeptScores(2 prompts, methods: heta, lime)"


def test_some_of_them() -> None:
    assert kept().of(method="heta").prompts == ("a", "b")
    assert kept().of(prompt="a", method="lime").names == (("a", "lime"),)
    with pytest.raises(ValueError, match=r"method='heat' is not one of 'heta', 'lime' \(did you mean 'heta'\?\)"):
        kept().of(method="heat")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (("a", "lim"), "no scores of 'lim' on 'a' .*did you mean 'lime'.*; methods: heta, lime"),
        (("b", "lime"), "no scores of 'lime' on 'b'"),
        (("story-1", "lime"), "no scores of 'lime' on 'story-1'"),
    ],
)
def test_what_is_not_there_is_refused(key: tuple[str, str], message: str) -> None:
    with pytest.raises(KeyError, match=message):
        kept()[key]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_what_was_saved_is_loaded(suffix: str, tmp_path: Path) -> None:
    kept().save(tmp_path / f"all{suffix}")
    back = load_scores(tmp_path / f"all{suffix}")
    assert back.names == kept().names
    for one, other in zip(kept(), back, strict=True):
        assert torch.equal(one.scores, other.scores) and one.tokens == other.tokens
        assert one.parts.keys() == other.parts.keys() and (one.messages is None) == (other.messages is None)
        assert one.diagnostics.keys() == other.diagnostics.keys()


@pytest.mark.parametrize(
    "read", [pd.read_parquet, lambda path: pd.read_json(path, lines=True)], ids=["parquet", "json"]
)
def test_pandas_reads_it_in_a_line(read: Callable[[Path], pd.DataFrame], tmp_path: Path) -> None:
    path = tmp_path / ("all.parquet" if read is pd.read_parquet else "all.jsonl")
    kept().save(path)
    frame = read(path).explode(["position", "token", "score"])
    assert len(frame) == 18 and frame["token"].tolist()[:6] == [*TOKENS]
    assert frame[frame["method"] == "lime"]["score"].tolist() == attribution().scores.tolist()


def test_a_frame_has_a_row_per_token(tmp_path: Path) -> None:
    frame = kept().to_frame()
    assert len(frame) == 18 and frame["prompt"].tolist() == ["a"] * 12 + ["b"] * 6
    assert frame["role"].dropna().tolist() == ["template", "user", "user", "template", "assistant", "template"]
    kept().save(tmp_path / "all.csv")
    assert pd.read_csv(tmp_path / "all.csv")["token"].tolist() == frame["token"].tolist()


def test_the_later_of_two_counts(tmp_path: Path) -> None:
    for scale in (1.0, 2.0):
        row = row_of("a", "heta", attribution(scores=[scale] * 6))
        score_lines(tmp_path).append(row.flat())
    (scores,) = load_scores(tmp_path)
    assert scores.scores.tolist() == [2.0] * 6


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    kept().save(tmp_path / SCORES)
    with (tmp_path / SCORES).open("a") as file:
        file.write('{"prompt": "c"}\n')
    with pytest.warns(UserWarning, match=r"1 of 4 lines of .* are not scores of a prompt \(line 4: it has no "):
        assert len(load_scores(tmp_path)) == 3


def test_what_has_no_scores_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no scores: heta-lens attribute-dataset … --out .* makes them"):
        load_scores(tmp_path)
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match=r"a\.txt is no \.jsonl or \.parquet file of scores"):
        load_scores(tmp_path / "a.txt")
    with pytest.raises(ValueError, match=r"'\.xlsx' is not one of '\.jsonl', '\.parquet', '\.csv'"):
        kept().save(tmp_path / "a.xlsx")


def test_what_is_no_parquet_of_scores_is_refused(tmp_path: Path) -> None:
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"x\.parquet holds no scores: it has no "):
        load_scores(tmp_path / "x.parquet")
    (tmp_path / "y.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match=r"y\.parquet is not a readable Parquet file"):
        load_scores(tmp_path / "y.parquet")
