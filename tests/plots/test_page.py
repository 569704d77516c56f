"""Pages: tokens in colour, the data of the script, other files, and heat maps."""

import io
import json
import re
from dataclasses import replace

import pandas as pd
import pytest
import torch

import heta_lens
from helpers import zoo
from helpers.attributions import SCORES, of_chat, printed, uncertain
from helpers.attributions import attribution as plain
from helpers.browser import chips, data, depths, evidence, numbers, strip, text, values, written
from heta_lens import PRESETS, plots
from heta_lens._util.html_view import View
from heta_lens.attribution import Attribution
from heta_lens.diagnostics import Diagnostics
from heta_lens.plots.html_page import (
    cells,
    heat,
    page,
    score_values,
    span_values,
)
from heta_lens.plots.html_page import packed_matrix as matrix
from heta_lens.plots.html_page import with_answer as whole_text
from heta_lens.plots.titles_and_notes import headline, kicker, predicted, score_formula
from heta_lens.span_attribution import SpanAttribution

# ------------------------------------------------------------------------------------------------------------ html page
CODE, DATA = 60_000, 80  # bytes: of a page without data, and of what a token adds beside its letters


def test_a_page_has_all_tokens_and_values_and_needs_nothing(attribution: Attribution) -> None:
    view = plots.page(attribution, marked=[2], note="a < b")
    assert "http" not in view.page and "a &lt; b" in view.page and view.title == attribution.title
    assert text(view) == attribution.text.strip() or text(view) == attribution.text
    assert len(chips(view)) == len(attribution) and len(evidence(view)) == 1
    shown = values(view)
    assert [*shown] == ["score", *attribution.parts]
    for name, own in {"score": attribution.scores, **attribution.parts}.items():
        assert shown[name] == own.float().tolist()


@pytest.mark.parametrize(
    ("by", "unit"), [("token", "tokens"), ("word", "words"), ("sentence", "sentences"), ("role", "messages")]
)
def test_a_page_opens_by_what_is_asked_for(by: str, unit: str) -> None:
    assert data(plots.page(plain(), by=by))["unit"] == unit


def test_special_tokens_are_switched_off_and_what_they_hold_is_said_below() -> None:
    for special in (False, True):
        view = plots.page(plain(), special=special)
        assert (data(view)["hidden"], data(view)["hidden_name"]) == ([0], "special tokens")
        assert data(view)["special"] is special and values(view)["score"] == list(SCORES)
        assert depths(view)[:3] == ([1.0, 0.08, 0.5] if special else [0.0, 0.17, 1.0])
        assert view.fragment.count("holds 47% of the score") == 1
        assert view.fragment.index("<summary>About") < view.fragment.index("holds 47% of the score")
    chat_page = plots.page(of_chat())
    assert (data(chat_page)["hidden"], data(chat_page)["hidden_name"]) == ([0, 3, 5], "the chat template")
    assert "tokens of the chat template hold 57% of the score" in chat_page.fragment
    assert depths(chat_page) == [0.0, 0.17, 1.0, 0.0, 0.67, 0.0]


def test_a_page_of_a_chat_has_a_bar_for_each_message(attribution: Attribution) -> None:
    view = plots.page(of_chat())
    assert re.findall(r'data-message="(\d)"><div class="role"><span>(\w+)<', strip(view)) == [
        ("0", "user"),
        ("1", "assistant"),
    ]
    assert data(view)["units"]["messages"]["roles"] == ["user", "assistant", "user", "template"]
    assert "messages" not in data(plots.page(attribution))["units"] and "message" not in strip(plots.page(attribution))


