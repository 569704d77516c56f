"""The result: read it by token, word and span, leave tokens out, tabulate, print, plot and store it."""

import math
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import heta_lens
from helpers import zoo
from helpers.asking import explain
from helpers.attributions import SCORES, TOKENS, attribution, double, of_chat, uncertain
from helpers.pages import values
from heta_lens import Attribution
from heta_lens.diagnostics import Diagnostics


# -------------------------------------------------------------------------------------------------------- by token
def test_the_top_tokens_come_best_first():
    assert attribution().top(3) == [(" cat", 3.0, (2,)), ("at", 2.0, (4,)), (" s", 1.0, (3,))]
    with_special = attribution().top(3, special=True)
    assert with_special == [("<bos>", 6.0, (0,)), (" cat", 3.0, (2,)), ("at", 2.0, (4,))]


def test_the_top_leaves_out_what_is_hidden_unless_that_is_all():
    assert attribution().hidden.tolist() == [True] + [False] * 5
    assert of_chat().hidden.tolist() == [True, False, False, True, False, True]
    assert [one.text for one in of_chat().top()] == [" cat", "sat", "The"] and len(of_chat().top(special=True)) == 6
    only = attribution(["<s>", "</s>"], (1, 2))
    assert not only.hidden.any() and [one.text for one in only.top()] == ["</s>", "<s>"]
    none = attribution(["a", "b"], (1, 2))
    assert not none.hidden.any() and none.top() == none.top(special=True)


@pytest.mark.parametrize(("k", "length"), [(0, 0), (1, 1), (5, 5), (99, 5)])
def test_the_top_has_k_tokens_or_all_there_are(k: int, length: int):
    assert len(attribution().top(k)) == length


def test_signed_scores_are_ranked_by_score_unless_told_by_size():
    made = attribution(["a", "The", *TOKENS[2:]], (1.0, -3.72, 0.5, 4.0, 0.0, -0.5), signed=True)
    assert [one.score for one in made.top(4)] == [4.0, 1.0, 0.5, 0.0]
    assert [one.score for one in made.top(3, by="size")] == [4.0, -3.72, 1.0]
    assert "most against the target: 'The' at 1, -3.72" in made.notes
    assert not any("against" in note for note in replace(made, signed=False).notes)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"k": -40}, "k=-40 must be at least 0"),
        ({"k": 2.5}, "k=2.5 must be a whole number"),
        ({"by": "sum"}, "by='sum' is not one of 'score', 'size'"),
    ],
)
def test_what_the_top_cannot_be_is_refused(given: dict[str, Any], message: str):
    with pytest.raises((TypeError, ValueError), match=message):
        attribution().top(**given)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_score_that_is_no_finite_number_cannot_be_kept(value: float):
    with pytest.raises(ValueError, match=rf"the score is {value} at position 2, token ' cat'"):
        attribution(scores=(1.0, 2.0, value, 3.0, 4.0, 5.0))
    with pytest.raises(ValueError, match=rf"gate is {value} at position 4, token 'at'"):
        attribution(parts={"gate": double([0.0] * 4 + [value, 0.0])})
    pairs = torch.zeros(6, 6)
    pairs[3, 1] = value
    with pytest.raises(ValueError, match=rf"interactions is {value} at position 3, token ' s'"):
        attribution(interactions=pairs)


def test_equal_scores_keep_the_order_of_the_text():
    top = attribution(scores=(1, 2, 2, 1, 2, 1)).top(6, special=True)
    assert [scored.positions[0] for scored in top] == [1, 2, 4, 0, 3, 5]


def test_the_length_is_the_number_of_tokens():
    assert len(attribution()) == 6


def test_it_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        attribution().scores = torch.zeros(6)


def test_each_is_equal_only_to_itself():
    made = attribution()
    assert made in {made}
    assert made != attribution()


# ----------------------------------------------------------------------------------------------------------- by word
def test_scored_texts_print_as_a_small_table():
    assert repr(attribution().by_word()).splitlines() == [
        "score  positions  text", "    6  0          '<bos>'", "  0.5  1          'The'", "    3  2          'cat'",
        "    3  3–4        'sat'", r" 0.25  5          '\n'",
    ]  # fmt: skip
    assert repr(attribution().by_word()[1:3]).splitlines() == [
        "score  positions  text", "  0.5  1          'The'", "    3  2          'cat'",
    ]  # fmt: skip
    assert repr(of_chat().by_message()).splitlines()[1] == "  3.5  1–2        user: 'The cat'"
    for made in (of_chat().by_sentence(), of_chat().by_role(), of_chat().by_spans([(0, 5)]), of_chat().top(2)):
        assert repr(made).startswith("score  positions  text\n") and isinstance(made, list)
    long = attribution(["x" * 300 + " "] * 60, range(60)).by_word()
    assert len(repr(long).splitlines()) == 42 and repr(long).endswith("… 20 more")
    assert max(map(len, repr(long).splitlines())) < 90 and repr(attribution().by_spans([])) == "score  positions  text"


