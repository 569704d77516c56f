"""Scores of many prompts come back from a run as they were, by number and by name, and are exported."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from helpers.attributions import attribution, of_chat, uncertain
from heta_lens import Attribution
from heta_lens.data.instance import Instance
from heta_lens.evaluation.records import Record
from heta_lens.evaluation.run_database import opened
from heta_lens.evaluation.saved_scores import SavedScores, load_scores, row_of

KINDS = {
    "plain": attribution,
    "uncertain": uncertain,
    "chat": of_chat,
    "contrast": lambda: attribution(target=(7, frozenset({3, 4})), target_text=(" down", " up or over")),
    "half precision": lambda: replace(attribution(), scores=attribution().scores.bfloat16()),
    "left out": lambda: attribution().without([2]),
}


def saved(folder: Path, made: dict[tuple[str, str], Attribution]) -> SavedScores:
    instances = [Instance(prompt, "x", None) for prompt in dict.fromkeys(prompt for prompt, _ in made)]
    request = {"methods": {method: {} for _, method in made}}
    with opened(folder, request, [*enumerate(instances)], ()) as database:
        claims = {claim.prompt: claim for claim in iter(lambda: database.claim("elsewhere/1/0", ()), None)}
        for key, one in made.items():
            assert database.commit(claims[key[0]], Record(*key), one)
    return load_scores(folder)


@pytest.fixture
def three(tmp_path: Path) -> SavedScores:
    """Two prompts by two methods, with different columns."""
    small = replace(attribution(signed=True), scores=attribution(signed=True).scores / 3e12)
    return saved(tmp_path, {("a", "heta"): uncertain(), ("a", "lime"): small, ("b", "heta"): of_chat()})


def same(one: Any, other: Any) -> bool:
    """Whether values are equal, tensors in dtype too, where NaN equals NaN."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.nan_to_num(-7), other.nan_to_num(-7))
    if hasattr(one, "keys"):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other or (one != one and other != other)


def check_same(one: Attribution, other: Attribution) -> None:
    different = [name for name, value in one.stored.items() if not same(value, other.stored[name])]
    assert different == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_attribution_comes_back_as_it_was(kind: str, tmp_path: Path) -> None:
    made: Any = KINDS[kind]()
    (back,) = saved(tmp_path, {("story", "heta"): made})
    check_same(made, back)


def test_attributions_by_number_and_by_name(three: SavedScores) -> None:
    assert len(three) == 3 and three.names == (("a", "heta"), ("a", "lime"), ("b", "heta"))
    assert three.prompts == ("a", "b") and three.methods == ("heta", "lime")
    assert three["a", "lime"].signed and not three[0].signed
    assert [len(each) for each in three] == [6, 6, 6]
    assert three[1:].names == three.names[1:] == three.of(method="lime").names + three.of(prompt="b").names
    assert repr(three) == "SavedScores(2 prompts, methods: heta, lime)"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (("a", "lim"), "no scores of 'lim' on 'a' .*did you mean 'lime'.*; methods: heta, lime"),
        (("b", "lime"), "no scores of 'lime' on 'b'"),
        (("story-1", "lime"), "no scores of 'lime' on 'story-1'"),
    ],
)
def test_what_is_not_there_is_refused(key: tuple[str, str], message: str, three: SavedScores) -> None:
    with pytest.raises(KeyError, match=message):
        _ = three[key]


READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": pd.read_csv,
    ".parquet": pd.read_parquet,
    ".jsonl": lambda path: pd.DataFrame(map(json.loads, path.read_text().splitlines())),
}


@pytest.mark.parametrize("suffix", sorted(READERS))
def test_a_row_per_token_is_exported(suffix: str, three: SavedScores, tmp_path: Path) -> None:
    three.save(tmp_path / f"all{suffix}")
    table = READERS[suffix](tmp_path / f"all{suffix}")
    assert [*table.columns[:4]] == ["prompt", "method", "position", "token"] and len(table) == 18
    assert table["score"].tolist() == [score for each in three for score in each.scores.tolist()]


def test_what_has_no_scores_is_refused(three: SavedScores, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no evaluation"):
        load_scores(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"'\.xlsx' is not one of '\.csv', '\.jsonl', '\.parquet'"):
        three.save(tmp_path / "a.xlsx")


@pytest.mark.parametrize("kind", KINDS)
def test_an_attribution_is_json(kind: str) -> None:
    made: Any = KINDS[kind]()
    row = json.loads(json.dumps(row_of(made), allow_nan=False))
    assert row["score"] == pytest.approx(made.scores.tolist(), rel=1e-2) and row["token"] == list(made.tokens)
    assert row["parts"] == list(made.parts) and row["method"] == made.method
