"""The 64 templates share no wording, and are taken in turn."""

from collections import Counter
from typing import Any

import pytest

from helpers.recall_stories import MORE, some, text_of
from heta_lens.data import recall
from heta_lens.data.recall import ACTIVE, PASSIVE

pytestmark = [pytest.mark.usefixtures("unchecked")]


def slots_of(shape: str) -> Counter[str]:
    return Counter(word[1:-1] for word in shape.split() if word.startswith("{"))


def test_templates_share_no_wording_of_facts_or_questions() -> None:
    """So each is evidence of its own. Each fact names owner, thing and place once, as the gold words are counted."""
    facts, questions = zip(*recall.WORDINGS, strict=True)
    assert len(recall.WORDINGS) == len(set(facts)) == len(set(questions)) == 64
    for shape in facts:
        slots = slots_of(shape)
        assert slots["who"] == slots["what"] == slots["place"] == 1 and not slots["room"], shape
    for shape in (*questions, *recall.ROOM_QUESTIONS):
        slots = slots_of(shape)
        assert slots.keys() == {"who", "what"} and shape.endswith(" in the"), shape
    assert {tuple(sorted(slots_of(shape).items())) for shape in recall.LOCATIONS} == {(("place", 1), ("room", 1))}
    for shape in recall.CLAIMS:
        assert slots_of(shape).keys() == {"who", "what", "place"} and shape.endswith(" ? Answer :"), shape


@pytest.mark.parametrize("knobs", MORE, ids=str)
def test_every_template_comes_once_before_one_comes_again(knobs: dict[str, Any]) -> None:
    told = [story.template for story in some(192, **knobs)]
    assert [len(set(told[start : start + 64])) for start in (0, 64, 128)] == [64, 64, 64]
    assert set(Counter(told).values()) == {3}
    assert told[:64] != told[64:128]


def test_all_facts_of_a_story_are_worded_alike() -> None:
    """So the wording does not tell which of them the question is about."""
    for story in some(100, hops=2, wordings="more"):
        for slot in ("who", "room"):
            assert len({one.shape for one in story.sentences if slot in one.slots}) == 1


@pytest.mark.parametrize("knobs", MORE, ids=str)
def test_a_paraphrase_changes_one_sentence_to_another_voice(knobs: dict[str, Any]) -> None:
    for story in some(128, **knobs):
        changed = story.paraphrase
        assert (changed.answer, changed.asking, changed.choices) == (story.answer, story.asking, story.choices)
        assert changed.counterfactual.answer == story.counterfactual.answer
        changes = [before != after for before, after in zip(story.sentences, changed.sentences, strict=True)]
        (at,) = [at for at in story.evidence_at if "who" in story.sentences[at].slots]
        assert changes == [here == at for here in range(len(changes))]
        (shape, slots), told = (story.sentences[at].shape, story.sentences[at].slots), changed.sentences[at]
        verb = slots["verb"] if "{verb}" in shape else "put"
        assert {verb, slots["who"], slots["what"], slots["place"]} <= {piece.strip() for piece, _ in told.pieces}
        assert told.shape == (ACTIVE if shape == PASSIVE else PASSIVE)
        gold = [sorted(text_of(one, stretch) for stretch in one.gold) for one in (story, changed)]
        assert gold[0] == gold[1]