@pytest.mark.parametrize(("reduce", "sat"), [("sum", 3.0), ("mean", 1.5), ("max", 2.0)])
def test_tokens_of_a_word_are_reduced_to_one_score(reduce: str, sat: float):
    assert attribution().by_word(reduce) == [
        ("<bos>", 6.0, (0,)), ("The", 0.5, (1,)), ("cat", 3.0, (2,)), ("sat", sat, (3, 4)), ("\n", 0.25, (5,)),
    ]  # fmt: skip


def test_words_add_up_to_the_scores_whatever_the_tokens():
    made = attribution(["a", "b c", " ", "", "d ", " e"], scores=(1, 2, 4, 8, 16, 32))
    assert sum(word.score for word in made.by_word()) == 63


def test_an_emoji_of_several_tokens_is_one_word():
    offsets = torch.tensor([[0, 2], [2, 4], [2, 4], [4, 7]])
    made = attribution(["Hi", " 😀", " 😀", " yo"], (1, 2, 4, 8), text="Hi 😀 yo", offsets=offsets)
    assert made.by_word() == [("Hi", 1, (0,)), ("😀", 6, (1, 2)), ("yo", 8, (3,))]


def test_signed_scores_cancel_in_a_sum_but_not_in_the_maximum():
    made = attribution(["un", "likely"], (-3, 2), special=torch.tensor([False, False]), signed=True)
    assert [made.by_word(reduce)[0].score for reduce in ("sum", "mean", "max")] == [-1, -0.5, 2]


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_reduction_is_refused_by_listing_the_known_ones():
    for call in (lambda: attribution().by_word("median"), lambda: attribution().by_spans([(0, 5)], "median")):
        with pytest.raises(ValueError, match=r"reduce='median' is not one of sum, mean, max"):
            call()


# ---------------------------------------------------------------------------------------------------------- by spans
@pytest.mark.parametrize(("reduce", "score"), [("sum", 6.0), ("mean", 2.0), ("max", 3.0)])
def test_a_span_has_the_tokens_that_show_in_it(reduce: str, score: float):
    start = attribution().text.index("cat")
    assert attribution().by_spans([(start, start + 7)], reduce) == [("cat sat", score, (2, 3, 4))]


def test_spans_may_overlap_come_in_any_order_and_cut_tokens():
    text = attribution().text
    spans = [(text.index("at\n"), len(text)), (0, len(text)), (text.index("cat") + 1, text.index("cat") + 2)]
    assert attribution().by_spans(spans) == [("at\n", 2.0, (4,)), (text, 12.5, (0, 1, 2, 3, 4)), ("a", 3.0, (2,))]


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_a_span_of_white_space_has_no_tokens(reduce: str):
    space = attribution().text.index(" cat")
    assert attribution().by_spans([(space, space + 1)], reduce) == [(" ", 0.0, ())]


def test_no_spans_have_no_scores():
    assert attribution().by_spans([]) == []


@pytest.mark.parametrize("span", [(-1, 3), (3, 3), (4, 3), (0, 18), (17, 18)])
def test_a_span_outside_the_text_is_refused_by_the_size_of_the_text(span: tuple[int, int]):
    assert len(attribution().text) == 17
    with pytest.raises(ValueError, match=rf"span \({span[0]}, {span[1]}\) .* 17 characters"):
        attribution().by_spans([(0, 17), span])


# -------------------------------------------------------------------------------------------------- leaving tokens out
def test_special_tokens_can_be_left_out():
    shown = uncertain().without_special()
    assert shown.tokens == TOKENS[1:]
    assert shown.positions.tolist() == [1, 2, 3, 4, 5]
    assert shown.ids.tolist() == [11, 12, 13, 14, 15]
    assert shown.offsets.tolist() == uncertain().offsets[1:].tolist()
    assert shown.special.tolist() == [False] * 5


def test_what_stays_keeps_its_scores_parts_and_standard_errors():
    whole, shown = uncertain(), uncertain().without([1, 4])
    stays = [0, 2, 3, 5]
    assert_close(shown.scores, whole.scores[stays])
    for name, part in whole.parts.items():
        assert_close(shown.parts[name], part[stays])
    assert_close(shown.standard_errors["curvature"], whole.standard_errors["curvature"][stays])
    assert_close(shown.diagnostics["balanced"], whole.diagnostics["balanced"][stays])
    assert shown.standard_errors["information"] is None
    assert shown.diagnostics["sink_mass"] == whole.diagnostics["sink_mass"]


