"""How HETA's score is made of its parts, in words and numbers."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import explain
from helpers.attributions import attribution, double
from heta_lens.attribution import Attribution
from heta_lens.plots.scales import score_formula

NUMBER = r"\d+\.?\d*(?:e[+-]?\d+)?"


def value(formula: str, parts: Mapping[str, Tensor]) -> Tensor:
    """What the formula says, worked out from its text alone."""
    right = formula.removeprefix("score = ").partition(", where")[0].replace("×", "*").replace("^", "**")
    assert re.fullmatch(rf"(?:gate|curvature|information|{NUMBER}|[ ()+*/])+", right)
    return eval(right, {"__builtins__": {}}, dict(parts))


@pytest.mark.parametrize(
    ("options", "formula"),
    [
        ({}, r"score = gate × \(0.5 × curvature \+ 0.5 × information\)"),
        ({"beta": 2, "gamma": 0.25}, r"score = gate × \(2 × curvature \+ 0.25 × information\)"),
        ({"variant": "kl_only"}, "score = gate × information"),
        ({"variant": "hessian_only"}, "score = gate × curvature"),
        ({"variant": "transition_only"}, "score = gate"),
        ({"beta": 0}, "score = gate × 0.5 × information"),
        ({"combine": "geometric", "gamma": 1.5}, r"score = gate × curvature\^0.25 × information\^0.75"),
        ({"variant": "no_gate"}, r"score = gate × \(0.5 × curvature \+ 0.5 × information\)"),
        *(
            (
                {"balance": balance},
                rf"score = gate × \(0.5 × curvature / {NUMBER} \+ 0.5 × information / {NUMBER}\), "
                rf"where balance='{balance}' divides each part by its {balance}",
            )
            for balance in ("sum", "max")
        ),
    ],
    ids=str,
)
def test_it_is_true_of_the_rows(options: dict[str, Any], formula: str) -> None:
    model = zoo.bridge("gpt2")
    made = explain(model, zoo.prompt(model, 6), **options)
    assert re.fullmatch(formula, score_formula(made))
    torch.testing.assert_close(value(score_formula(made), made.parts), made.scores, rtol=1e-3, atol=0)


def by_hand(**changes: Any) -> Attribution:
    parts = {"gate": double([0.5, 0.25]), "curvature": double([1, 3]), "information": double([4, 2])}
    options = {"beta": 1, "gamma": 2, "balance": "none"}
    return replace(attribution(["a", "b"], [4.5, 1.75]), parts=parts, options=options, **changes)


def test_a_formula_that_does_not_give_the_scores_is_not_told() -> None:
    assert score_formula(by_hand()) == "score = gate × (curvature + 2 × information)"
    assert score_formula(by_hand(scores=double([4.5, 1.8]))) == ""


def test_parts_of_other_methods_have_none() -> None:
    made = by_hand()
    assert score_formula(replace(made, parts={})) == ""
    assert score_formula(replace(made, parts={**made.parts, "else": double([0, 0])})) == ""
    assert score_formula(replace(made, parts={"curvature": made.scores})) == ""


def test_what_was_divided_by_the_sum_of_more_tokens_says_so() -> None:
    balanced = {"beta": 1, "gamma": 2, "balance": "sum"}
    left = replace(by_hand(scores=double([0.79, 0.35])), options=balanced).without([1])
    assert score_formula(left) == (
        "the score divides each part by its sum over the whole context, of which tokens are left out here"
    )
    assert score_formula(by_hand().without([1])) == "score = gate × (curvature + 2 × information)"


def test_a_product_says_whose_sign_it_has_and_nothing_without_parts() -> None:
    product = replace(by_hand(signed=True), options={"beta": 1, "gamma": 3, "combine": "geometric"})
    said = "score = gate × curvature^0.25 × information^0.75, with the sign of information"
    assert score_formula(product) == said
    assert score_formula(replace(product, parts={})) == ""