def test_the_question_and_the_prediction_are_read_without_spaces_and_options() -> None:
    facts = {"target_log_prob": (-0.5, -3.0), "target_rank": (1, 7), "chosen": {"n": 2}}
    pair = {"target": (1, frozenset((2, 3))), "target_text": (" x", "any of ' y', ' z'")}
    made = written(["a", " b"], diagnostics=Diagnostics.of(facts), options={"model": {"name": "gpt2"}}, **pair)
    assert kicker(made) == "heta, n=2 · gpt2" and headline(made) == "Why “x” rather than any of ' y', ' z'?"
    assert predicted(made).targets == [("x", "60.7%"), ("any of ' y', ' z'", "5.0% · rank 7")]
    likely = {"candidates": (("\n", -0.5), (" x", -1.0), (" y", -9.0)), "target_log_prob": -1.0, "target_rank": 2}
    shown = predicted(written(["a"], diagnostics=Diagnostics.of(likely)))
    assert (shown.targets, shown.others) == ([("x", "36.8% · rank 2")], [("⏎", "60.7%")])
    value = written(["a"], target=len, target_text="len", diagnostics=Diagnostics.of({"target_value": 2.5}))
    assert predicted(value).targets == [("len", "2.5")] and headline(value) == "Why len(logits)?"
    unlikely = written(["a"], diagnostics=Diagnostics.of({"target_rank": 11, "target_log_prob": -9.0}))
    assert headline(unlikely) == "Why “x” (rank 11, not predicted)?"
    assert predicted(written(["a"])) == ([("x", "")], [])


def test_presets_are_named_and_a_squared_gradient_is_not_called_curvature() -> None:
    options = dict(PRESETS["careful"].options)
    made = uncertain(options=options, diagnostics=Diagnostics.of({"chosen": options}))
    assert kicker(made) == "careful" and made.title == "careful: why ' down'?"
    assert [value.name for value in score_values(made)] == ["score", "squared gradient", "information"]


def test_a_span_names_its_squared_gradients_alike_in_the_text_and_in_the_matrix() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 5)
    cache = model.run_with_cache(ids)[1]
    span = heta_lens.attribute_span(cache, 3, tokens=ids, method="careful")
    assert {value.name for value in span_values(span)} == {"all targets", *matrix(span)["parts"]}
    assert {*matrix(span)["parts"]} == {"squared gradient", "information"}


def test_the_legend_says_what_scores_are() -> None:
    contrast = {"target": (1, 2), "target_text": ("c", "d")}
    for own, said in (
        ({}, "no direction"),
        ({"signed": True}, "or against it"),
        ({"method": "random"}, "a control"),
        (contrast, "may speak for either side"),
    ):
        assert said in score_values(written(["a", "b"], **own))[0].meaning


def test_what_tokens_say_cannot_break_a_page(attribution: Attribution) -> None:
    hostile = "</div></script><script>alert(1)</script>\x1b[2J\u202e"
    view = plots.page(written([hostile, "<b>", "&amp;"], target_text=hostile, method=hostile), note=hostile)
    clean = plots.page(written(["a", "b", "c"]))
    for mark in ("<script", "</script", "<b", "</div"):
        assert view.page.count(mark) == clean.page.count(mark)
    assert not set(view.page) & set("\x1b\u202e") and chips(view)[2] == "&amp;"
    assert "[bold]" in printed(replace(attribution, tokens=("[bold]", *attribution.tokens[1:])))[1]


def test_the_code_of_a_page_is_small_and_so_is_what_a_token_adds() -> None:
    """Each token has four values and two errors."""

    def view(count: int) -> View:
        made = written([f" word{number % 90}" if number % 12 else "." for number in range(count)])
        parts = {name: made.scores * factor for name, factor in (("gate", 3), ("curvature", 5), ("information", 7))}
        errors = Diagnostics.of({"standard_errors": {"scores": made.scores, "curvature": made.scores}})
        return replace(made, parts=parts, diagnostics=errors).plot()

    large, small = view(500), view(100)
    letters = sum(map(len, chips(large))) - sum(map(len, chips(small)))
    added = len(large.page.encode()) - len(small.page.encode()) - letters
    assert len(chips(large)) == 500 and added <= DATA * 400
    assert len(large.page.encode()) - DATA * 500 - sum(map(len, chips(large))) <= CODE
    assert data(large)["values"][2]["errors"] is not None


