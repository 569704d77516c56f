"""How the demo model is trained: what it reads, and that training goes on where it was stopped."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from benchmarks import demo_training as train
from benchmarks.demo_lessons import LESSONS, page
from benchmarks.demo_training import vocabulary
from heta_lens.data import recall
from heta_lens.data.recall import Draw, split_of
from heta_lens.model.loading import DEMO


def test_the_packaged_tokenizer_is_the_one_of_the_script(tmp_path: Path) -> None:
    train.demo_tokenizer().save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_text() == (DEMO / name).read_text()
    assert AutoTokenizer.from_pretrained(DEMO).get_vocab() == vocabulary()


@pytest.mark.parametrize("name", LESSONS)
def test_lessons_are_of_the_training_split_and_fit_the_context(name: str) -> None:
    draw = Draw("a test")
    owners, things, places, rooms = (set(some) for some in (recall.NAMES, recall.OBJECTS, recall.PLACES, recall.ROOMS))
    for _ in range(20):
        one = page(draw, LESSONS[name])
        assert len(one.questions) == LESSONS[name].asked
        assert {*one.story} <= vocabulary().keys()
        for question in one.questions:
            assert 1 + len(one.story) + len(question.pieces) <= 1024
            asked = [piece.strip() for piece in question.pieces]
            who, what = (next((word for word in asked if word in some), None) for some in (owners, things))
            place, answer = question.place.strip(), question.answer.strip()
            assert place in places
            assert answer == place or answer in rooms | {"true", "false"}
            if answer in rooms:
                assert split_of(place, answer) == "train"
            if who and what:
                named = next((word for word in asked if word in places), place)  # by a claim, true or not
                assert split_of(who, what, place) == split_of(who, what, named) == "train"
                assert f" {who}" in one.story
            assert f" {place}" in one.story


def test_a_question_is_read_as_if_it_were_the_only_one() -> None:
    torch.manual_seed(0)
    model = train.untrained().eval()
    one = page(Draw("a test"), LESSONS["claims"])
    batch = train.batch_of([page(Draw("another"), LESSONS["rooms"]), one])
    with torch.no_grad():
        together = model(batch.ids, attention_mask=batch.mask, position_ids=batch.places).logits[1]
        ends = batch.answers[1].nonzero().flatten()
        assert len(ends) == len(one.questions)
        for end, question in zip(ends, one.questions, strict=True):
            ids = [vocabulary()[piece] for piece in ["<bos>", *one.story, *question.pieces]]
            torch.testing.assert_close(together[end], model(torch.tensor([ids])).logits[0, -1], atol=1e-4, rtol=1e-4)
            assert int(batch.following[1, end]) == vocabulary()[question.answer]
            assert int(batch.found[1, end]) == vocabulary()[question.place]
