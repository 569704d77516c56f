"""Several results of one text side by side."""

from dataclasses import replace

import pytest
import torch
from scipy.stats import spearmanr

from helpers import zoo
from helpers.asking import explain
from heta_lens import Attribution
from heta_lens.cli.views import comparison_document, correlations, highest_table

MODEL = zoo.bridge("gpt2")


def of(*scores: float, n: int = 4) -> Attribution:
    explained = explain(MODEL, zoo.prompt(MODEL, n), 7, method="recency")
    return replace(explained, scores=torch.tensor(scores)) if scores else explained


def test_a_row_is_a_token_among_the_highest_of_any() -> None:
    table = highest_table({"a": of(4.0, 3.0, 2.0, 1.0), "b": of(1.0, 2.0, 3.0, 4.0)}, top=1, special=True)
    position, token, first, second = zip(*table.rows, strict=True)
    assert [*map(str, position)] == ["0", "3"] and len(token) == 2
    assert [*map(str, first)] == ["4 (1)", "1 (4)"] and [*map(str, second)] == ["1 (4)", "4 (1)"]


def test_special_tokens_have_no_row_and_no_rank_whichever_result_knows_of_them() -> None:
    one, other = of(4.0, 3.0, 2.0, 1.0), of(1.0, 2.0, 3.0, 4.0)
    assert one.special.tolist() == [True, False, False, False]
    rows = highest_table({"a": one, "b": other}, top=1).rows
    assert [[str(cell) for cell in (row[0], *row[2:])] for row in rows] == [
        ["1", "3 (1)", "2 (3)"],
        ["3", "1 (3)", "4 (1)"],
    ]
    unaware = replace(other, special=torch.zeros(4, dtype=torch.bool))
    assert [str(row[0]) for row in highest_table({"a": one, "b": unaware}, top=9).rows] == ["1", "2", "3"]


def test_sizes_are_compared_where_only_some_scores_have_a_sign() -> None:
    sizes, both = of(4.0, 3.0, 2.0, 0.0), replace(of(4.0, -3.0, 2.0, 0.0), signed=True)
    assert correlations({"a": sizes, "b": both})["a", "b"] == pytest.approx(1.0)
    assert correlations({"a": replace(sizes, signed=True), "b": both})["a", "b"] < 0.5


def test_what_is_large_against_the_target_is_listed_where_ranks_are_by_size() -> None:
    sizes, both = of(4.0, 3.0, 2.0, 0.0), replace(of(1.0, 0.5, 2.0, -9.0), signed=True)
    rows = highest_table({"a": sizes, "b": both}, top=1, special=True).rows
    assert [[str(cell) for cell in (row[0], *row[2:])] for row in rows] == [
        ["0", "4 (1)", "1 (3)"],
        ["3", "0 (4)", "-9 (1)"],
    ]
    signed = highest_table({"a": replace(sizes, signed=True), "b": both}, top=1, special=True).rows
    assert [str(row[0]) for row in signed] == ["0", "2"], "by score, where all have signs"


def test_correlations_are_spearmans() -> None:
    results = {"a": of(4.0, 3.0, 2.0, 1.0), "b": of(1.0, 4.0, 3.0, 2.0), "c": of(1.0, 1.0, 1.0, 1.0)}
    found = correlations(results)
    assert found["a", "b"] == pytest.approx(float(spearmanr([4, 3, 2, 1], [1, 4, 3, 2])[0]))
    assert found["a", "c"] != found["a", "c"]
    assert [(row["first"], row["second"]) for row in comparison_document(results)] == [
        ("a", "b"),
        ("a", "c"),
        ("b", "c"),
    ]
