"""Recall stories that tests share."""

from itertools import islice
from typing import Any

from heta_lens.data.recall import Story, Stretch, stories

KNOBS: list[dict[str, Any]] = [
    {},
    {"hops": 2},
    {"claim": True},
    {"facts": 12, "rivals": 5, "filler": 4},
    {"facts": 4, "hops": 2, "filler": 3, "distractors": "around"},
    {"facts": 3, "rivals": 2, "distractors": "before", "filler": 2, "distance": 1},
    {"facts": 4, "distractors": "after", "voice": "passive"},
    {"facts": 2, "rivals": 0, "voice": "active", "claim": True},
    {"facts": 5, "hops": 2, "filler": 1, "distance": 3},
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
