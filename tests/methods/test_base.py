"""The contract of a method."""

from dataclasses import fields
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import predict
from heta_lens import METHODS, Heta, Method

BRIEF = {"think": ".", "conclude": " is", "entail": "{explanation}{claim}"}
RANDOM: list[tuple[str, dict[str, Any]]] = [
    ("heta", {"probes": 2}),
    ("heta", {"variant": "kl_only"}),
    ("heta", {"variant": "gs"}),
    ("heta", {"norm": "entrywise"}),
    ("heta", {"variant": "lr", "rank": 2, "norm": "entrywise"}),
    ("lime", {"samples": 20}),
    ("kernel_shap", {"samples": 30}),
    ("context_cite", {"source": "token", "samples": 20}),
    ("progressive_inference", {}),
    ("progressive_inference", {"passes": "multi", "samples": 4}),
    ("reagent", {"max_steps": 3, "probes": 2}),
    ("sea_cot", {"length": 6, "explanations": 2, "temperature": 0, **BRIEF}),
    ("causal_tracing", {"samples": 2, "layers": 2}),
    ("causal_tracing", {"samples": 2, "layers": 2, "noise": 0}),
    ("random", {}),
]


@pytest.mark.sample(quick=3)
@pytest.mark.parametrize(("method", "options"), RANDOM, ids=str)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_method_knows_whether_a_seed_changes_its_scores(method: str, options: dict[str, Any]) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 9)
    prediction = predict(model, ids, 7)
    first, second = (METHODS[method](**options, seed=seed)(prediction).scores for seed in (0, 1))
    assert METHODS[method](**options).random == (not torch.equal(first, second))


def test_methods_without_a_seed_are_not_random() -> None:
    for name, method in METHODS.items():
        assert method().random in (False, "seed" in {field.name for field in fields(method)}), name


@pytest.mark.parametrize(
    ("method", "same"),
    [
        (Heta.preset("recommended"), True),
        (Heta(variant="transition_only"), True),
        (Heta(probes=1), False),
        (METHODS["leave_one_out"](), True),
        (METHODS["leave_one_out"](effect="log_prob"), False),
        (METHODS["recency"](), True),
    ],
)
def test_scores_that_are_the_same_for_every_target_say_so(method: Method, same: bool) -> None:
    model = zoo.bridge("gpt2")
    first, second = (method(predict(model, zoo.prompt(model, 5), target)) for target in (6, 7))
    assert torch.equal(first.scores, second.scores) == same
    assert ("these scores are the same for every target" in first.notes) == same