def test_what_is_no_row_a_token_stays_whole():
    options = {"mask": torch.arange(6.0), "seed": 0}
    shown = uncertain(options=options).without([0])
    assert shown.options["mask"].tolist() == options["mask"].tolist()
    assert (shown.text, shown.target) == (uncertain().text, 7)


def test_positions_are_places_in_the_context_however_much_was_left_out_before():
    shown = attribution().without([0, 1]).without([2])
    assert shown.tokens == (" s", "at", "\n")
    assert shown.by_word()[0] == ("sat", 3.0, (3, 4))


def test_leaving_out_nothing_changes_nothing():
    for shown in (attribution().without(), attribution().without([]), attribution().without(iter(()))):
        assert shown.tokens == TOKENS
        assert shown.scores.tolist() == list(SCORES)


def test_leaving_tokens_out_leaves_the_original_alone():
    whole = uncertain()
    whole.without([0, 1])
    assert len(whole) == len(whole.scores) == len(whole.parts["curvature"]) == 6


def test_leaving_out_everything_is_refused():
    with pytest.raises(ValueError, match="nothing would be left"):
        attribution(["<s>", "</s>"], (1, 2)).without_special()


def test_what_a_chat_template_wrote_can_be_left_out():
    shown = of_chat().without(template=True)
    assert shown.tokens == ("The", " cat", "sat")
    assert shown.template.tolist() == [False] * 3 and of_chat().template.tolist() == [
        True,
        False,
        False,
        True,
        False,
        True,
    ]
    assert [(message.text, message.score) for message in shown.by_message()] == [
        ("The cat", 3.5),
        ("sat", 2.0),
        ("", 0),
    ]
    assert shown.diagnostics.template_mass == pytest.approx(7.25 / 12.75)
    assert shown.without([1]).diagnostics.template_mass == shown.without(template=True).diagnostics.template_mass
    assert shown.without([1]).messages.owners.tolist() == [0, 1]
    assert of_chat().without([0, 3, 5]).diagnostics.template_mass is None


def test_only_a_chat_has_a_template():
    assert not attribution().template.any()
    with pytest.raises(ValueError, match=r"template=True needs a chat: give attribute tokens=heta_lens.chat\("):
        attribution().without(template=True)
    with pytest.raises(ValueError, match="nothing would be left: every token is special, of the template or listed"):
        of_chat().without([1, 2, 4], template=True)


@pytest.mark.parametrize("position", [6, 99, -7])
def test_leaving_out_a_position_that_is_not_there_is_refused(position: int):
    with pytest.raises(ValueError, match=str(position)):
        attribution().without([position])


# ------------------------------------------------------------------------------------------------------ how sure it is
@pytest.mark.parametrize(("probes", "confidence", "t"), [(2, 0.95, 12.7062), (3, 0.95, 4.30265), (11, 0.9, 1.81246)])
def test_the_interval_is_students_t(probes: int, confidence: float, t: float):
    made = uncertain(diagnostics=Diagnostics.of({**uncertain().diagnostics, "probes": probes}))
    low, high = made.interval(confidence)
    assert_close(high - made.scores, t * made.standard_errors["scores"], rtol=1e-5, atol=0)
    assert_close(made.scores - low, t * made.standard_errors["scores"], rtol=1e-5, atol=0)


def test_the_interval_is_one_of_95_percent_unless_told():
    assert_close(uncertain().interval()[0], uncertain().interval(0.95)[0])


@pytest.mark.parametrize("diagnostics", [{}, {"probes": 1, "standard_errors": {"scores": None}}])
def test_without_standard_errors_there_is_no_interval(diagnostics: dict[str, Any]):
    with pytest.raises(ValueError, match="no standard error"):
        attribution(diagnostics=Diagnostics.of(diagnostics)).interval()


@pytest.mark.parametrize("confidence", [95.0, 1.5, -0.1])
def test_a_confidence_that_is_no_probability_is_refused(confidence: float):
    with pytest.raises(ValueError, match="confidence"):
        uncertain().interval(confidence)


def test_methods_without_chance_have_no_standard_errors():
    assert attribution().standard_errors == {}


# ------------------------------------------------------------------------------------------------------------- tables
def test_the_table_has_a_row_a_token():
    table = uncertain().to_frame()
    assert table["token"].tolist() == list(TOKENS)
    assert table["position"].tolist() == [0, 1, 2, 3, 4, 5]
    assert table["id"].tolist() == [10, 11, 12, 13, 14, 15]
    assert table["score"].tolist() == list(SCORES)
    assert table["special"].tolist() == [True] + [False] * 5
    assert table["start"].tolist() == [0, 5, 8, 12, 14, 16]
    assert table["stop"].tolist() == [5, 8, 12, 14, 16, 17]


