"""Scores beside the tokens they belong to."""

import torch

from helpers import zoo
from helpers.asking import predict
from heta_lens.prediction.make_attribution import make_attribution


def test_scores_stand_beside_their_tokens_with_what_is_known() -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, 5), (7, 9))
    scores = torch.arange(5.0, requires_grad=True)
    attribution = make_attribution(prediction, "mine", scores, {"half": scores / 2}, {"steps": 3}, {"forwards": 2})
    assert attribution.scores.tolist() == [0, 1, 2, 3, 4]
    assert not attribution.scores.requires_grad
    assert attribution.tokens == prediction.written
    assert attribution.target == (7, 9)
    assert attribution.options["steps"] == 3
    facts = attribution.diagnostics
    assert len(facts["target_log_prob"]) == len(facts["target_rank"]) == 2
    assert (facts["forwards"], facts["prefix_reuse"], facts["user_hooks"]) == (2, "not needed", 0)
