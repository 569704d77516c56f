"""Attributions: read by token, word, sentence, span and message, cut, tabulated and shown."""

import math
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import heta_lens
from helpers import zoo
from helpers.attributions import SCORES, TOKENS, attribution, double, of_chat, uncertain
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


def test_tokens_that_a_search_left_together_count_once_with_their_sum():
    made = attribution(["a", "The", *TOKENS[2:]], (0.5, -1.0, 1.0, 1.5, 1.5, -0.25), signed=True)
    known = {**made.diagnostics, "masked_together": ((0, 2, 0.1), (3, 5, 0.4))}
    made = replace(made, diagnostics=Diagnostics.of(known))
    assert made.top() == [("sat", 3.0, (3, 4)), (" cat", 1.0, (2,)), (TOKENS[5], -0.25, (5,)), ("aThe", -0.5, (0, 1))]
    assert "most against the target: 'aThe' at 0–1, -0.5" in made.notes
    listed = repr(made).splitlines()
    assert listed[1].split()[:3] == ["3–4", "'sat'", "3"] and listed[2].split()[0] == "2"
    assert made.without([4]).top(1)[0] == (" s", 1.5, (3,))


def test_signed_scores_are_ranked_by_score():
    made = attribution(["a", "The", *TOKENS[2:]], (1.0, -3.72, 0.5, 4.0, 0.0, -0.5), signed=True)
    assert [one.score for one in made.top(4)] == [4.0, 1.0, 0.5, 0.0]
    assert "most against the target: 'The' at 1, -3.72" in made.notes
    assert not any("against" in note for note in replace(made, signed=False).notes)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"k": -40}, "k=-40 must be at least 0"),
        ({"k": 2.5}, "k=2.5 must be a whole number"),
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


def test_the_score_of_a_word_is_the_sum_over_its_tokens():
    assert attribution().by_word() == [
        ("<bos>", 6.0, (0,)), ("The", 0.5, (1,)), ("cat", 3.0, (2,)), ("sat", 3.0, (3, 4)), ("\n", 0.25, (5,)),
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- by spans
def test_a_span_has_the_tokens_that_show_in_it():
    start = attribution().text.index("cat")
    assert attribution().by_spans([(start, start + 7)]) == [("cat sat", 6.0, (2, 3, 4))]


@pytest.mark.usefixtures("unchecked")
def test_what_stays_keeps_its_scores_parts_and_standard_errors():
    whole, shown = uncertain(), uncertain().without([1, 4])
    stays = [0, 2, 3, 5]
    assert_close(shown.scores, whole.scores[stays])
    for name, part in whole.parts.items():
        assert_close(shown.parts[name], part[stays])
    assert_close(shown.standard_errors["curvature"], whole.standard_errors["curvature"][stays])
    assert "balanced" not in shown.diagnostics
    assert shown.standard_errors["information"] is None
    assert shown.diagnostics["sink_mass"] == whole.diagnostics["sink_mass"]
    with pytest.raises(ValueError, match=r"positions=\[1.\d+\] are not in this attribution"):
        whole.without([1.75])  # type: ignore[list-item]


def test_what_a_chat_template_wrote_can_be_left_out():
    shown = of_chat().without(template=True)
    assert shown.tokens == ("The", " cat", "sat")
    whole = [True, False, False, True, False, True]
    assert shown.template.tolist() == [False] * 3 and of_chat().template.tolist() == whole
    messages = [("The cat", 3.5), ("sat", 2.0), ("", 0)]
    assert [(message.text, message.score) for message in shown.by_message()] == messages
    assert shown.without([1]).messages.owners.tolist() == [0, 1]


# ------------------------------------------------------------------------------------------------------ how sure it is
@pytest.mark.parametrize(("probes", "confidence", "t"), [(2, 0.95, 12.7062), (3, 0.95, 4.30265), (11, 0.9, 1.81246)])
def test_the_interval_is_students_t(probes: int, confidence: float, t: float):
    made = uncertain(diagnostics=Diagnostics.of({**uncertain().diagnostics, "probes": probes}))
    low, high = made.interval(confidence)
    assert_close(high - made.scores, t * made.standard_errors["scores"], rtol=1e-5, atol=0)
    assert_close(made.scores - low, t * made.standard_errors["scores"], rtol=1e-5, atol=0)


@pytest.mark.parametrize("confidence", [95.0, 1.5, -0.1])
def test_a_confidence_that_is_no_probability_is_refused(confidence: float):
    with pytest.raises(ValueError, match="confidence"):
        uncertain().interval(confidence)


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


def test_the_table_of_a_chat_says_whose_each_token_is():
    table = of_chat().to_frame()
    assert table["role"].tolist() == ["template", "user", "user", "template", "assistant", "template"]
    assert table["message"].isna().tolist() == [True, False, False, True, False, True]
    assert table["message"].dropna().tolist() == [0, 0, 1]
    by_role = table.groupby("role").score.sum()
    assert {one.text: one.score for one in of_chat().by_role()} == by_role.to_dict()
    assert not {"role", "message"} & {*attribution().to_frame()}


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


# ------------------------------------------------------------------------------------------------------- grouped scores
def test_every_message_has_its_score_and_its_role() -> None:
    assert of_chat().by_message() == [
        ("The cat", 3.5, (1, 2), "user"),
        ("sat", 2.0, (4,), "assistant"),
        ("", 0.0, (), "user"),
        ("", 7.25, (0, 3, 5), "template"),
    ]


def test_nothing_is_lost_however_messages_are_read() -> None:
    numbers = Random(0)
    for _ in range(100):
        owners = torch.tensor(numbers.choices(range(-1, 3), k=6))
        made = of_chat([numbers.gauss(0, 1) for _ in range(6)], signed=True)
        assert made.messages is not None
        made = replace(made, messages=replace(made.messages, owners=owners))
        for found in (made.by_message(), made.by_role(), made.by_sentence(), made.by_word()):
            assert sum(one.score for one in found) == pytest.approx(float(made.scores.sum()))
            assert sorted(chain(*(one.positions for one in found))) == [*range(6)]


# ------------------------------------------------------------------------------------------------------- by sentence
def sentences(made: Attribution) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.text, one.positions) for one in made.by_sentence()]


def test_sentences_have_the_tokens_that_begin_in_them() -> None:
    made = attribution(["<bos>", "A", " b.", "\nC", " d!", " E"], SCORES)
    assert sentences(made) == [("<bos>", (0,)), ("A b.", (1, 2)), ("C d!", (3, 4)), ("E", (5,))]
    assert [one.score for one in made.by_sentence()] == [6.0, 3.5, 3.0, 0.25]
