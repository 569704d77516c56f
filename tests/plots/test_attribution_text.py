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

from helpers import chats, zoo
from helpers.asking import cache_of, explain
from helpers.attributions import SCORES, attribution, double, of_chat, uncertain
from heta_lens import Attribution, attribute_span, chat
from heta_lens._util.target_kinds import SavedFunction
from heta_lens.diagnostics import Diagnostics
from heta_lens.plots.attribution_text import score_formula
from heta_lens.plots.scales import message_shares, share_note


# ----------------------------------------------------------------------------------------------------- attribution text
def test_no_line_can_steer_a_terminal():
    made = attribution(["\x1b[2J", "\u202ea", "\x9b"], (1, 2, 3), method="\x1b[2Jheta\nheta")
    assert not set(repr(made)) & set("\x1b\u202e\x9b")
    assert repr(made).startswith("␛[2Jheta⏎heta: why ' down'?")


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


def margin(logits: Tensor) -> Tensor:
    return logits[1] - logits[2]


def test_a_set_is_named_with_its_likeliest_members():
    members = [{"id": token, "text": f" {token}", "log_prob": -float(token)} for token in (4, 1, 3, 2)]
    facts = {"target_log_prob": math.log(0.5), "target_rank": 2, "target_token": "", "target_members": members}
    made = attribution(
        target=frozenset((1, 2, 3, 4)), target_text="any of ' 1', ' 2'", diagnostics=Diagnostics.of(facts)
    )
    assert lines(made)[0] == "heta: why any of ' 1', ' 2'? (rank 2, not predicted)"
    assert lines(made)[-2] == (
        "any of 4 tokens: p = 0.5 (best rank 2; "
        "token 1 ' 1': p = 0.368, token 2 ' 2': p = 0.135, token 3 ' 3': p = 0.0498)"
    )


def test_a_contrast_with_a_set_names_both_sides():
    member = {"id": 1, "text": " 1", "log_prob": math.log(0.3)}
    facts = {
        "target_log_prob": (math.log(0.5), math.log(0.1)), "target_rank": (1, 3),
        "target_token": ("", " Rome"), "target_members": [member],
    }  # fmt: skip
    target, text = (frozenset((1, 2)), 5), ("any of ' 1', ' 2'", " Rome")
    made = attribution(target=target, target_text=text, diagnostics=Diagnostics.of(facts))
    assert lines(made)[0] == "heta: why any of ' 1', ' 2' rather than ' Rome'?"
    assert lines(made)[-2] == (
        "any of 2 tokens: p = 0.5 (best rank 1; token 1 ' 1': p = 0.3) against token 5 ' Rome': p = 0.1 (rank 3)"
    )


def test_a_function_is_named_with_its_value():
    for target in (margin, SavedFunction("margin")):
        made = attribution(target=target, target_text="margin", diagnostics=Diagnostics(target_value=1.25))
        assert lines(made)[0] == "heta: why margin(logits)?"
        assert lines(made)[-2] == "margin(logits) = 1.25"


@pytest.mark.parametrize(
    "token",
    ["a" * 200, "\n" * 40, "e\N{COMBINING ACUTE ACCENT}" * 50, "世界" * 20, "😀" * 30],
    ids=["long", "newlines", "accents", "Chinese", "emoji"],
)
def test_it_fits_a_terminal_whatever_the_tokens(token: str):
    made = attribution([token] * 2000, [1e-300 * (-1) ** i for i in range(2000)], signed=True)
    made = replace(made, diagnostics=Diagnostics.of({"sink_mass": 1.0}), target=(1, 2), target_text=(token, token))
    assert max(map(cell_len, lines(made))) <= 100


def test_columns_line_up_under_wide_characters():
    made = attribution(["世界", "cat", "😀"], (3, 2, 1))
    assert len({cell_len(line.split("█")[0]) for line in lines(made)[1:4]}) == 1


def test_scores_of_nothing_but_zeros_print_no_nan():
    made = attribution(scores=[0.0] * 6, diagnostics=Diagnostics.of({"sink_mass": math.nan}))
    assert "nan" not in repr(made)
    assert "█" not in repr(made)


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
    ("log_prob", "shown"), [(-1e-6, "p > 0.9999"), (-4e-4, "p = 0.9996"), (0.0, "p = 1"), (-40.0, "p = 4.25e-18")]
)
def test_a_target_that_is_all_but_certain_is_not_called_certain(log_prob: float, shown: str):
    member = {"id": 1, "text": " a", "log_prob": log_prob}
    facts = {"target_log_prob": log_prob, "target_rank": 1, "target_token": "a", "other_spellings": [member]}
    known = attribution(diagnostics=Diagnostics.of(facts)).notes
    assert known[1:3] == [f"token 7 'a': {shown} (rank 1)", f"also written: ' a' by token 1 ({shown})"]
    facts = {**facts, "other_spellings": [], "target_token": "", "target_members": [member]}
    several = attribution(target=frozenset((1, 2)), target_text="any of ' a', ' b'", diagnostics=Diagnostics.of(facts))
    assert several.notes[1] == f"any of 2 tokens: {shown} (best rank 1; token 1 ' a': {shown})"


