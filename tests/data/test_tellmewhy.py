"""TellMeWhy: one instance per question, with the sentences that helped."""

from typing import Any

import pytest

from helpers.dataset_records import WHY, unchecked
from heta_lens.data import datasets


def test_the_answers_of_one_question_are_one_instance() -> None:
    votes = [[0], [0, 1], [], [2, 0]]
    (instance,) = datasets.tellmewhy_instances([WHY | {"helpful_sentences": vote} for vote in votes])
    assert instance.text == "Kim was cold. She saw a coat. She put it on. Why did She put it on?"
    assert (instance.answer, instance.template) == (None, "rocstories_narrative_7")
    assert instance.words("support") == ["Kim was cold."]
    assert instance.words("distractor") == ["She saw a coat.", "She put it on."]
    assert instance.words("question") == ["Why did She put it on?"]
    (alone,) = datasets.tellmewhy_instances([WHY | {"helpful_sentences": vote} for vote in ([1], [], [])])
    assert alone.words("support") == ["She saw a coat."]
    (halved,) = datasets.tellmewhy_instances([WHY, WHY | {"helpful_sentences": [1]}])
    assert halved.words("support") == ["Kim was cold.", "She saw a coat."]


def test_questions_of_one_story_are_apart_and_of_one_template() -> None:
    other = WHY | {"question": "Why was Kim cold?", "question_meta": "rocstories_narrative_7_sentence_0_question_1"}
    first, second = datasets.tellmewhy_instances([WHY, other | {"is_ques_answerable": "Not Answerable"}])
    assert first.template == second.template and first.id != second.id
    assert len(list(datasets.tellmewhy_instances([WHY, other]))) == 2
    only = datasets.tellmewhy_instances([WHY, other | {"is_ques_answerable": "Not Answerable"}], answerable=True)
    assert [one.id for one in only] == [first.id]


def test_a_given_answer_and_a_cue_can_be_asked_for() -> None:
    (instance,) = datasets.tellmewhy_instances([WHY, WHY | {"answer": "Cold."}], answer="given", cue="Answer:")
    assert instance.answer == " She was cold." and instance.text.endswith("on? Answer:")
    assert instance.words("question") == ["Why did She put it on? Answer:"]


@pytest.mark.parametrize(
    "change",
    [{"helpful_sentences": []}, {"helpful_sentences": None}, {"original_narrative_form": ["Another."]}],
    ids=str,
)
def test_where_no_sentence_is_known_to_help_none_is_marked(change: dict[str, Any]) -> None:
    (instance,) = datasets.tellmewhy_instances([WHY | change])
    assert instance.support == instance.distractor == ()
    assert instance.text == f"{WHY['narrative']} {WHY['question']}"


def test_bare_questions_are_enough() -> None:
    (instance,) = datasets.tellmewhy_instances([{"narrative": "Kim left.", "question": "Why did Kim leave?"}])
    assert (instance.id, instance.text) == ("tellmewhy-00000", "Kim left. Why did Kim leave?")


@unchecked
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"narrative": None}, "record 0 of TellMeWhy has no narrative"),
        ({"helpful_sentences": [3]}, "helpful_sentences name 3, but its sentences go from 0 to 2"),
        ({"helpful_sentences": "oh no"}, "rocstories_narrative_7_sentence_2_question_0: 'oh no' is not a list"),
        ({"helpful_sentences": 3}, "3 is not a list"),
    ],
)
def test_a_wrong_record_of_tellmewhy_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(datasets.tellmewhy_instances([WHY | change]))
    with pytest.raises(ValueError, match="answer='mine' is not one of 'model', 'given'"):
        datasets.tellmewhy_instances([WHY], answer="mine")  # type: ignore[arg-type]
