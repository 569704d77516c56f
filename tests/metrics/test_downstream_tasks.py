"""Verdicts and look-ups with only the highest scores."""

from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import plain_embeddings, plain_log_probs, predict
from helpers.metric_inputs import MODEL, N, double, prediction_of, some_scores
from heta_lens.metrics import exact_match_change, hit_change, kept_mass, kept_share, look_up


def test_a_share_and_a_mass_of_tokens_are_kept_in_order() -> None:
    scores = double(0.1, 0.9, 0.5, 0.0, 0.5)
    assert kept_share(scores, range(5), 0.4) == [1, 2] == kept_share(scores, range(5), 0.3)
    assert kept_share(scores, [0, 3, 4], 0.4) == [0, 4]
    assert kept_mass(scores, range(5), 0.4) == [1] and kept_mass(scores, range(5), 0.5) == [1, 2]
    assert kept_mass(torch.ones(5), range(5), 0.4) == [0, 1] and kept_mass(torch.zeros(5), range(5), 0.4) == [0, 1]
    for wrong in (0.0, 1.5):
        with pytest.raises(ValueError, match=f"share={wrong} must be above 0"):
            kept_share(scores, range(5), wrong)
        with pytest.raises(ValueError, match=f"mass={wrong} must be above 0"):
            kept_mass(scores, range(5), wrong)


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
    with pytest.raises(ValueError, match="the target 7 is none of the choices"):
        exact_match_change(asked, scores, context=context, choices=[1, 2])


def test_a_little_tool_looks_things_up() -> None:
    story = "Ann put the key in the box. Bob put the key in the bag."
    for who, place in (("Ann", "box"), ("Bob", "bag")):
        assert look_up(story, f"Where did {who} put the key?", [" box", " bag", " bin"]) == f" {place}"
    assert look_up("Ann put", "Where?", [" box"]) == ""
    asked = ("Where did Bob put the key?", " bag", [" box", " bag"])
    assert hit_change(look_up, story, "Bob in the bag", *asked) == 0
    assert hit_change(look_up, story, "Bob put the key", *asked) == -100
    assert hit_change(look_up, "the box", "Bob bag", *asked) == 100
