"""A row has all of an attribution, and columns that other tools can read."""

import json
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch

from helpers import zoo
from helpers.asking import predict
from helpers.attributions import SCORES, attribution, of_chat, uncertain
from heta_lens import METHODS, Attribution
from heta_lens.attribution import stored_fields
from heta_lens.evaluation.saved_scores import ScoreRow, row_of

KINDS = {
    "plain": attribution,
    "uncertain": uncertain,
    "chat": of_chat,
    "contrast": lambda: attribution(target=(7, frozenset({3, 4})), target_text=(" down", " up or over")),
    "half precision": lambda: replace(attribution(), scores=torch.tensor(SCORES, dtype=torch.bfloat16)),
    "pairs": lambda: attribution(interactions=torch.rand(6, 6)),
    "left out": lambda: attribution().without([2]),
}


def again(row: ScoreRow) -> ScoreRow:
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
    check_same(made, again(row_of("story", "heta", made)).attribution())


@pytest.mark.sample(quick=4, test=26)
@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_methods_attribution_comes_back(method: str) -> None:
    model = zoo.bridge("gpt2")
    options: dict[str, Any] = {"entail": lambda *_: 1.0, "length": 5} if method == "sea_cot" else {}
    made = METHODS[method](**options)(predict(model, zoo.prompt(model, 6), 7))
    check_same(replace(made, options={}), replace(again(row_of("p", method, made)).attribution(), options={}))


def test_the_row_says_what_it_took() -> None:
    made = attribution(diagnostics=uncertain().diagnostics.of({"seconds": 1.5, "forwards": 3, "hvps": 2}))
    row = row_of("story", "heta probes=2", made)
    assert (row.key, row.seconds, row.forwards, row.hvps) == (("story", "heta probes=2"), 1.5, 3, 2)


def test_columns_are_those_of_a_frame() -> None:
    made = uncertain()
    frame = pd.DataFrame(dict(row_of("story", "heta", made).columns))
    pd.testing.assert_frame_equal(frame, made.to_frame())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token": None}, "its columns is .*, and must be an object"),
        ({"score": [1.0]}, "its score has 1 values for 6 tokens"),
        ({"score": [None] * 6}, "its score holds more than numbers"),
        ({"parts": ["gate"]}, "it has no column gate"),
        ({"dtypes": {"score": "float8"}}, "its score has the dtype 'float8', which is none of torch's"),
        ({"rest": {}}, r"\{\} is not a value and its tensors"),
        ({"text": "x"}, r"its offsets\[0\] are \(0, 5\), which is not a place in its text of 1 characters"),
        ({"seconds": "long"}, "its seconds is 'long', and must be a number"),
        ({"id": [-1] * 6}, "its ids are below 0"),
        ({"prompt": 3}, "its prompt is 3, and must be text"),
    ],
)
def test_what_is_no_row_is_refused(changes: dict[str, Any], message: str) -> None:
    row = {**row_of("story", "heta", attribution()).flat(), **changes}
    with pytest.raises((ValueError, TypeError), match=message):
        ScoreRow.of(row).attribution()


def test_a_missing_column_is_named() -> None:
    row = row_of("story", "heta", attribution()).flat()
    del row["token"], row["stop"]
    with pytest.raises(ValueError, match="it has no column token, stop"):
        ScoreRow.of(row)
