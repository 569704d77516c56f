"""Scores beside the tokens they belong to."""

import torch

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, predict
from heta_lens.methods.base import make_attribution


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


def test_words_that_the_tokenizer_does_not_know_are_noted() -> None:
    model = heta_lens.load_demo_model()
    for text, places in {"Anna put the xyzzy in the plugh": [4, 7], "Anna put the key in the": None}.items():
        ids = model.to_tokens(text)
        found = heta_lens.attribute(cache_of(model, ids), tokens=ids, method="input_x_gradient")
        assert found.diagnostics.unknown == places
        noted = "words without a token, unknown to this model: at 4, 7"
        assert (noted in found.notes) == (places is not None)
