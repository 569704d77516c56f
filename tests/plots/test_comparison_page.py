"""Several attributions of one text as a page."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import heta_lens
from helpers.browser import data, values, written
from heta_lens.diagnostics import Diagnostics
from heta_lens.plots.comparison import agreement, frame_of

TOKENS = ["a", " b", " c"]


def test_every_attribution_is_there_with_its_scores() -> None:
    view = heta_lens.compare([written(TOKENS, [1.0, 2.0, 3.0]), written(TOKENS, [3.0, 2.0, 1.0], method="lime")])
    assert values(view) == {"heta": [1.0, 2.0, 3.0], "lime": [3.0, 2.0, 1.0]} and data(view)["compare"]
    assert view.title == "heta, lime: why ' x'?"


def test_spans_of_a_search_are_not_those_of_other_methods() -> None:
    searched, alone = written(TOKENS, [1.0, 1.0, 3.0]), written(TOKENS, [0.0, 2.0, 3.0], method="lime")
    searched = replace(searched, diagnostics=Diagnostics.of({"masked_together": ((0, 2, 0.1),)}))
    both = heta_lens.compare({"one": searched, "other": searched})
    assert data(both)["together"] == [[0, 2]] and data(both)["measured"] == [2]
    for pair in ((searched, alone), (alone, searched)):
        found = data(heta_lens.compare([*pair]))
        assert found["together"] == [] and found["measured"] is None


def test_latex_has_every_attribution_with_its_own_scale(tmp_path: Path) -> None:
    made = {"before": written(TOKENS, [0.0, 2.0, 3.0]), "after": written(TOKENS, [0.0, 20.0, 30.0])}
    tex = heta_lens.compare(made).save(tmp_path / "x.tex").read_text(encoding="utf-8")
    before, after = tex.split(r"\par\medskip")
    for part, name, end in ((before, "before", 3), (after, "after", 30)):
        assert part.count(r"\begingroup") == part.count(r"\endgroup") == 1 == part.count(rf"\textbf{{{name}:")
        assert rf"{end}, which is 60.0\%" in part


def test_ranks_are_by_size_where_not_all_have_signs() -> None:
    sizes, signed = written(TOKENS, [1.0, 2.0, 3.0]), written(TOKENS, [1.0, -9.0, 3.0], signed=True)
    assert frame_of({"a": sizes, "b": signed})["rank by b"].tolist() == [3, 1, 2]
    assert frame_of({"a": signed, "b": signed})["rank by b"].tolist() == [2, 3, 1]
    mixed, alike = heta_lens.compare([sizes, signed]), heta_lens.compare([signed, signed])
    assert (data(mixed)["by_size"], data(alike)["by_size"]) == (True, False)
    assert "ranks are by size" in mixed.fragment and "ranks are by size" not in alike.fragment


def test_agreement_is_the_mean_rank_correlation_of_all_pairs_without_special_tokens() -> None:
    special = torch.tensor([True, False, False, False])
    one, same, reverse = (
        written([*TOKENS, " d"], [number, *scores], special=special)
        for number, scores in ((9.0, [1.0, 2.0, 3.0]), (0.0, [10.0, 20.0, 31.0]), (9.0, [3.0, 2.0, 1.0]))
    )
    found = agreement({"a": one, "b": same, "c": reverse})
    assert found["value"] == pytest.approx(-1 / 3)
    assert found["pairs"] == [
        ("a", "b", pytest.approx(1)),
        ("a", "c", pytest.approx(-1)),
        ("b", "c", pytest.approx(-1)),
    ]
    constant = written([*TOKENS, " d"], [1.0] * 4, special=special)
    assert agreement({"a": one, "b": constant})["value"] is None, "it has no order"
    assert data(heta_lens.compare({"a": one, "b": same}))["agreement"]["value"] == pytest.approx(1)


def test_json_has_scores_and_ranks_by_position(tmp_path: Path) -> None:
    made = [written(TOKENS, [1.0, 2.0, 3.0]), written(TOKENS, [3.0, 1.0, 2.0], method="lime")]
    read = json.loads(heta_lens.compare(made).save(tmp_path / "x.json").read_text(encoding="utf-8"))
    assert [own["name"] for own in read["compared"]] == ["heta", "lime"]
    assert [row["token"] for row in read["rows"]] == TOKENS and read["rows"][0]["special"] is False
    assert [(row["lime"], row["rank by lime"]) for row in read["rows"]] == [(3.0, 1), (1.0, 3), (2.0, 2)]


def test_special_tokens_are_left_out_of_all_that_are_compared() -> None:
    special = torch.tensor([True, False, False])
    one, other = (written(TOKENS, scores, special=special) for scores in ([9.0, 2.0, 3.0], [5.0, 1.0, 2.0]))
    view = heta_lens.compare({"before": one, "after": other})
    assert data(view)["hidden"] == [0] and data(view)["special"] is False and data(view)["last"] == 2
    assert "(first token, special) holds 64% of the score" in view.fragment
    assert data(heta_lens.compare([one, other], special=True))["special"] is True


@pytest.mark.parametrize(
    ("others", "refusal"),
    [
        ([], "takes two or more attributions of one text: got 1"),
        ([written([*TOKENS, " d"])], "3 tokens in the first and 4 in the second"),
        ([written(["a", " b", " d"])], "at position 2, ' c' in the first and ' d' in the second$"),
    ],
)
def test_other_texts_are_refused_by_the_first_difference(others: list[heta_lens.Attribution], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        heta_lens.compare([written(TOKENS), *others])
