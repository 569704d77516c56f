"""Recall stories: splits, spans, counterfactuals and wordings; nothing but the evidence tells the answer."""

import hashlib
from itertools import islice
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import RidgeClassifier
from transformers import AutoTokenizer

from heta_lens.data import recall
from heta_lens.data.recall import ACTIVE, PASSIVE, Story, Stretch, split_of, stories
from heta_lens.model.loading import DEMO

KNOBS: list[dict[str, Any]] = [
    {},
    {"hops": 2},
    {"claim": True},
    {"facts": 12, "rivals": 5, "filler": 4},
    {"facts": 4, "hops": 2, "filler": 3, "distractors": "around"},
    {"facts": 3, "rivals": 2, "distractors": "before", "filler": 2},
    {"facts": 4, "distractors": "after", "voice": "passive"},
    {"facts": 2, "rivals": 0, "voice": "active", "claim": True},
    {"facts": 5, "hops": 2, "filler": 1},
    {"facts": 20, "hops": 2, "split": "test"},
]
MORE: list[dict[str, Any]] = [
    {"wordings": "more"},
    {"wordings": "more", "hops": 2, "split": "test", "filler": 2},
    {"wordings": "more", "claim": True, "facts": 4},
]


def some(count: int, **knobs: Any) -> list[Story]:
    return list(islice(stories(**knobs), count))


def text_of(story: Story, stretch: Stretch) -> str:
    return story.text[slice(*stretch.characters)]


pytestmark = [pytest.mark.usefixtures("unchecked")]


def test_the_same_seed_gives_the_same_bytes() -> None:
    told = "\n".join(story.text + story.answer + story.other for knobs in KNOBS for story in some(100, **knobs))
    assert hashlib.sha256(told.encode()).hexdigest() == (
        "e4e610a99590556772c8f76a7bb612e8884258cfa263ac7860704842b35c1f18"
    )


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
    told = some(3000, facts=4, hops=hops, filler=1, wordings=worded)
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
    told = some(3000, facts=4, hops=hops, filler=1)
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
    told = [one for story in some(1500, claim=True, facts=4) for one in (story, story.counterfactual)]
    truths = np.array([one.answer for one in told])
    bags = CountVectorizer(lowercase=False, token_pattern=r"\w+").fit_transform([one.text for one in told])
    assert accuracy(bags, truths) < near(1 / 2, len(told))
    counts = [[one.tokens.count(" " + one.asking.slots["place"]), len(one.tokens)] for one in told]
    assert accuracy(np.array(counts), truths) < near(1 / 2, len(told))
    assert abs((truths == " true").mean() - 1 / 2) < 0.03


def test_the_probes_would_see_a_shortcut() -> None:
    """Idle sentences in a story only when the last fact is the evidence."""
    first = some(1000, facts=4, distractors="after")
    last = some(1000, facts=4, distractors="before", filler=5)
    told = [story for both in zip(first, last, strict=True) for story in both]
    named = [[at for at, one in enumerate(story.sentences) if "place" in one.slots] for story in told]
    labels = np.array([ats.index(story.evidence_at[0]) for ats, story in zip(named, told, strict=True)])
    assert accuracy(np.array(named), labels) > 0.8


def pairs(*stories: Story) -> set[tuple[str, ...]]:
    """Read (owner, thing, place) and (place, room) off the sentences."""
    slots = [one.slots for story in stories for one in story.sentences if "place" in one.slots]
    return {(one["place"], one["room"]) if "room" in one else (one["who"], one["what"], one["place"]) for one in slots}


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [{}, {"hops": 2}, {"claim": True}, {"wordings": "more"}], ids=str)
def test_splits_share_no_pair_and_no_text(knobs: dict[str, Any]) -> None:
    told = {split: some(150, split=split, **knobs) for split in ("train", "dev", "test")}
    for split, stories_of in told.items():
        assert {split_of(*pair) for story in stories_of for pair in pairs(story, story.counterfactual)} == {split}
    for one, other in (("train", "dev"), ("train", "test"), ("dev", "test")):
        assert not {story.text for story in told[one]} & {story.text for story in told[other]}
        ours, theirs = (
            pairs(*(told_as for story in told[split] for told_as in (story, story.counterfactual, story.paraphrase)))
            for split in (one, other)
        )
        assert not ours & theirs


