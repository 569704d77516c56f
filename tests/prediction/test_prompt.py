"""A prompt: its clean states, its parts, and how much of it is run at once."""

import logging

import pytest
import torch

from helpers import zoo
from helpers.asking import predict


def test_a_part_alone_is_a_prompt_of_its_own() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)
    prompt = predict(model, ids, 7).prompt
    alone, expected = prompt.alone(2, 5), predict(model, ids[:, 2:5], 7).prompt
    torch.testing.assert_close(alone.log_probs[3], expected.log_probs[3])
    torch.testing.assert_close(alone.patterns(1), expected.patterns(1))
    torch.testing.assert_close(alone.embeddings, expected.embeddings)


def test_prefixes_are_kept_when_they_are_first_needed() -> None:
    model = zoo.bridge("gpt2")
    prompt = predict(model, zoo.prompt(model, 6), 7).prompt
    assert prompt.reuse == "not needed"
    assert prompt.kept is not None
    assert prompt.reuse == "on"


def test_the_batch_size_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    model = zoo.bridge("gpt2")
    prompt = predict(model, zoo.prompt(model, 6), 7).prompt
    with caplog.at_level(logging.DEBUG, logger="heta_lens"):
        assert prompt.batches(5, 6).of(6) == 5
    assert "at most 5 copies of 6 positions at once" in caplog.text
