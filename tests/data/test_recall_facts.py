"""Facts: splits share no pair, and rivals are what they are said to be."""

from typing import Any

import numpy as np
import pytest

from helpers.recall_stories import some
from heta_lens.data.recall import Story, split_of

pytestmark = [pytest.mark.usefixtures("unchecked")]


def pairs(story: Story) -> set[tuple[str, ...]]:
    """(owner, thing, place) and (place, room), read off the sentences."""
    slots = [sentence.slots for sentence in story.sentences if "place" in sentence.slots]
    return {(one["place"], one["room"]) if "room" in one else (one["who"], one["what"], one["place"]) for one in slots}


def told_of(story: Story) -> set[tuple[str, ...]]:
    return pairs(story) | pairs(story.counterfactual)


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [{}, {"hops": 2}, {"claim": True}, {"wordings": "more"}], ids=str)
def test_splits_share_no_pair_and_no_text(knobs: dict[str, Any]) -> None:
    told = {split: some(400, split=split, **knobs) for split in ("train", "dev", "test")}
    for split, stories_of in told.items():
        assert {split_of(*pair) for story in stories_of for pair in told_of(story)} == {split}
    for one, other in (("train", "dev"), ("train", "test"), ("dev", "test")):
        for what in (lambda story: told_of(story) | pairs(story.paraphrase), lambda story: {story.text}):
            assert not set.union(*map(what, told[one])) & set.union(*map(what, told[other]))


@pytest.mark.parametrize(("facts", "rivals"), [(2, 0), (2, 1), (6, 0), (6, 2), (6, 5), (40, 3)])
def test_rivals_are_the_same_thing_of_others(facts: int, rivals: int) -> None:
    for story in some(30, facts=facts, rivals=rivals):
        asked = story.asking.slots
        held = [one.slots for one in story.sentences]
        assert len(held) == facts
        assert sum(one["what"] == asked["what"] for one in held) == rivals + 1
        assert sum(one["what"] == asked["what"] and one["who"] == asked["who"] for one in held) == 1
        assert len({one["place"] for one in held}) == facts


def test_owners_have_more_than_one_thing() -> None:
    """Or the owner alone would tell the place."""
    owned = [sum(one.slots["who"] == s.asking.slots["who"] for one in s.sentences) for s in some(300, facts=8)]
    assert np.mean(np.array(owned) > 1) > 0.6
