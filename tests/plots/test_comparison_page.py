"""Several attributions of one text as a page."""

from pathlib import Path

import pandas as pd
import pytest

import heta_lens
from helpers.pages import data, values, written
from heta_lens.plots.comparison_page import frame_of, names_of

TOKENS = ["a", " b", " c"]


def test_every_attribution_is_there_with_its_scores() -> None:
    view = heta_lens.compare([written(TOKENS, [1.0, 2.0, 3.0]), written(TOKENS, [3.0, 2.0, 1.0], method="lime")])
    assert values(view) == {"heta": [1.0, 2.0, 3.0], "lime": [3.0, 2.0, 1.0]} and data(view)["compare"]
    assert view.title == "heta, lime: why ' x'?"


def test_attributions_of_one_method_are_named_by_what_differs() -> None:
    made = [written(TOKENS, options={"beta": beta, "gamma": 1}) for beta in (0.0, 1.0)]
    assert names_of([*made, written(TOKENS, method="lime")]) == ["heta beta=0.0", "heta beta=1.0", "lime"]
    assert names_of([written(TOKENS), written(TOKENS)]) == ["heta (1)", "heta (2)"]


def test_its_numbers_can_be_saved(tmp_path: Path) -> None:
    made = [written(TOKENS, [1.0, 2.0, 3.0]), written(TOKENS, [3.0, 1.0, 2.0], method="lime")]
    read = pd.read_csv(heta_lens.compare(made).save(tmp_path / "x.csv"))
    pd.testing.assert_frame_equal(read, frame_of(made).astype({"token": read.token.dtype}), check_dtype=False)
    assert read["rank by heta"].tolist() == [3, 2, 1] and read["rank by lime"].tolist() == [1, 3, 2]


@pytest.mark.parametrize(
    ("others", "refusal"),
    [
        ([], "there are 1 attributions to compare: give two or more"),
        ([written([*TOKENS, " d"])], "it has 4 tokens instead of 3"),
        ([written(["a", " b", " d"], ids=written(TOKENS).ids + 1)], "at position 2 it has ' d' instead of ' c'"),
        ([written(TOKENS).without([0])], "it has position 1 where the first has 0"),
    ],
)
def test_other_texts_are_refused_by_the_first_difference(others: list[heta_lens.Attribution], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        heta_lens.compare([written(TOKENS), *others])
