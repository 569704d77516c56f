"""Recall stories: their options, and that nothing but the evidence tells the answer."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import RidgeClassifier

from helpers.recall_stories import some
from heta_lens.data.recall import stories

pytestmark = [pytest.mark.usefixtures("unchecked")]


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        (
            {},
            "The sweater was kept in the cage by Hana. The sweater was kept in the fireplace by Alba. "
            "Question: Where was the sweater put by Alba? Answer: in the",
        ),
        (
            {"hops": 2},
            "The sweater was kept in the cage by Hana. The sweater was kept in the fireplace by Alba. In the chapel "
            "there is the fireplace. The cage stands in the warehouse. "
            "Question: Which room holds the sweater of Alba? Answer: in the",
        ),
        (
            {"claim": True},
            "The sweater was kept in the rucksack by Hana. The sweater was kept in the cage by Alba. "
            "Claim: The sweater of Alba is in the rucksack. True or false? Answer:",
        ),
    ],
    ids=["place", "room", "claim"],
)
def test_stories_read_like_this(knobs: dict[str, Any], text: str) -> None:
    assert next(stories("test", facts=2, **knobs)).text == text


@pytest.mark.parametrize("hops", [1, 2])
def test_distractors_stand_where_they_are_wanted(hops: Any) -> None:
    for where, count in (("before", 1), ("after", 1), ("around", 2)):
        for story in some(100, distractors=where, hops=hops, facts=3):
            assert len(story.distractor) == count
            evidence = sorted(story.evidence_at)
            assert all(b - a == 1 for a, b in pairwise(evidence))
            assert (evidence[0] == 0) == (where == "after")
            assert (evidence[-1] == len(story.sentences) - 1) == (where == "before")


@pytest.mark.parametrize("where", ["anywhere", "before", "around"])
@pytest.mark.parametrize("hops", [1, 2])
def test_distance_is_counted_in_sentences(where: Any, hops: Any) -> None:
    for story in some(50, distractors=where, facts=4, hops=hops, filler=3, distance=2):
        assert len(story.sentences) - 1 - max(story.evidence_at) == 2


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"split": "val"}, "split='val' is not one of train, dev, test"),
        ({"facts": 1}, "facts=1 must be 2 to 40"),
        ({"facts": 41}, "facts=41 must be 2 to 40"),
        ({"facts": 21, "hops": 2, "split": "test"}, "facts=21 must be 2 to 20"),
        ({"facts": 3, "rivals": 3}, "rivals=3 must be 0 to 2"),
        ({"rivals": -1}, "rivals=-1 must be 0 to 5"),
        ({"hops": 3}, "hops=3 is not one of 1, 2"),
        ({"distractors": "beside"}, "distractors='beside' is not one of anywhere, before, after, around"),
        ({"filler": -1}, "filler=-1 must be 0 or more"),
        ({"distance": 6}, "distance=6 must be 0 to 5"),
        ({"distance": 1, "distractors": "before"}, "distance=1 must be 0 to 0"),
        ({"voice": "middle"}, "voice='middle' is not one of active, passive"),
        ({"claim": True, "hops": 2}, "claim=True is about one fact"),
        ({"wordings": "many"}, "wordings='many' is not one of trained, more"),
        ({"wordings": "more", "voice": "active"}, "voice='active' has no effect with wordings='more'"),
        ({"facts": 2, "distractors": "around"}, "needs two sentences to stand around"),
    ],
    ids=str,
)
def test_knobs_that_cannot_be_are_refused_at_once(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stories(**knobs)


def accuracy(features: Any, labels: np.ndarray) -> float:
    """Of a probe trained on three quarters, on the rest."""
    cut = 3 * len(labels) // 4
    probe = RidgeClassifier(alpha=10).fit(features[:cut], labels[:cut])
    return float((probe.predict(features[cut:]) == labels[cut:]).mean())


def near(chance: float, count: int) -> float:
    """What a guesser hardly ever exceeds: four standard errors above chance."""
    return chance + 4 * float(np.sqrt(chance * (1 - chance) / (count / 4)))


@pytest.mark.sample(quick=0, test=1)
@pytest.mark.parametrize(("hops", "worded"), [(1, "trained"), (2, "trained"), (1, "more")])
def test_a_bag_of_words_does_not_tell_the_answer(hops: Any, worded: Any) -> None:
    """The probe may choose among the places named, which is guessing one of four."""
    told = some(6000, facts=4, hops=hops, filler=1, wordings=worded)
    bags = CountVectorizer(lowercase=False, token_pattern=r"\w+").fit_transform([one.text for one in told])
    answers = np.array([one.answer for one in told])
    cut = 3 * len(told) // 4
    probe = RidgeClassifier(alpha=10).fit(bags[:cut], answers[:cut])
    scores = dict(zip(probe.classes_, probe.decision_function(bags[cut:]).T, strict=True))
    guesses = [max(one.choices, key=lambda c: scores[c][at]) for at, one in enumerate(told[cut:])]
    assert float((np.array(guesses) == answers[cut:]).mean()) < near(1 / 4, len(told))


@pytest.mark.slow
@pytest.mark.parametrize("hops", [1, 2])
def test_neither_position_nor_shape_tells_the_answer(hops: Any) -> None:
    """Which of the sentences that name an answer is it? From where they all stand, and from how each is worded."""
    told = some(6000, facts=4, hops=hops, filler=1)
    kind = "room" if hops == 2 else "who"
    places, labels, shapes = [], [], []
    for story in told:
        named = [at for at, one in enumerate(story.sentences) if "place" in one.slots and kind in one.slots]
        labels.append(named.index(story.evidence_at[-1]))
        places.append(named)
        shapes.append([f"{rank}{story.sentences[at].shape}" for rank, at in enumerate(named)])
    limit = near(1 / 4, len(told))
    assert accuracy(np.array(places), np.array(labels)) < limit
    worded = CountVectorizer(analyzer=lambda one: one).fit_transform(shapes)
    assert accuracy(worded, np.array(labels)) < limit


@pytest.mark.slow
def test_neither_words_nor_length_tell_whether_a_claim_is_true() -> None:
    told = [one for story in some(3000, claim=True, facts=4) for one in (story, story.counterfactual)]
    truths = np.array([one.answer for one in told])
    bags = CountVectorizer(lowercase=False, token_pattern=r"\w+").fit_transform([one.text for one in told])
    assert accuracy(bags, truths) < near(1 / 2, len(told))
    counts = [[one.tokens.count(" " + one.asking.slots["place"]), len(one.tokens)] for one in told]
    assert accuracy(np.array(counts), truths) < near(1 / 2, len(told))
    assert abs((truths == " true").mean() - 1 / 2) < 0.03


def test_the_probes_would_see_a_shortcut() -> None:
    """Idle sentences behind the last fact when that is the evidence, and anywhere when it is the first."""
    first = some(1000, facts=4, distractors="after", filler=2, distance=5)
    last = some(1000, facts=4, distractors="before", filler=2, distance=2)
    told = [story for both in zip(first, last, strict=True) for story in both]
    named = [[at for at, one in enumerate(story.sentences) if "place" in one.slots] for story in told]
    labels = np.array([ats.index(story.evidence_at[0]) for ats, story in zip(named, told, strict=True)])
    assert accuracy(np.array(named), labels) > 0.8
