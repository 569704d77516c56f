"""The stories of `heta_lens.data.recall` as instances."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from heta_lens._util.options import check_count
from heta_lens.data.instance import OTHERS, Instance
from heta_lens.data.recall import stories
from heta_lens.data.recall_facts import Split
from heta_lens.data.recall_story import Story


def instances(split: Split = "test", *, seed: int = 0, count: int | None = None, **knobs: Any) -> Iterator[Instance]:
    """Stories to explain, each with its counterfactual and its paraphrase; endless, if ``count`` is None.

    ``knobs`` are those of `heta_lens.data.recall.stories`.
    """
    if count is not None:
        check_count("count", count, 0)
    numbered = enumerate(islice(stories(split, seed=seed, **knobs), count))
    return (instance_of(story, f"recall-{split}-{seed}-{number:05d}") for number, story in numbered)


def instance_of(story: Story, id: str) -> Instance:
    """A story as an instance, with its counterfactual and its paraphrase."""
    others = {name: _alone(getattr(story, name), f"{id}-{name}") for name in OTHERS}
    return replace(_alone(story, id), **others)


def _alone(story: Story, id: str) -> Instance:
    return Instance(
        id=id,
        text=story.text,
        answer=story.answer,
        template=story.template,
        support=tuple(stretch.characters for stretch in story.evidence),
        gold=tuple(stretch.characters for stretch in story.gold),
        distractor=tuple(stretch.characters for stretch in story.distractor),
        question=(story.question.characters,),
        choices=story.choices,
    )
