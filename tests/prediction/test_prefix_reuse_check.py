"""Whether runs continue from kept keys and values is tried, and the reason is given where they do not."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import predict
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import KeysValues
from heta_lens.prediction.checks import reusable_prefix


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
    assert tried(build) == (None, "off: only 0 of this model's 2 layers keep keys and values")


@pytest.fixture
def certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model predicts token 7 with a probability of one, to rounding, whatever came before."""
    run = ModelAdapter.run

    def surely(self: ModelAdapter, *args: Any, **options: Any) -> Tensor:
        return run(self, *args, **options) + 60 * torch.nn.functional.one_hot(torch.tensor(7), self.vocabulary)

    monkeypatch.setattr(ModelAdapter, "run", surely)


@pytest.mark.usefixtures("certain")
@pytest.mark.parametrize("build", zoo.models("bridge-gpt2|hooked-llama"))
def test_a_certain_prediction_does_not_hide_that_the_prefix_is_ignored(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tried(build)[1] == "on"
    resume = ModelAdapter.resume

    def without_prefix(self: ModelAdapter, kept: KeysValues, start: int, stop: int, batch: int) -> dict[str, Any]:
        return resume(self, kept, 0, stop - start, batch)

    def of_something_else(factor: float) -> Callable[..., dict[str, Any]]:
        return lambda self, kept, *rest: resume(self, [(factor * keys, values) for keys, values in kept], *rest)

    monkeypatch.setattr(ModelAdapter, "resume", without_prefix)
    assert "changes those of layer 0 (from shape" in tried(build)[1]
    for factor in (2, math.nan):
        monkeypatch.setattr(ModelAdapter, "resume", of_something_else(factor))
        assert "changes those of layer 0 (off by" in tried(build)[1]


@pytest.mark.usefixtures("certain")
@pytest.mark.parametrize("build", zoo.models("bridge-gpt2"))
def test_a_certain_prediction_does_not_hide_what_becomes_of_the_other_tokens(build: Any) -> None:
    assert "changes the prediction of unlikely tokens (off by" in tried(build, wrong=0.1)[1]


@pytest.mark.parametrize("build", zoo.models("bridge-gpt2"))
def test_hooks_and_single_tokens_need_no_trial(build: Any) -> None:
    assert tried(build, hooked=True)[1].startswith("off: hooks on the model")
    assert tried(build, 1) == (None, "off: the context is a single token")
