"""LongRA, TellMeWhy and WikiBio as instances, and the words and sentences of texts."""

import random
import re
from dataclasses import replace
from typing import Any

import pytest

from helpers.dataset_records import DATA, LONG, LONGRA, WHY, shared, unchecked
from heta_lens._util.text import END
from heta_lens.data import datasets
from heta_lens.data.datasets import split_sentences
from heta_lens.data.suites import suite


def test_longra_marks_the_antecedent_and_the_remark() -> None:
    (instance,) = datasets.longra_instances([LONGRA])
    assert (instance.id, instance.answer, instance.template) == ("longra-000", " Oslo", "capital")
    assert instance.words("gold") == instance.words("support") == ["Norway"]
    assert instance.words("distractor") == ["(I slept)."]
    assert datasets.without(instance.text, instance.distractor) == "I landed in Norway. I stayed in the capital,"


def test_kept_are_those_that_the_model_answers_with_and_without_the_distractor() -> None:
    (instance,) = datasets.longra_instances([LONGRA])
    short = "I landed in Norway. I stayed in the capital,"

    def kept(answers: dict[str, str]) -> bool:
        return list(datasets.kept([instance], answers.__getitem__)) == [instance]

    assert kept({LONG: " Oslo", short: "Oslo"})
    assert not kept({LONG: " Oslo", short: " a"})
    assert not kept({LONG: " a", short: " Oslo"})
    assert not kept({LONG: " Os", short: " Os"})
    with pytest.raises(ValueError, match="'longra-000' has no answer to compare with the model's"):
        list(datasets.kept([replace(instance, answer=None)], lambda _: ""))


@shared
def test_all_of_longra_is_read() -> None:
    instances = suite("longra", DATA / "longra" / "longra_reconstructed.jsonl")
    assert len({one.id for one in instances}) == 221 and len({one.template for one in instances}) == 13
    for one in instances:
        (remark,) = one.words("distractor")
        left = datasets.without(one.text, one.distractor)
        assert remark.startswith("(") and remark.endswith(").") and one.answer == " " + (one.answer or "").strip()
        assert not any(dirt in left for dirt in ("  ", "(", ")", " ."))
        assert len(left) == len(one.text) - len(remark) - 1


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
    first, second = datasets.tellmewhy_instances([WHY, other])
    assert first.template == second.template and first.id != second.id


def sentences_by_definition(text: str) -> list[str]:
    """Search every sentence for an abbreviation at its end."""
    abbreviated = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Rev|Col|Capt|Gen|Lt|Sgt|vs|etc)|\b[A-Z])\.$")
    found, start = [], 0
    for end in re.finditer(r"(?<=[.!?])[\"'”’)]*\s+(?=[\"'“‘(]?[A-Z])", text):
        if not abbreviated.search(text[start : end.start()]):
            found.append(text[start : end.end()].strip())
            start = end.end()
    return [*found, text[start:].strip()] if text[start:].strip() else found


def ends_by_definition(text: str) -> list[int]:
    return [end.end() for end in re.finditer(r"[.!?]+[\"')\]”’»]*(?=\s|$)|\n+", text)]


def test_sentences_are_split_as_defined() -> None:
    parts = [
        "J. R. ",
        "Mr. ",
        "xMr. ",
        "etc. ",
        "Dr.",
        "Éa. ",
        'Prof." Q',
        "b c ",
        "A",
        ".",
        "!",
        "?..",
        '"',
        "')",
        " ",
    ]
    generator = random.Random(0)
    for _ in range(400):
        text = "".join(generator.choices(parts, k=generator.randint(1, 30)))
        assert split_sentences(text) == sentences_by_definition(text)
        assert [end.end() for end in END.finditer(text)] == ends_by_definition(text)


@pytest.mark.parametrize(
    "change",
    [{"helpful_sentences": []}, {"helpful_sentences": None}, {"original_narrative_form": ["Another."]}],
    ids=str,
)
def test_a_story_without_a_known_helpful_sentence_is_not_marked(change: dict[str, Any]) -> None:
    (instance,) = datasets.tellmewhy_instances([WHY | change])
    assert instance.support == instance.distractor == ()
    assert instance.text == f"{WHY['narrative']} {WHY['question']}"
    (bare,) = datasets.tellmewhy_instances([{"narrative": "Kim left.", "question": "Why did Kim leave?"}])
    assert (bare.id, bare.text) == ("tellmewhy-00000", "Kim left. Why did Kim leave?")


@unchecked
@pytest.mark.parametrize(
    ("make", "record", "message"),
    [
        (datasets.longra_instances, LONGRA | {"target": None}, "^LongRA's record 0: it has no target, but category"),
        (datasets.longra_instances, LONGRA | {"target": 3}, "its target is 3"),
        (datasets.longra_instances, LONGRA | {"antecedent_span": [11, 18]}, "antecedent_span says ' Norway', not"),
        (datasets.longra_instances, LONGRA | {"distractor_span": [20, 99]}, r"the span \(20, 99\) of distractor"),
        (datasets.tellmewhy_instances, WHY | {"narrative": None}, "^TellMeWhy's record 0: it has no narrative"),
        (datasets.tellmewhy_instances, WHY | {"helpful_sentences": "oh no"}, "its helpful_sentences is 'oh no'"),
        (datasets.wikibio_instances, {"text": "…"}, "^WikiBio's record 0: it has no wiki_bio_text, but text"),
    ],
)
def test_a_wrong_record_is_refused(make: Any, record: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        list(make([record]))
