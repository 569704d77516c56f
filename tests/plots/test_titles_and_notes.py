"""A result in words: title, highest scores, notes, formula, and shares of messages."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.cells import cell_len
from torch import Tensor

from helpers import zoo
from helpers.asking import explain
from helpers.attributions import SCORES, attribution, double, of_chat, uncertain
from heta_lens import Attribution, SpanAttribution
from heta_lens.diagnostics import Diagnostics
from heta_lens.plots.scales import share_note
from heta_lens.plots.titles_and_notes import headline, score_formula


# ----------------------------------------------------------------------------------------------------- attribution text
def test_no_line_can_steer_a_terminal():
    made = attribution(["\x1b[2J", "\u202ea", "\x9b"], (1, 2, 3), method="\x1b[2Jheta\nheta")
    assert not set(repr(made)) & set("\x1b\u202e\x9b")
    assert repr(made).startswith("␛[2Jheta⏎heta: why ' down'?")


def test_a_span_has_the_titles_of_its_contrasts():
    first, second = (attribution(target=(1, 2), target_text=pair) for pair in ((" Rome", " Paris"), (" it", " her")))
    alone, both = (SpanAttribution(steps, (*first.tokens, " Rome")) for steps in ((first,), (first, second)))
    assert headline(alone.summed) == headline(first) == "Why “Rome” rather than “Paris”?"
    assert alone.title == first.title == "heta: why ' Rome' rather than ' Paris'?"
    assert headline(both.summed) == "Why ' Rome' rather than ' Paris', ' it' rather than ' her'?"
    assert both.title == "heta: why ' Rome' rather than ' Paris', ' it' rather than '…?"


# ------------------------------------------------------------------------------------------------------- in a terminal
def lines(made: Attribution) -> list[str]:
    return repr(made).splitlines()


def test_it_prints_the_question_the_highest_tokens_and_how_to_read_them():
    assert [line.split("█")[0].split() for line in lines(uncertain())] == [
        ["heta:", "why", "'", "down'?"],
        ["2", "'", "cat'", "3"],
        ["4", "'at'", "2"],
        ["3", "'", "s'", "1"],
        ["1", "'The'", "0.5"],
        ["5", r"'\n'", "(last)", "0.25"],
        ["'<bos>'", "(first", "token,", "special)", "holds", "47%", "of", "the", "score"],
        ["scores", "≥", "0:", "how", "much", "it", "matters,", "no", "direction"],
    ]


def test_signed_scores_say_what_their_sign_means():
    made = attribution(scores=[-score for score in SCORES], signed=True)
    assert lines(made)[-1] == "scores have either sign: above 0 speaks for the target"
    assert lines(made)[1].split()[:4] == ["5", r"'\n'", "(last)", "-0.25"]
    assert lines(made)[-2] == "most against the target: ' cat' at 2, -3"
    assert lines(made)[-4].count("█") == 30


@pytest.mark.parametrize(
    "token",
    ["a" * 200, "\n" * 40, "e\N{COMBINING ACUTE ACCENT}" * 50, "世界" * 20, "😀" * 30],
    ids=["long", "newlines", "accents", "Chinese", "emoji"],
)
def test_it_fits_a_terminal_whatever_the_tokens(token: str):
    made = attribution([token] * 2000, [1e-300 * (-1) ** i for i in range(2000)], signed=True)
    made = replace(made, diagnostics=Diagnostics.of({"sink_mass": 1.0}), target=(1, 2), target_text=(token, token))
    assert max(map(cell_len, lines(made))) <= 100


# ------------------------------------------------------------------------------------------- what a reader is told
def test_it_says_how_likely_the_target_was_and_what_was_chosen():
    facts = {"target_log_prob": math.log(0.25), "target_rank": 2, "user_hooks": 1, "chosen": {"balance": "sum"}}
    shown = repr(replace(attribution(), diagnostics=Diagnostics.of(facts))).splitlines()
    assert shown[0].endswith("(balance='sum')")
    assert "p = 0.25 (rank 2), under hooks" in shown
    pair = replace(attribution(), target=(1, 2), target_text=(" a", " b"), diagnostics=Diagnostics.of(facts | {
        "target_log_prob": (math.log(0.5), math.log(0.125)), "target_rank": (1, 3), "user_hooks": 0,
    }))  # fmt: skip
    assert "p = 0.5 (rank 1) against p = 0.125 (rank 3)" in repr(pair).splitlines()


@pytest.mark.parametrize(
    ("target", "candidate", "log_prob", "said"),
    [
        ("Paris", " Paris", -0.5, "' Paris' is more likely (rank 2) than 'Paris' (rank 31)"),
        (" Paris", "Paris", -0.5, "'Paris' is more likely (rank 2) than ' Paris' (rank 31)"),
        ("Paris", " Paris", -8.0, None),  # about as likely
        ("Paris", " Lyon", -0.5, None),
    ],
)
def test_a_likelier_spelling_of_the_target_is_named(target: str, candidate: str, log_prob: float, said: str | None):
    facts = {"target_log_prob": -9.0, "target_rank": 31, "candidates": ((" a", -0.4), (candidate, log_prob))}
    made = replace(attribution(), target=1, target_text=target, diagnostics=Diagnostics.of(facts))
    assert [note for note in made.notes if " is more likely" in note] == ([said] if said else [])


def test_the_shares_of_parts_are_of_all_tokens() -> None:
    made = attribution(diagnostics=Diagnostics.of({"share": {"curvature": 0.25, "information": 0.75}}))
    assert "the score is 25.0% curvature, 75.0% information" in made.notes
    assert "the whole score is 25.0% curvature, 75.0% information" in made.without([1]).notes


# ------------------------------------------------------------------------------------ special tokens, first and last
ORDINARY = ["The", " cat", " sat"]


@pytest.mark.parametrize(
    ("tokens", "scores", "said"),
    [
        (["<bos>", *ORDINARY], [3.0, 4, 2, 1], "'<bos>' (first token, special) holds 30% of the score"),
        (
            [*ORDINARY, "</s>"],
            [3.0, 4, 2, 1],
            "'</s>' (special) holds 10% of the score; 'The' (first token) holds 30% of the score: attention sink",
        ),
        ([*ORDINARY, "</s>"], [1.0, 4, 2, 3], "'</s>' (special) holds 30% of the score"),
        (["<bos>", *ORDINARY, "</s>"], [2.0, 4, 2, 1, 1], "special tokens hold 30% of the score"),
        (ORDINARY, [2.5, 5.0, 2.5], ""),
        (ORDINARY, [-4.0, 4.0, 2.0], "'The' (first token) holds 40% of the score: attention sink"),
        (["<bos>", *ORDINARY], [1.0, 1e-5, 2e-5, 0], "'<bos>' (first token, special) holds >99.9% of the score"),
        (ORDINARY, [1.0, 1e-5, 0], "'The' (first token) holds >99.9% of the score: attention sink"),
        (["<bos>", *ORDINARY], [0.001, 1, 2, 3], "'<bos>' (first token, special) holds <0.1% of the score"),
        (["<bos>", "</s>"], [3.0, 1.0], ""),
        (["The"], [3.0], ""),
        (["<bos>", *ORDINARY], [0.0] * 4, ""),
    ],
)
def test_one_line_says_what_special_tokens_and_a_first_word_hold(tokens: list[str], scores: list[float], said: str):
    made = attribution(tokens, scores)
    assert share_note(made) == said
    assert not said or made.notes[0] == said


def test_special_tokens_in_a_message_are_named_beside_the_template() -> None:
    special = torch.tensor([True, False, False, True, True, False])
    said = "tokens of the chat template{} hold {} of the score"
    assert share_note(of_chat()) == said.format("", "57%")
    assert share_note(of_chat(special=special)) == said.format(" and special tokens", "73%")


# -------------------------------------------------------------------------------------------------------- score formula
NUMBER = r"\d+\.?\d*(?:e[+-]?\d+)?"


def value(formula: str, parts: Mapping[str, Tensor]) -> Tensor:
    """What the formula says, worked out from its text alone."""
    right = formula.removeprefix("score = ").partition(", where")[0].replace("×", "*").replace("^", "**")
    right = right.replace("squared gradient", "curvature")
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
        ({"variant": "no_gate"}, r"score = 0.5 × curvature \+ 0.5 × information"),
        ({"variant": "gs", "combine": "geometric"}, r"score = gate × squared gradient\^0.5 × information\^0.5"),
        *(
            (
                {"balance": balance},
                r"score = gate × \(0.5 × curvature \+ 0.5 × information\), "
                rf"where balance='{balance}' divides each part by its {balance} in the context",
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
    if "balance" not in options:
        torch.testing.assert_close(value(score_formula(made), made.parts), made.scores, rtol=1e-3, atol=0)


def test_other_methods_have_no_formula() -> None:
    parts = {"gate": double([0.5, 0.25]), "curvature": double([1, 3]), "information": double([4, 2])}
    options = {"beta": 1, "gamma": 2, "balance": "none"}
    made = attribution(["a", "b"], [4.5, 1.75], parts=parts, options=options)
    assert score_formula(made) == "score = gate × (curvature + 2 × information)"
    assert score_formula(replace(made, method="mine")) == ""
