"""Robustness: scores under noise, and in paraphrases."""

from dataclasses import replace
from math import isnan
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import doubts_allowed, plain_log_probs
from helpers.evaluating import MODEL, ONE_EACH, TARGET, N, double, prediction_of
from heta_lens import Heta
from heta_lens.methods.leave_one_out import LeaveOneOut
from heta_lens.methods.results import Scores, make_attribution
from heta_lens.metrics import paraphrase_consistency, sensitivity, under_noise
from heta_lens.model.hooks import EMBED


def test_the_worked_example_of_sensitivity() -> None:
    assert sensitivity(torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])) == pytest.approx(0.5)


@pytest.mark.slow
@MODEL
def test_noise_falls_on_every_embedding(build: Any) -> None:
    model = build()
    asked, seen = prediction_of(model), []
    method = LeaveOneOut()

    def explain(noisy: Any) -> Any:
        seen.append(noisy.embeddings - asked.embeddings)
        return method(noisy)

    found = under_noise(asked, [explain] * 30, noise=0.1)
    size = float(asked.embeddings.square().mean().sqrt())
    assert float(torch.stack(seen).std()) == pytest.approx(0.1 * size, rel=0.1)
    assert all((moved != 0).all() for moved in seen) and not torch.equal(seen[0], seen[1])
    log_probs, states = plain_log_probs(model, zoo.prompt(model, N)), asked.embeddings + seen[0]
    without = states.clone()
    without[2] = 0
    expected = log_probs(states)[TARGET] - log_probs(without)[TARGET]
    assert float(found[0].scores[2]) == pytest.approx(float(expected.detach()), rel=1e-5)
    again = under_noise(asked, [method] * 2, noise=0.1)
    assert torch.equal(again[1].scores, found[1].scores)
    assert not model.hook_dict[EMBED].fwd_hooks


@ONE_EACH
def test_without_noise_only_a_methods_own_chance_is_left(build: Any) -> None:
    asked = prediction_of(build())
    with doubts_allowed():
        same = under_noise(asked, [Heta(probes=2)] * 2, noise=0)
        own = under_noise(asked, [Heta(probes=2, seed=seed) for seed in (0, 1)], noise=0)
    assert torch.equal(same[0].scores, same[1].scores) and not torch.equal(own[0].scores, own[1].scores)


def told(words: dict[str, float]) -> Any:
    text, found, offsets = "", [*words.values()], []
    for word in words:
        offsets.append((len(text), len(text) + 1 + len(word)))
        text += f" {word}"
    return replace(
        make_attribution(prediction_of(zoo.bridge("gpt2"), len(words)), "random", Scores(double(*found)), {}),
        text=text, tokens=tuple(f" {word}" for word in words), offsets=torch.tensor(offsets),
        special=torch.zeros(len(words), dtype=torch.bool),
    )  # fmt: skip


def test_the_worked_example_of_two_tellings() -> None:
    one = told({"Ann": 1.0, "kicks": 2.0, "the": 3.0, "ball": 4.0})
    other = told({"The": 2.0, "ball": 4.0, "was": 9.0, "kicked": 3.0, "by": 9.0, "Ann.": 1.0})
    found = paraphrase_consistency(one, other)
    assert found == pytest.approx(0.8)
    assert isnan(paraphrase_consistency(one, told({"Ann": 1.0, "ball": 2.0})))
    assert isnan(paraphrase_consistency(one, told({"Ann": 1.0, "ball": 1.0, "the": 1.0})))
