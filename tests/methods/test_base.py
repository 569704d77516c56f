"""The contract of a method: targets, returned scores, warnings, and functions as methods."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import heta_lens
from helpers import zoo
from helpers.asking import explain, predict
from heta_lens import METHODS, Heta, Method
from heta_lens._util.options import chosen, keywords
from heta_lens.methods.registry import method_of


@pytest.mark.parametrize(
    ("method", "same"),
    [
        (Heta(variant="kl_only"), True),
        (Heta(variant="transition_only"), True),
        (Heta(variant="gn", probes=1), True),
        (METHODS["peering"](query="predictor"), True),
        (METHODS["faml"](complement=0, steps=2), True),
        (METHODS["faml"](steps=2), False),
        (Heta(probes=1), False),
        (METHODS["leave_one_out"](effect="kl"), True),
        (METHODS["leave_one_out"](), False),
        (METHODS["recency"](), True),
    ],
)
def test_scores_that_are_the_same_for_every_target_say_so(method: Method, same: bool) -> None:
    model = zoo.bridge("gpt2")
    first, second = (method(predict(model, zoo.prompt(model, 5), target)) for target in (6, 7))
    assert torch.equal(first.scores, second.scores) == same
    assert ("these scores are the same for every target" in first.notes) == same


QUESTIONS: dict[str, Any] = {"contrast": (6, 7), "set": {6, 7}, "function": partial(torch.logsumexp, dim=0)}

AGNOSTIC = [
    *(METHODS[name]() for name in METHODS if METHODS[name]().ignores_target and METHODS[name].family != "control"),
    Heta(variant="kl_only"),
    Heta(variant="transition_only"),
    Heta(variant="gn"),
    Heta(beta=0),
    METHODS["leave_one_out"](effect="kl"),
    METHODS["peering"](query="predictor"),
    METHODS["faml"](complement=0),
]


@pytest.mark.parametrize("method", AGNOSTIC, ids=lambda method: str((method.name, *chosen(method).values())))
@pytest.mark.parametrize("kind", QUESTIONS)
def test_a_method_that_ignores_the_target_refuses_a_question_about_it(method: Method, kind: str, forwards: Any) -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, 5), QUESTIONS[kind])
    runs = forwards(model)
    with pytest.raises(ValueError, match=f"method='{method.name}'.* cannot explain the {kind}") as refused:
        method(prediction)
    said = str(refused.value)
    assert "such as 'leave_one_out'" in said and all(f"{name}=" in said for name in chosen(method))
    assert not runs


N, TARGET = 6, 7


def lengths(prediction: heta_lens.Prediction) -> list[float]:
    """How long each token's embedding is."""
    return prediction.embeddings.norm(dim=-1).tolist()


def test_a_function_is_a_method() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    attribution = explain(model, ids, TARGET, method=lengths)
    assert attribution.method == "lengths" and len(attribution) == N
    assert attribution.scores.tolist() == lengths(predict(model, ids, TARGET))
    assert attribution.diagnostics["sink_mass"] > 0


@pytest.mark.parametrize(("sign", "signed"), [(1, False), (-1, True)])
def test_scores_of_a_function_are_signed_where_one_is_below_0(sign: int, signed: bool) -> None:
    model = zoo.bridge("gpt2")
    found = explain(model, zoo.prompt(model, N), TARGET, method=lambda asked: sign * asked.embeddings.norm(dim=-1))
    assert found.signed == signed


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([1.0, float("nan"), 1.0, 1.0, 1.0, 1.0], "the score is nan at position 1, token"),
        ([1.0, 2.0], "returned scores of shape \\(2,\\) for 6 tokens: return one number per token"),
        (np.ones((6, 2)), "returned scores of shape \\(6, 2\\) for 6 tokens"),
        ("scores", "returned 'scores': return one real number per token"),
        ([1j] * 6, "return one real number per token"),
        (np.full(6, 1j), "return one real number per token"),
        (torch.full((6,), 1j), "return one real number per token"),
        (None, "returned"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_other_scores_are_refused(scores: Any, message: str) -> None:
    model = zoo.bridge("gpt2")
    with pytest.raises((TypeError, ValueError), match=message):
        explain(model, zoo.prompt(model, N), TARGET, method=lambda _: scores)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("leave_one_out", "forwards=5 (now the default) takes about 25% of the time; "),
        ("careful", "forwards=5 (now the default) takes about "),
        ("heta", "probes=2 (now 10) takes about "),
        ("context_cite samples=40", "samples=10 (now 40) takes about "),
        ("kernel_shap samples=60", "method='fast'"),  # refuses a quarter
        ("random", "method='fast'"),
        ("fast", ""),
    ],
)
def test_what_shortens_a_wait_is_named_with_how_much(method: str, said: str) -> None:
    model = zoo.bridge("gpt2")
    name, *options = method.split()
    made = method_of(name, keywords(options))
    words = made.shorter([predict(model, zoo.prompt(model, 20), 7)])
    assert words.startswith(said) and bool(words) == bool(said)
