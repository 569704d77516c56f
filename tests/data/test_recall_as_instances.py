"""Recall stories as instances."""

from itertools import islice
from typing import Any

import pytest

from helpers.dataset_records import unchecked
from heta_lens.data import recall
from heta_lens.data.recall import stories


@pytest.mark.parametrize("knobs", [{}, {"hops": 2}, {"claim": True}], ids=str)
def test_stories_are_told_as_instances(knobs: dict[str, Any]) -> None:
    instances = list(recall.instances("test", seed=3, count=20, **knobs))
    told = list(islice(stories("test", seed=3, **knobs), 20))
    assert [one.id for one in instances] == [f"recall-test-3-{number:05d}" for number in range(20)]
    for instance, story in zip(instances, told, strict=True):
        counterfactual, paraphrase = instance.counterfactual, instance.paraphrase
        assert counterfactual is not None and paraphrase is not None
        assert [instance.text, counterfactual.text, paraphrase.text] == [
            *(story.text, story.counterfactual.text, story.paraphrase.text),
        ]
        assert (instance.answer, instance.choices) == (story.answer, story.choices)
        assert counterfactual.answer != instance.answer == paraphrase.answer
        assert counterfactual.answer in counterfactual.choices
        for one in (instance, counterfactual, paraphrase):
            assert len(one.support) == len(story.evidence_at) and len(one.question) == 1
            for start, stop in one.gold:
                assert any(left <= start and stop <= right for left, right in one.support)
            told_again = sorted([*one.support, *one.distractor, *one.question])
            assert " ".join(one.text[slice(*span)] for span in told_again) == one.text
        carried = {story.sentences[at].slots["place"] for at in story.evidence_at}
        assert carried <= set(instance.words("gold"))
        assert story.asking.shape in instance.template
        assert all(story.sentences[at].shape in instance.template for at in story.evidence_at)


def test_claims_answer_true_or_false() -> None:
    for instance in recall.instances(count=10, claim=True):
        assert instance.choices == (" true", " false") and instance.words("question")[0].startswith("Claim:")


@unchecked
def test_a_number_of_stories_is_whole() -> None:
    assert next(recall.instances()).id == "recall-test-0-00000"
    with pytest.raises(TypeError, match=r"count=2.5 must be a whole number"):
        recall.instances(count=2.5)  # type: ignore[arg-type]
