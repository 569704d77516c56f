"""Sentences that name no place."""

import pytest

from helpers.recall_stories import some
from heta_lens.data import recall

pytestmark = [pytest.mark.usefixtures("unchecked")]


def test_filler_names_no_place() -> None:
    places = {*recall.PLACES, *recall.ROOMS}
    for story in some(100, filler=5):
        idle = [one for one in story.sentences if "place" not in one.slots]
        assert len(idle) == 5
        assert not places & {word for one in idle for piece, _ in one.pieces for word in piece.split()}
