"""A context as text."""

import pytest

import heta_lens
from helpers.asking import cache_of
from heta_lens import Prediction
from heta_lens.data import recall


def test_a_passage_is_found_in_the_context() -> None:
    model, story = heta_lens.load_demo_model(), next(recall.stories("test", facts=3, hops=2))
    ids = model.to_tokens(story.text)
    asked = Prediction.from_cache(cache_of(model, ids), tokens=ids)
    for start, stop in (sentence.characters for sentence in story.evidence):
        passage = story.text[start:stop]
        assert "".join(asked.written[at] for at in asked.positions_of(passage)).strip() == passage.strip()
        assert asked.positions_of(passage.strip()[1:]) == asked.positions_of(passage)  # words are not split
    assert [asked.positions_of(story.text[slice(*told.characters)]) for told in story.evidence] == [
        list(told.tokens) for told in story.evidence
    ]
    for passage in ("not there", "the", "", " "):
        with pytest.raises(ValueError, match="times in the context: it must occur once"):
            asked.positions_of(passage)
