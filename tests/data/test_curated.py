"""The curated set: released instances, new instances of NarrativeQA and SciQ, and annotations of evidence."""

import json
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from helpers.dataset_records import CURATED, DATA, NARRATIVES, NINA, science, shared, unchecked
from heta_lens.data import curated
from heta_lens.data.curated import FUNCTION_WORDS, answer_words
from heta_lens.data.suites import suite


def test_released_instances_are_read_with_their_labels() -> None:
    (instance,) = curated.released([CURATED])
    assert instance.text == (
        "A sailor leaves his plant at home. Leaves make sugar: the leaves of a plant catch light. "
        "Question: Which part of a plant catches light? Answer:"
    )
    assert (instance.id, instance.answer, instance.template) == ("heta_qa_7", " leaves", "sciq_2")
    assert instance.words("gold") == ["Leaves", "leaves", "plant", "light"]
    assert instance.words("support") == [CURATED["sciq_support_segment"]]
    assert instance.words("distractor") == [CURATED["narrative_segment"]]
    assert instance.words("question") == ["Question: Which part of a plant catches light? Answer:"]


def test_repeated_instances_are_left_out_by_the_number() -> None:
    records = [CURATED, CURATED | {"id": "again"}, CURATED | {"id": "other", "important_words": ["plant"]}]
    with pytest.warns(UserWarning, match="1 of 3 instances repeat another and are left out"):
        assert [one.id for one in curated.released(records)] == ["heta_qa_7", "other"]


@unchecked
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": None}, "the curated data's record 0: it has no answer, but id"),
        ({"question": 5}, "its question is 5, and must be text"),
        ({"narrative_segment": "Another."}, "its input_text does not hold the segment 'Another.'"),
        ({"important_words": ["lea"]}, "the important word 'lea' is not a word of its support"),
        ({"important_words": ["sailor"]}, "the important word 'sailor' is not a word of its support"),
    ],
)
def test_a_wrong_record_of_the_curated_data_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        curated.released([CURATED | change])


@pytest.mark.slow
@shared
@pytest.mark.parametrize(("file", "left_out"), [("100_unique", 0), ("2000", 1900)])
def test_all_released_instances_are_read(file: str, left_out: int) -> None:
    path = DATA / "heta_curated" / f"heta_qa_dataset_{file}.json"
    records = json.loads(path.read_text())["examples"]
    warned = pytest.warns(UserWarning, match=f"{left_out} of {len(records)} instances") if left_out else nullcontext()
    with warned:
        instances = suite("curated", path, separator="<s>", cue=None)
    texts = {record["input_text"]: record for record in records}
    assert len(instances) == len({one.text for one in instances}) == 100 and {one.text for one in instances} == set(
        texts
    )
    for one in instances:
        record = texts[one.text]
        assert one.words("support") == [record["sciq_support_segment"]]
        assert {word.lower() for word in one.words("gold")} == set(record["important_words"])
        # The release counts words of the support; so can we.
        words = one.words("support")[0].split()
        marked = {len(one.text[one.support[0].start : start].split()) for start, _ in one.gold}
        assert marked == set(record["important_word_indices_in_sciq_support"]) and max(marked) < len(words)


def test_pairs_join_a_story_and_a_passage() -> None:
    (instance,) = curated.pairs(NARRATIVES, [science()])
    assert instance.text == (
        "Ann sails to a far island. Green plants catch light. They need it. Question: What do plants catch? Answer:"
    )
    assert (instance.id, instance.answer) == ("curated-00000", " light")
    assert instance.words("distractor") == ["Ann sails to a far island."]
    assert instance.words("support") == ["Green plants catch light. They need it."]
    assert instance.words("gold") == ["plants", "catch", "light"]
    assert instance.choices == (" dust", " light", " rain", " wind")
    (bare,) = curated.pairs(NARRATIVES, [science()], cue=None)
    assert bare.text.endswith("catch?")


@pytest.mark.parametrize(
    "record",
    [
        science(support=" "),
        science() | {"support": None},
        science(answer="sunlight"),
        science(answer="ligh"),
        science(question="Which light do plants catch?"),
    ],
    ids=["blank", "none", "elsewhere", "part of a word", "told by the question"],
)
def test_questions_whose_passage_is_not_what_tells_the_answer_are_skipped(record: dict[str, Any]) -> None:
    assert [one.id for one in curated.pairs(NARRATIVES, [record, science()])] == ["curated-00001"]


def test_stories_that_tell_the_answer_too_are_not_drawn() -> None:
    told = {
        one.words("distractor")[0]
        for seed in range(20)
        for one in curated.pairs(
            NARRATIVES, [science(), science(answer="catch", question="Plants do what?")], seed=seed
        )
        if one.answer == " light"
    }
    assert told == {"Ann sails to a far island."}
    assert list(curated.pairs(NARRATIVES[3:4], [science()])) == []


@unchecked
@pytest.mark.parametrize(
    ("narratives", "question", "message"),
    [
        (NARRATIVES[4:], science(), "narratives hold no summary"),
        ([{"document": {"id": "d"}}], science(), "NarrativeQA's record 0: it has no summary"),
        ([{"document": "d"}], science(), "NarrativeQA's record 0: its document is 'd'"),
        (NARRATIVES, {"question": "What?"}, "SciQ's record 0: it has no correct_answer"),
    ],
)
def test_wrong_records_make_no_pairs(narratives: Any, question: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        list(curated.pairs(narratives, [question]))


def test_answer_words_are_those_of_answer_and_question() -> None:
    def marked(**changes: Any) -> list[str]:
        return [NINA.text[slice(*word)] for word in answer_words(replace(NINA, **changes))]

    assert marked() == ["key", "drawer"]
    assert marked(support=()) == ["key", "drawer", "key"]
    bare = {"choices": (), "question": ()}
    assert marked(answer=" Drawer", **bare) == ["drawer"] and marked(answer=" nina", **bare) == ["Nina"]
    assert {"in", "the"} <= FUNCTION_WORDS
    assert marked(answer=" in the", **bare) == ["the", "in", "the"] and marked(answer=None, **bare) == []
