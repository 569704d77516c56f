"""What is reported beside a score: shares, drops, envelopes, additivity, and the audit."""

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from helpers import oracles, zoo
from helpers.asking import explain, plain_embeddings, plain_log_probs, relative
from heta_lens.methods.heta.score import Balance

TARGET, N = 7, 6


def found(model: Any, ids: Tensor, target: Any = TARGET, **options: Any) -> Any:
    return explain(model, ids, target, **{"probes": 2} | options)


def objective(model: Any, ids: Tensor, target: Any = TARGET) -> Any:
    log_probs = plain_log_probs(model, ids)

    @torch.no_grad()
    def g(e: Tensor) -> Tensor:
        found = log_probs(e)
        return found[target[0]] - found[target[1]] if isinstance(target, tuple) else found[target]

    return g


@pytest.mark.parametrize("balance", get_args(Balance))
def test_the_balanced_score_is_always_reported_beside_the_literal_one(balance: Balance) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)
    attribution = explain(model, ids, balance=balance)
    gate, curvature, information = (attribution.parts[name] for name in ("gate", "curvature", "information"))
    expected = gate * (curvature / curvature.sum() + information / information.sum()) / 2
    torch.testing.assert_close(attribution.diagnostics["balanced"], expected)
    if balance == "sum":
        torch.testing.assert_close(attribution.scores, expected)


@pytest.mark.slow
def test_standard_errors_are_of_what_is_random() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)
    errors = explain(model, ids).standard_errors
    assert errors["gate"] is None
    assert errors["information"] is None
    torch.testing.assert_close(errors["scores"], explain(model, ids).parts["gate"] * 0.5 * errors["curvature"])
    for options in ({"probes": 1}, {"norm": "entrywise"}, {"variant": "kl_only"}):
        assert set(explain(model, ids, **options).standard_errors.values()) == {None}, options


SEVERAL = "bridge-(gpt2|llama|native)|hooked-(rotary_gqa|alibi)"


def single_drops(model: Any, ids: Tensor, vector: Tensor | None = None, target: Any = TARGET) -> Tensor:
    at = plain_embeddings(model, ids)
    vector = torch.zeros_like(at[0]) if vector is None else vector
    g = objective(model, ids, target)
    return torch.stack([oracles.drop(g, at, vector, [i]) for i in range(len(at))])


@pytest.mark.slow
@pytest.mark.parametrize("target", [TARGET, (7, 9)])
@pytest.mark.parametrize(("name", "build"), zoo.named(SEVERAL))
def test_drops_gap_and_envelope_are_the_oracles(name: str, build: Any, target: Any) -> None:
    model = build()
    ids, close = zoo.prompt(model, N), zoo.tolerance(name)
    attribution = found(model, ids, target, beta=0.3, gamma=0.6)
    facts, at = attribution.diagnostics, plain_embeddings(model, ids)
    drops = single_drops(model, ids, target=target)
    assert relative(facts["drop"], drops) < close
    gap = oracles.additivity_gap(attribution.scores, objective(model, ids, target), at, torch.zeros_like(at[0]))
    assert facts["additivity_gap"] == pytest.approx(float(gap), rel=close, abs=close)
    gate, curvature, information = (attribution.parts[part] for part in ("gate", "curvature", "information"))
    assert relative(facts["envelope"], oracles.envelope(gate, curvature, drops, 0.3, 0.6)) < close
    assert facts["envelope_share"] == oracles.envelope_share(information, drops)
    bounded = attribution.scores <= facts["envelope"]
    assert float(bounded.double().mean()) == facts["envelope_share"]