def test_the_table_has_parts_and_the_standard_errors_there_are():
    table = uncertain().to_frame()
    assert table["curvature"].tolist() == uncertain().parts["curvature"].tolist()
    assert table["score_se"].tolist() == uncertain().standard_errors["scores"].tolist()
    assert table["curvature_se"].tolist() == [0, 1, 2, 3, 4, 5]
    assert "information" in table
    assert "information_se" not in table


def test_a_part_and_its_standard_error_go_by_one_name():
    errors = {"standard_errors": {"heads": double(SCORES)}}
    assert "heads_se" in attribution(parts={"heads": double(SCORES)}, diagnostics=Diagnostics.of(errors)).to_frame()


def test_the_table_of_a_chat_says_whose_each_token_is():
    table = of_chat().to_frame()
    assert table["role"].tolist() == ["template", "user", "user", "template", "assistant", "template"]
    assert table["message"].isna().tolist() == [True, False, False, True, False, True]
    assert table["message"].dropna().tolist() == [0, 0, 1]
    by_role = table.groupby("role").score.sum()
    assert {one.text: one.score for one in of_chat().by_role()} == by_role.to_dict()
    assert not {"role", "message"} & {*attribution().to_frame()}


def test_a_passage_is_found_by_its_text():
    made = attribution()
    word = made.text.split()[1]
    (place,) = made.positions_of(word)
    assert made.tokens[place].strip() == word
    assert made.without([0]).positions_of(word) == [place]
    with pytest.raises(ValueError, match="'nowhere' occurs 0 times in the context: it must occur once"):
        made.positions_of("nowhere")


def test_the_table_has_only_the_tokens_that_were_kept():
    assert uncertain().without_special().without([1, 2]).to_frame()["position"].tolist() == [3, 4, 5]


def test_scores_of_half_precision_can_be_tabulated_printed_and_plotted():
    made = attribution(scores=SCORES)
    half = replace(made, scores=made.scores.bfloat16())
    assert half.to_frame()["score"].tolist() == list(SCORES)
    assert "<bos>" in repr(half)
    assert half.plot().fragment


# --------------------------------------------------------------------------------------------------------------- plots
def test_the_plot_has_the_question_and_every_token():
    shown = attribution().plot()
    assert shown.title == "heta: why ' down'?"
    assert values(shown)["score"] == list(SCORES)


def test_the_plot_has_only_the_tokens_that_were_kept():
    assert values(attribution().without_special().plot())["score"] == [0.5, 3.0, 1.0, 2.0, 0.25]


# -------------------------------------------------------------------------------------------------------- from a model
def test_the_tokens_of_a_model_are_found_in_its_text(tmp_path: Path):
    model = zoo.bridge("gpt2")
    words = model.tokenizer.encode("The cat sat on the mat", add_special_tokens=False)
    ids = torch.tensor([[model.tokenizer.bos_token_id, *words]])
    _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
    made = heta_lens.attribute(cache, tokens=ids, variant="transition_only")
    assert made.text == "<bos>The cat sat on the mat"
    assert [made.text[start:stop] for start, stop in made.offsets.tolist()] == list(made.tokens)
    assert [word.text for word in made.by_word()] == ["<bos>", "The", "cat", "sat", "on", "the", "mat"]
    assert made.without_special().tokens == made.tokens[1:]
    made.save(tmp_path / "a.safetensors")
    assert repr(Attribution.load(tmp_path / "a.safetensors")) == repr(made)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("spans", [(1, 2), ["red"], [(0, 1, 2)], [(0.5, 2)]])
def test_what_is_no_span_is_refused_in_one_sentence(spans: object):
    with pytest.raises(TypeError, match=r"must be pairs \(start, stop\) of places in attribution.text"):
        attribution().by_spans(spans)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("positions", [0, ["<s>"], [1.5]])
def test_what_is_no_position_is_refused_in_one_sentence(positions: object):
    with pytest.raises(TypeError, match="must be places in the context"):
        attribution().without(positions)


def test_one_of_two_tokens_can_be_left_out() -> None:
    """Although offsets have as many columns then as there are tokens."""
    model = zoo.bridge("gpt2")
    rest = explain(model, zoo.prompt(model, 2), 7, probes=2).without([0])
    assert rest.offsets.shape == (1, 2)
    assert len(rest.to_frame()) == len(rest.by_word()) == 1
