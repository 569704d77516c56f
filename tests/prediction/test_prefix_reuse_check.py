"""Whether runs continue from kept keys and values is tried, and the reason is given where they do not."""

from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import predict
from heta_lens.prediction.prefix_reuse_check import reusable_prefix


def tried(build: Any, length: int = 6, *, hooked: bool = False, wrong: float = 0.0) -> tuple[Any, str]:
    """Of a prompt whose clean prediction is off by so much."""
    model = build()
    prediction = predict(model, zoo.prompt(model, length), 7)
    prompt = prediction.prompt
    log_probs = (prediction.log_probs + wrong * torch.arange(len(prediction.log_probs))).log_softmax(-1)
    return reusable_prefix(prompt.adapter, prompt.ids, prompt.embeddings, log_probs, hooked)


@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama)|hooked-llama"))
def test_prefixes_are_kept_where_a_run_from_the_middle_predicts_the_same(build: Any) -> None:
    kept, why = tried(build)
    assert (len(kept), why) == (2, "on")


@pytest.mark.parametrize("build", zoo.models("bridge-gpt2"))
def test_a_run_that_predicts_something_else_is_noticed(build: Any) -> None:
    kept, why = tried(build, wrong=1e-3)
    assert kept is None
    assert why.startswith("off: continuing from kept keys and values changes the prediction by")


@pytest.mark.parametrize("build", zoo.models("bridge-native"))
def test_a_model_that_keeps_nothing_is_run_in_full(build: Any) -> None:
    kept, why = tried(build)
    assert kept is None and why.startswith("off: ")


@pytest.mark.parametrize("build", zoo.models("bridge-gpt2"))
def test_hooks_and_single_tokens_need_no_trial(build: Any) -> None:
    assert tried(build, hooked=True)[1].startswith("off: hooks on the model")
    assert tried(build, 1) == (None, "off: the context is a single token")