@pytest.mark.sample(quick=0, test=4)
@pytest.mark.parametrize("knobs", [*KNOBS, *MORE], ids=str)
def test_spans_line_up_with_the_tokenizer(knobs: dict[str, Any]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    for story in some(200, **knobs):
        read = tokenizer(story.text, return_offsets_mapping=True)
        assert tokenizer.unk_token_id not in read["input_ids"]
        assert [" " + story.text, story.tokens] == [
            tokenizer.decode(read["input_ids"][1:]),
            tokenizer.convert_ids_to_tokens(read["input_ids"])[1:],
        ]
        for stretch in (*story.evidence, *story.gold, *story.distractor, story.question):
            offsets = [read["offset_mapping"][token] for token in stretch.tokens]
            blank = story.text[offsets[0][0]] == " "
            assert (offsets[0][0] + blank, offsets[-1][1]) == stretch.characters
        assert len(tokenizer(story.answer)["input_ids"]) == 2


@pytest.mark.parametrize("worded", ["trained", "more"])
@pytest.mark.parametrize("hops", [1, 2])
def test_the_evidence_tells_the_answer(hops: Any, worded: Any) -> None:
    for story in some(200, hops=hops, wordings=worded):
        asked = story.asking.slots
        told = [text_of(story, stretch) for stretch in story.evidence]
        gold = [text_of(story, stretch) for stretch in story.gold]
        assert asked["who"] in told[0]
        assert asked["what"] in told[0].rstrip(".").split()
        assert len(told) == hops
        assert story.answer.strip() in told[-1]
        assert {asked["who"], asked["what"], story.answer.strip()} <= set(gold)
        assert len(gold) == (3 if hops == 1 else 5)
        if hops == 2:
            (place,) = set(gold[:3]) - {asked["who"], asked["what"]}
            assert place in told[1]
        assert story.answer in story.choices
        assert len(set(story.choices)) == len(story.choices) == 6


@pytest.mark.sample(quick=3)
@pytest.mark.parametrize("knobs", [*KNOBS, *MORE], ids=str)
def test_a_counterfactual_differs_in_the_evidence_and_in_the_answer(knobs: dict[str, Any]) -> None:
    for story in some(100, **knobs):
        changed = story.counterfactual
        differ = {at for at, both in enumerate(zip(story.tokens, changed.tokens, strict=True), 1) if len(set(both)) > 1}
        told = differ & {*story.evidence[-1].tokens}
        assert len(told) == 1
        assert told <= {token for stretch in story.gold for token in stretch.tokens}
        assert len(differ) == (2 if knobs.get("claim") else 1)
        assert changed.answer != story.answer
        assert changed.answer in changed.choices
        assert changed.asking == story.asking
        assert [one.tokens for one in changed.evidence] == [one.tokens for one in story.evidence]
        assert changed.counterfactual == story
        if not knobs.get("claim"):
            assert story.answer not in changed.tokens
            assert changed.answer not in story.tokens


@pytest.mark.parametrize("worded", ["trained", "more"])
def test_a_claim_is_true_when_the_evidence_says_so(worded: Any) -> None:
    for story in some(300, claim=True, wordings=worded):
        for one in (story, story.counterfactual):
            (told,) = (one.sentences[at] for at in one.evidence_at)
            assert one.answer == (" true" if one.asking.slots["place"] == told.slots["place"] else " false")
            assert {told.slots["who"], told.slots["what"]} == {one.asking.slots["who"], one.asking.slots["what"]}


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


@pytest.mark.parametrize("knobs", [{}, {"hops": 2}, {"claim": True}], ids=str)
def test_stories_are_told_as_instances(knobs: dict[str, Any]) -> None:
    instances = list(recall.instances("test", seed=3, count=20, **knobs))
    assert [one.id for one in instances] == [f"recall-test-3-{number:05d}" for number in range(20)]
    for instance, story in zip(instances, stories("test", seed=3, **knobs), strict=False):
        counterfactual, paraphrase = instance.counterfactual, instance.paraphrase
        assert counterfactual is not None and paraphrase is not None
        assert (instance.text, instance.answer, instance.choices) == (story.text, story.answer, story.choices)
        assert (counterfactual.text, paraphrase.text) == (story.counterfactual.text, story.paraphrase.text)
        assert counterfactual.answer != instance.answer == paraphrase.answer
        for one in (instance, counterfactual, paraphrase):
            assert len(one.support) == len(story.evidence_at) and len(one.question) == 1
            for start, stop in one.gold:
                assert any(left <= start and stop <= right for left, right in one.support)
            parts = sorted([*one.support, *one.distractor, *one.question])
            assert " ".join(one.text[slice(*span)] for span in parts) == one.text
        assert story.asking.shape in instance.template
        assert all(story.sentences[at].shape in instance.template for at in story.evidence_at)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"facts": 1}, "facts=1 must be 2 to 40"),
        ({"facts": 3, "rivals": 3}, "rivals=3 must be 0 to 2"),
        ({"claim": True, "hops": 2}, "claim=True is about one fact"),
        ({"wordings": "more", "voice": "active"}, "voice='active' has no effect with wordings='more'"),
        ({"facts": 2, "distractors": "around"}, "needs two sentences to stand around"),
    ],
    ids=str,
)
def test_impossible_options_are_refused_at_once(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stories(**knobs)
    with pytest.raises(TypeError, match=r"count=2\.5"):
        recall.instances(count=2.5)  # type: ignore[arg-type]
