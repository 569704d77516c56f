"""Downstream tasks on the best tokens: verdicts and look-ups."""

from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import plain_embeddings, plain_log_probs, predict
from helpers.evaluating import MODEL, N, double, prediction_of, some_scores
from heta_lens.metrics import exact_match_change, kept_mass, kept_share, look_up


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
