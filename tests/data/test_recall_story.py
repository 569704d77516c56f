"""Stories: their spans, counterfactuals, claims and paraphrases."""

from typing import Any

import pytest
from transformers import AutoTokenizer

from helpers.recall_stories import KNOBS, MORE, some, text_of
from heta_lens.model.loading import DEMO

pytestmark = [pytest.mark.usefixtures("unchecked")]


@pytest.mark.sample(quick=0, test=4)
@pytest.mark.parametrize("knobs", [*KNOBS, *MORE], ids=str)
def test_spans_line_up_with_the_tokenizer(knobs: dict[str, Any]) -> None:
    """Of a thousand stories each: thirteen thousand in all."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    for story in some(1000, **knobs):
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


@pytest.mark.sample(quick=6)
@pytest.mark.parametrize("knobs", [*KNOBS, *MORE], ids=str)
def test_the_parts_of_a_story_cover_it_once(knobs: dict[str, Any]) -> None:
    for story in some(50, **knobs):
        stretches = sorted([*story.evidence, *story.distractor, story.question], key=lambda one: one.tokens.start)
        covered = [token for stretch in stretches for token in stretch.tokens]
        assert covered == list(range(1, len(story.tokens) + 1))
        assert " ".join(text_of(story, one) for one in stretches) == story.text


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


def test_a_paraphrase_says_the_same_in_the_other_voice() -> None:
    for story in some(200, voice="active"):
        changed = story.paraphrase
        assert changed.paraphrase == story
        assert changed.answer == story.answer
        before, after = (text_of(one, one.evidence[0]) for one in (story, changed))
        assert sorted({*before[:-1].split()} - {"the"}) == sorted({*after[:-1].split()} - {"The", "the", "was", "by"})
        assert [text_of(story, one) for one in story.distractor] == [
            text_of(changed, one) for one in changed.distractor
        ]
        assert after.startswith("The ")
        assert f" by {story.asking.slots['who']}." in after
