"""Downstream tasks on the best tokens: verdicts, look-ups and retrained classifiers."""

from typing import Any

import numpy as np
import pytest
import torch

from helpers import zoo
from helpers.asking import plain_embeddings, plain_log_probs, predict
from helpers.evaluating import MODEL, N, double, prediction_of, some_scores
from heta_lens.metrics import exact_match_change, kept_mass, kept_share, look_up, retrained


def test_a_share_and_a_mass_of_tokens_are_kept_in_order() -> None:
    scores = double(0.1, 0.9, 0.5, 0.0, 0.5)
    assert kept_share(scores, range(5), 0.4) == [1, 2] == kept_share(scores, range(5), 0.3)
    assert kept_share(scores, [0, 3, 4], 0.4) == [0, 4]
    assert kept_mass(scores, range(5), 0.4) == [1] and kept_mass(scores, range(5), 0.5) == [1, 2]
    assert kept_mass(torch.ones(5), range(5), 0.4) == [0, 1] and kept_mass(torch.zeros(5), range(5), 0.4) == [0, 1]


@MODEL
def test_a_verdict_is_the_choice_the_model_finds_likeliest(build: Any) -> None:
    model = build()
    asked = prediction_of(model)
    log_probs, states = plain_log_probs(model, zoo.prompt(model, N)), plain_embeddings(model, zoo.prompt(model, N))
    context, scores = [2, 3, 4, 5, 6], some_scores()
    left = states.clone()
    left[[at for at in context if at not in kept_share(scores, context, 0.4)]] = 0
    after, before = log_probs(left).detach(), log_probs(states).detach()
    gains = (after - before).argsort()
    least, most = int(gains[0]), int(gains[-1])
    for own, other in ((most, least), (least, most)):
        found = exact_match_change(
            predict(model, asked.ids[None], own), scores, context=context, choices=[own, other], share=0.4
        )
        expected = float(after[own] > after[other]) - float(before[own] > before[other])
        assert found["change"] == 100 * expected
    with pytest.raises(ValueError, match=r"the target, .* is none of the choices"):
        exact_match_change(asked, scores, context=context, choices=[1, 2])


def test_a_little_tool_looks_things_up() -> None:
    story = "Ann put the key in the box. Bob put the key in the bag."
    for who, place in (("Ann", "box"), ("Bob", "bag")):
        assert look_up(story, f"Where did {who} put the key?", [" box", " bag", " bin"]) == f" {place}"
    assert look_up("Ann put", "Where?", [" box"]) == ""


def sorted_texts(count: int = 400) -> tuple[list[list[int]], list[int]]:
    """Of 10 words; one, anywhere, tells which of two kinds a text is of."""
    generator = np.random.default_rng(0)
    texts, labels = generator.integers(10, 60, (count, 10)), generator.integers(0, 2, count)
    texts[np.arange(count), generator.integers(0, 10, count)] = labels
    return texts.tolist(), labels.tolist()


@pytest.mark.slow
def test_without_the_word_that_tells_nothing_can_be_learned() -> None:
    texts, labels = sorted_texts()
    good = [torch.tensor([float(word < 2) for word in text]) for text in texts]
    found = retrained(texts, labels, good, shares=(0.1, 0.5))
    assert found.removed.shape == (3, 2) and (found.removed < 0.65).all() and (found.kept > 0.99).all()
    assert (found.whole > 0.95).all() and (found.nothing < 0.65).all()
    bad = retrained(texts, labels, [-one for one in good], shares=(0.1, 0.5))
    assert (bad.removed > 0.95).all() and (bad.kept < 0.65).all()
    assert (abs(bad.removed_by_chance[:, 1] - 0.75) < 0.12).all() and (
        abs(bad.kept_by_chance[:, 1] - 0.75) < 0.12
    ).all()
    again = retrained(texts, labels, good, shares=(0.1, 0.5))
    assert all(np.array_equal(getattr(again, name), getattr(found, name)) for name in vars(found))


def test_what_cannot_be_learned_is_refused() -> None:
    texts, labels = sorted_texts(4)
    scores = [torch.ones(10)] * 4
    with pytest.raises(ValueError, match="4 texts, 3 labels and 4 scores"):
        retrained(texts, labels[:3], scores)
