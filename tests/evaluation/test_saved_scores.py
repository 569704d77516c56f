"""Scores of many prompts are written, read and loaded as attributions; damaged files are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import predict
from helpers.attributions import attribution, of_chat, uncertain
from heta_lens import METHODS, Attribution
from heta_lens.attribution import stored_fields
from heta_lens.evaluation.saved_scores import SCORES, PackedRow, SavedScores, ScoreRow, load_scores, row_of, score_lines

KINDS = {
    "plain": attribution,
    "uncertain": uncertain,
    "chat": of_chat,
    "contrast": lambda: attribution(target=(7, frozenset({3, 4})), target_text=(" down", " up or over")),
    "half precision": lambda: replace(attribution(), scores=attribution().scores.bfloat16()),
    "pairs": lambda: attribution(interactions=torch.rand(6, 6)),
    "left out": lambda: attribution().without([2]),
}


def read_back(row: ScoreRow) -> ScoreRow:
    """As a file has it."""
    return ScoreRow.of(json.loads(json.dumps(row.flat(), allow_nan=False)))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.nan_to_num(-7), other.nan_to_num(-7))
    if hasattr(one, "keys"):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other or (one != one and other != other)


def check_same(one: Attribution, other: Attribution) -> None:
    different = [name for name, value in stored_fields(one).items() if not same(value, stored_fields(other)[name])]
    assert different == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_attribution_comes_back_as_it_was(kind: str) -> None:
    made: Any = KINDS[kind]()
    check_same(made, read_back(row_of("story", "heta", made)).attribution())


@pytest.mark.sample(quick=4, test=26)
@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_methods_attribution_comes_back(method: str) -> None:
    model = zoo.bridge("gpt2")
    options: dict[str, Any] = {"entail": lambda *_: 1.0, "length": 5} if method == "sea_cot" else {}
    made = METHODS[method](**options)(predict(model, zoo.prompt(model, 6), 7))
    check_same(replace(made, options={}), replace(read_back(row_of("p", method, made)).attribution(), options={}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token": None}, "its columns is .*, and must be an object"),
        ({"score": [1.0]}, "its score has 1 values for 6 tokens"),
        ({"dtypes": {"score": "float8"}}, "its score has the dtype 'float8'"),
        ({"rest": {}}, r"\{\} is not a value and its tensors"),
        ({"text": "x"}, "its places in the text are in conflict"),
        ({"prompt": 3}, "its prompt is 3, and must be text"),
    ],
)
def test_what_is_no_row_is_refused(changes: dict[str, Any], message: str) -> None:
    row = {**row_of("story", "heta", attribution()).flat(), **changes}
    with pytest.raises((ValueError, TypeError), match=message):
        ScoreRow.of(row).attribution()


def saved() -> SavedScores:
    """Two prompts by two methods, whose rows have different columns."""
    made = {("a", "heta"): uncertain(), ("a", "lime"): attribution(signed=True), ("b", "heta"): of_chat()}
    return SavedScores(tuple(PackedRow.of(row_of(*key, one)) for key, one in made.items()))


def test_attributions_by_number_and_by_name() -> None:
    scores = saved()
    assert len(scores) == 3 and scores.names == (("a", "heta"), ("a", "lime"), ("b", "heta"))
    assert scores.prompts == ("a", "b") and scores.methods == ("heta", "lime")
    assert scores["a", "lime"].signed and not scores[0].signed
    assert [len(each) for each in scores] == [6, 6, 6]
    assert scores[1:].names == scores.names[1:]
    assert repr(scores) == "SavedScores(2 prompts, methods: heta, lime)"


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
        saved()[key]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_what_was_saved_is_loaded(suffix: str, tmp_path: Path) -> None:
    saved().save(tmp_path / f"all{suffix}")
    back = load_scores(tmp_path / f"all{suffix}")
    assert back.names == saved().names
    for one, other in zip(saved(), back, strict=True):
        assert torch.equal(one.scores, other.scores) and one.tokens == other.tokens
        assert one.parts.keys() == other.parts.keys() and (one.messages is None) == (other.messages is None)
        assert one.diagnostics.keys() == other.diagnostics.keys()


def test_the_later_of_two_counts(tmp_path: Path) -> None:
    for scale in (1.0, 2.0):
        row = row_of("a", "heta", attribution(scores=[scale] * 6))
        score_lines(tmp_path).append(row.flat())
    (scores,) = load_scores(tmp_path)
    assert scores.scores.tolist() == [2.0] * 6


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    saved().save(tmp_path / SCORES)
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
        saved().save(tmp_path / "a.xlsx")