@pytest.mark.parametrize(("gap", "due", "said"), [(0.3, -2.0, True), (0.1, -2.0, False), (3e-9, 0.0, True)])
@pytest.mark.parametrize(
    ("cause", "advice"),
    [("steps", ": take more steps"), ("mask", ": more steps hardly help, choose another mask"), (None, "")],
)
def test_it_says_when_an_integral_is_far_from_what_it_should_be(
    gap: float, due: float, said: bool, cause: str | None, advice: str
):
    facts = {"completeness_gap": gap, "completeness_due": due, "completeness_cause": cause}
    notes = attribution(diagnostics=Diagnostics.of(facts)).notes
    assert [note for note in notes if "integral" in note] == [f"the integral is {gap:.3g} off {due:.3g}{advice}"] * said
    del facts["completeness_due"]  # as of methods that integrate nothing
    assert not any("integral" in note for note in attribution(diagnostics=Diagnostics.of(facts)).notes)


def test_it_says_what_the_tokens_of_a_chat_template_hold():
    assert "tokens of the chat template hold 57% of the score" in of_chat().notes
    left = of_chat().without(template=True)
    assert "3 tokens left out" in left.notes and "tokens of the chat template held 56.9% of the score" in left.notes
    for made in (attribution(), of_chat([0.0] * 6)):
        assert not any("template" in note for note in made.notes)
    assert "tokens of the chat template hold 0% of the score" in of_chat([0.0, 1, 1, 0, 1, 0]).notes


def test_it_says_how_many_tokens_were_left_out_and_no_more_of_the_first():
    shown = repr(attribution().without([0]).without([2]))
    assert "2 tokens left out" in shown
    assert "first token" not in shown
    assert "1 token left out" in attribution().without_special().notes


# ------------------------------------------------------------------------------------ special tokens, first and last
ORDINARY = ["The", " cat", " sat"]
LESS = "all other tokens together less than 0.1%"


def test_a_target_that_the_model_does_not_predict_says_so_in_the_title():
    def titled(rank: int | tuple[int, int], **changes: Any) -> str:
        return attribution(diagnostics=Diagnostics(target_rank=rank, target_log_prob=-1.0), **changes).title

    pair: dict[str, Any] = {"target": (1, 2), "target_text": (" a", " b")}
    assert titled(12) == "heta: why ' down'? (rank 12, not predicted)"
    assert titled(1) == "heta: why ' down'?" == attribution().title
    assert titled((3, 2), **pair) == "heta: why ' a' rather than ' b'? (rank 3 and 2, not predicted)"
    assert titled((3, 1), **pair) == titled((1, 3), **pair) == "heta: why ' a' rather than ' b'?"


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
        (
            ["<bos>", *ORDINARY],
            [1.0, 1e-5, 2e-5, 0],
            f"'<bos>' (first token, special) holds >99.9% of the score; {LESS}",
        ),
        (ORDINARY, [1.0, 1e-5, 0], f"'The' (first token) holds >99.9% of the score: attention sink; {LESS}"),
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


def test_a_first_word_that_is_a_sink_is_listed_and_bars_are_scaled_to_the_others():
    shown = lines(attribution(ORDINARY, [6.0, 2.0, 1.0]))
    assert [line.count("█") for line in shown[1:4]] == [30, 30, 15] and shown[1].endswith("▶")
    assert not any(line.endswith("▶") for line in lines(attribution(ORDINARY, [1.0, 4.0, 1.0])))


def test_the_last_token_is_marked_where_it_still_is():
    assert [("(last)" in line) for line in lines(attribution(ORDINARY, [3.0, 2.0, 1.0]))[1:4]] == [False, False, True]
    assert "(last)" not in repr(attribution().without([5])) and "(last)" in repr(attribution().without([1]))


# -------------------------------------------------------------------------------------------------------- score formula
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


# --------------------------------------------------------------------------------------------------------------- shares
def test_every_message_has_its_share_and_its_tokens() -> None:
    shares = message_shares(of_chat())
    assert [(one.role, one.text, one.score, one.percent) for one in shares] == [
        ("user", "The cat", 3.5, "27.5%"),
        ("assistant", "sat", 2.0, "15.7%"),
        ("user", "", 0.0, "0.0%"),
        ("template", "", 7.25, "56.9%"),
    ]
    assert sum(one.share for one in shares) == pytest.approx(1)
    assert [one.template for one in shares] == [False, False, False, True]


def test_what_speaks_against_the_target_counts() -> None:
    shares = message_shares(of_chat([0.0, 1.0, -3.0, 0.0, 4.0, 0.0], signed=True))
    assert [(one.score, one.share) for one in shares[:2]] == [(-2.0, 0.5), (4.0, 0.5)]


def test_a_span_that_was_followed_through_a_reasoning_is_shown_by_what_came_of_it() -> None:
    made = chat(chats.bridge(), chats.CHAT)
    longer = made.followed_by(chats.tokenizer("qwen2.5").encode("On the cat", add_special_tokens=False))
    answer, cache = len(longer) - 1, cache_of(chats.bridge(), longer.tokens)
    span = attribute_span(cache, answer, through=(len(made), answer), tokens=longer, method="recency")
    shares = message_shares(span)
    assert [one.score for one in shares] == [one.score for one in span.by_message()]
    assert sum(one.share for one in shares) == pytest.approx(1)
    assert not span.summed.scores[len(made) :].any(), "the reasoning has passed on all that it had"


# -------------------------------------------------------------------------------------------------------------- colours
