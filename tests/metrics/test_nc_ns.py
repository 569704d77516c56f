"""NC and NS, soft and hard, against a loop over runs."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import plain_embeddings, plain_log_probs
from helpers.evaluating import MODEL, ONE_EACH, N, prediction_of, some_scores
from heta_lens.metrics import hard, released, soft
from heta_lens.metrics.scores import root


@ONE_EACH
@pytest.mark.parametrize("seed", range(3))
def test_of_no_scores_and_of_full_ones_soft_is_known(build: Any, seed: int) -> None:
    asked = prediction_of(build())
    none = soft(asked, torch.zeros(N), norm="none", seed=seed)
    assert (none.nc, none.ns) == pytest.approx((0, 0), abs=1e-9)
    every = soft(asked, torch.ones(N), norm="none", seed=seed)
    assert (every.nc, every.ns) == pytest.approx((1, 1))


@MODEL
def test_soft_is_what_a_loop_finds(build: Any) -> None:
    model = build()
    asked, scores = prediction_of(model), some_scores()
    found = soft(asked, scores, seed=5)
    embeddings, log_probs = plain_embeddings(model, zoo.prompt(model, N)), plain_log_probs(model, zoo.prompt(model, N))
    shares, ids = scores / scores.sum(), asked.ids.tolist()
    clean = log_probs(embeddings).detach()

    def apart(states: Tensor) -> float:
        p, q = log_probs(states).detach().exp(), clean.exp()
        return float((p.sqrt() - q.sqrt()).square().sum()) / 2**0.5

    def thinned(keep: Tensor, row: int) -> float:
        drawn = np.random.default_rng([5, 0, row, *ids]).random(embeddings.shape)
        return apart(embeddings * (torch.from_numpy(drawn) < keep[:, None]))

    nothing = apart(torch.zeros_like(embeddings))
    assert found.nc == pytest.approx(thinned(1 - shares, 1) / nothing, rel=1e-6)
    assert found.ns == pytest.approx(max(0.0, nothing - thinned(shares, 0)) / nothing, rel=1e-6, abs=1e-9)


@ONE_EACH
def test_paired_draws_thin_all_scores_alike(build: Any) -> None:
    asked = prediction_of(build())
    half = torch.full((N,), 0.5, dtype=torch.float64)
    alike, apart = (soft(asked, half, norm="none", paired=paired) for paired in (True, False))
    assert alike.ns == pytest.approx(max(0.0, 1 - alike.nc))  # the same halves
    assert apart.ns != pytest.approx(max(0.0, 1 - apart.nc))


@ONE_EACH
def test_only_candidates_are_thinned(build: Any) -> None:
    asked, scores = prediction_of(build()), some_scores()
    some = soft(asked, scores, candidates=[2, 3, 5])
    moved = scores.clone()
    moved[[0, 1, 4, 6, 7]] = 9.0
    assert soft(asked, moved, candidates=[2, 3, 5]) == some
    with pytest.raises(ValueError, match=r"candidates holds 8, .* from 0 to 7"):
        soft(asked, scores, candidates=[8])
    with pytest.raises(ValueError, match="candidates is empty"):
        soft(asked, scores, candidates=[])


@ONE_EACH
def test_an_equal_retention_does_not_depend_on_the_scale_of_scores(build: Any) -> None:
    asked, scores = prediction_of(build()), some_scores()
    found = soft(asked, scores, keep=0.4)
    assert soft(asked, 100 * scores, keep=0.4).ns == pytest.approx(found.ns)
    assert soft(asked, scores, keep=0.8).ns != pytest.approx(found.ns)


@MODEL
def test_hard_nc_and_ns_are_what_a_loop_finds(build: Any) -> None:
    model = build()
    asked, scores = prediction_of(model), some_scores()
    embeddings, log_probs = plain_embeddings(model, zoo.prompt(model, N)), plain_log_probs(model, zoo.prompt(model, N))
    clean = log_probs(embeddings).detach()

    def apart(gone: list[int], of: str = "root") -> float:
        states = embeddings.clone()
        states[gone] = 0
        after = log_probs(states).detach()
        return float(root(after[None], clean) if of == "root" else (clean.exp() * (clean - after)).sum())

    order = scores.argsort(descending=True).tolist()
    found = hard(asked, scores, share=0.4)  # 3.2 tokens, rounded down
    nothing = apart([*range(N)])
    assert found["nc"] == pytest.approx(apart(order[:3]) / nothing, rel=1e-6)
    assert found["ns"] == pytest.approx(max(0.0, nothing - apart(order[3:])) / nothing, rel=1e-6)
    assert hard(asked, scores, share=1.0) == pytest.approx({"nc": 1, "ns": 1})
    assert hard(asked, scores, share=0.0) == pytest.approx({"nc": 0, "ns": 0}, abs=1e-9)
    kl = released(asked, scores, shares=(0.1, 0.5))
    assert kl["nc"] == pytest.approx((apart(order[:1], "kl") + apart(order[:4], "kl")) / 2, rel=1e-6)
    assert kl["ns"] == pytest.approx(-(apart(order[1:], "kl") + apart(order[4:], "kl")) / 2, rel=1e-6)