@pytest.mark.parametrize(
    ("token", "text", "breaks"),
    [("\n", "⏎", 1), ("\n\n", "⏎⏎", 2), (".\n", ".⏎", 1), ("\t", "→", 0), (" ", "␣", 0), ("\u200d", "⟨U+200D⟩", 0)],
)
def test_no_token_looks_like_nothing(token: str, text: str, breaks: int) -> None:
    *_, cell = cells(written(["a", token]))
    assert (cell.text, cell.breaks) == (text, breaks)


# ----------------------------------------------------------------------------------------------------------- whole span
TOKENS = ["a", " b", " c", " d", " e"]


def span(reasoning: int = 0) -> SpanAttribution:
    steps = [written(TOKENS[:length], [float(length + row) for row in range(length)]) for length in range(2, 5)]
    return SpanAttribution((*steps[reasoning:],), (*TOKENS,), (*steps[:reasoning],))


def test_the_text_is_the_prompt_and_the_answer() -> None:
    whole = whole_text(span())
    assert whole.text == "a b c d e" and [*whole.tokens] == TOKENS and whole.positions.tolist() == [0, 1, 2, 3, 4]
    assert [whole.text[start:stop] for start, stop in whole.offsets.tolist()] == TOKENS
    assert whole.scores.tolist() == [*span().total.tolist(), 0.0, 0.0, 0.0]


def test_the_matrix_has_every_targets_scores() -> None:
    own = matrix(span())
    assert own["targets"] == [2, 3, 4]
    assert numbers(own["scores"]) == [score for step in span().steps for score in step.scores.tolist()]


def test_every_target_has_its_parts_and_standard_errors() -> None:
    steps = tuple(
        replace(
            step,
            parts={"gate": 2 * step.scores, "curvature": -step.scores},
            diagnostics=Diagnostics(standard_errors={"scores": step.scores / 8}),
        )
        for step in span().steps
    )
    own = replace(span(), steps=steps)
    packs = matrix(own)
    scores = numbers(packs["scores"])
    assert numbers(packs["parts"]["gate"]) == [2 * score for score in scores]
    assert numbers(packs["parts"]["curvature"]) == [-score for score in scores]
    assert numbers(packs["errors"]) == [score / 8 for score in scores]
    gate, curvature = (shown for shown in span_values(own) if shown.name in ("gate", "curvature"))
    assert gate.values.tolist() == [*(2 * own.total).tolist(), 0, 0, 0] and "flow" in gate.meaning
    assert curvature.values.tolist() == [*(-own.total).tolist(), 0, 0, 0]


# --------------------------------------------------------------------------------------------------------- view exports
def str_json(result: object) -> str:
    return str(page(result).exports[".json"]())  # type: ignore[arg-type]


def test_numbers_are_those_of_the_frame() -> None:
    made = written(["é", " b"], [0.1, 1 / 3])
    table = pd.read_csv(io.StringIO(str(page(made).exports[".csv"]())))
    assert table["score"].tolist() == made.to_frame()["score"].tolist() and table["token"].tolist() == ["é", " b"]
    content = json.loads(str_json(made))
    assert content["formula"] == score_formula(made) and content["options"].keys() == made.options.keys()
    assert [row["score"] for row in content["rows"]] == made.scores.tolist() and content["text"] == "é b"
    assert content["title"] == made.title and content["notes"] == made.notes


def test_json_has_no_number_that_is_not_finite() -> None:
    content = str_json(
        written(
            ["a", " b"], diagnostics=Diagnostics.of({"standard_errors": {"scores": torch.tensor([0.5, float("nan")])}})
        )
    )
    assert [row["score_se"] for row in json.loads(content, parse_constant=pytest.fail)["rows"]] == [0.5, None]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_has_no_colour_is_refused_by_its_place(value: float) -> None:
    with pytest.raises(ValueError, match=f"'below', 'b' is {value}, which has no colour"):
        heat("wrong", ["above", "below"], ["a", "b"], torch.tensor([[0.0, 1.0], [2.0, value]]))
