"""NC and NS, soft and hard, against a loop over runs."""

from math import inf, isnan, log
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import doubts_allowed, plain_embeddings, plain_log_probs, relative
from helpers.metric_inputs import MODEL, ONE_EACH, TARGET, N, prediction_of, some_scores
from heta_lens import Heta
from heta_lens.metrics import Soft, curve, hard, released, soft, soft_area, summed
from heta_lens.metrics.scores import DISTANCES, ratios

CLEAN = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64).log()
WITHOUT, ONLY, NOTHING = (
    torch.tensor([row], dtype=torch.float64).log() for row in ([0.4, 0.4, 0.2], [0.5, 0.3, 0.2], [1 / 3, 1 / 3, 1 / 3])
)


def test_the_worked_example_of_soft_nc_and_ns() -> None:
    apart = [DISTANCES["root"](other, CLEAN, 0) for other in (WITHOUT, ONLY, NOTHING)]
    assert [float(one) for one in apart] == pytest.approx([0.065882, 0.031143, 0.107736], abs=1e-6)
    nc, ns = ratios(apart[0], apart[1], float(apart[2]))
    assert (float(nc), float(ns)) == pytest.approx((0.611513, 0.710929), abs=1e-6)
    assert float(DISTANCES["hellinger"](WITHOUT, CLEAN, 0) / apart[2]) == pytest.approx(2.0034, abs=1e-4)
    assert float(DISTANCES["hellinger_sq"](WITHOUT, CLEAN, 0)) == pytest.approx(0.065882 / 2**0.5, abs=1e-6)
    assert float(DISTANCES["target_prob"](WITHOUT, CLEAN, 0)) == pytest.approx(0.3)
    assert float(DISTANCES["target_prob"](WITHOUT, CLEAN, 1)) == 0
    expected = 0.7 * log(0.7 / 0.4) + 0.2 * log(0.5) + 0.1 * log(0.5)
    assert float(DISTANCES["kl"](WITHOUT, CLEAN, 0)) == pytest.approx(expected)


def of(nc: float, ns: float, nothing: float = 1.0) -> Soft:
    none: dict[str, Any] = {"comprehensive": 0.0, "sufficient": 0.0, "spread": (0.0, 0.0), "degenerate": False}
    return Soft(nc=nc, ns=ns, nothing=nothing, nc_random=0.1, ns_random=0.2, options={}, **none)


def test_prompts_are_summed_before_the_logarithm() -> None:
    found = summed([of(0.6, 0.0), of(0.2, 0.0), of(9.0, 9.0, nothing=0.0)])
    assert found["soft_nc"] == pytest.approx(1.386294, abs=1e-6) and found["soft_ns"] == -inf
    assert found["soft_nc_raw"] == pytest.approx(0.4)
    assert (found["n"], found["undefined"], found["degenerate"]) == (2, 1, 0)
    assert isnan(summed([])["soft_nc"])


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
    found = soft(asked, scores, draws=3, seed=5)
    embeddings, log_probs = plain_embeddings(model, zoo.prompt(model, N)), plain_log_probs(model, zoo.prompt(model, N))
    shares, ids = scores / scores.sum(), asked.ids.tolist()
    clean = log_probs(embeddings).detach()

    def apart(states: Tensor) -> float:
        p, q = log_probs(states).detach().exp(), clean.exp()
        return float((p.sqrt() - q.sqrt()).square().sum()) / 2**0.5

    def mean(keep: Tensor, row: int) -> float:
        drawn = [np.random.default_rng([5, draw, row, *ids]).random(embeddings.shape) for draw in range(3)]
        return sum(apart(embeddings * (torch.from_numpy(one) < keep[:, None])) for one in drawn) / 3

    nothing = apart(torch.zeros_like(embeddings))
    assert found.nothing == pytest.approx(nothing, rel=1e-6)
    assert found.sufficient == pytest.approx(mean(shares, 0), rel=1e-6)
    assert found.comprehensive == pytest.approx(mean(1 - shares, 1), rel=1e-6)
    assert found.nc == pytest.approx(found.comprehensive / nothing, rel=1e-6)
    assert found.ns == pytest.approx(max(0.0, nothing - found.sufficient) / nothing, rel=1e-6, abs=1e-9)


@ONE_EACH
def test_what_soft_depends_on(build: Any) -> None:
    asked, scores = prediction_of(build()), some_scores()
    one, again, other = (soft(asked, scores, draws=2, seed=seed) for seed in (0, 0, 1))
    assert one == again and one.nc != other.nc
    one = soft(asked, scores)
    assert soft(asked, 3 * scores).nc == pytest.approx(one.nc)  # the sum is 1 anyway
    changes: list[dict[str, Any]] = [{"draws": 4}, {"norm": "max"}, {"distance": "kl"}, {"keep": 0.5}]
    for change in changes:
        assert soft(asked, scores, **change).nc != one.nc, change
    assert soft(asked, scores, randoms=3).nc == one.nc != soft(asked, scores, randoms=3).nc_random
    assert isnan(one.spread[0]) and soft(asked, scores, draws=4).spread[0] > 0
    assert soft(asked, torch.ones(N), norm="sum").degenerate and not one.degenerate


@ONE_EACH
def test_paired_draws_thin_all_scores_alike(build: Any) -> None:
    asked = prediction_of(build())
    uniform = soft(asked, torch.ones(N), paired=True, draws=2, keep=0.5)
    assert uniform.spread[0] > 0
    half = torch.full((N,), 0.5, dtype=torch.float64)
    alike = soft(asked, half, norm="none", paired=True)
    assert alike.comprehensive == alike.sufficient  # the same halves
    assert soft(asked, half, norm="none").comprehensive != soft(asked, half, norm="none").sufficient


@ONE_EACH
def test_only_candidates_are_thinned(build: Any) -> None:
    asked, scores = prediction_of(build()), some_scores()
    some = soft(asked, scores, draws=2, candidates=[2, 3, 5])
    moved = scores.clone()
    moved[[0, 1, 4, 6, 7]] = 9.0
    assert soft(asked, moved, draws=2, candidates=[2, 3, 5]) == some
    assert some.nothing != soft(asked, scores).nothing
    states = asked.embeddings.clone()
    states[[2, 3, 5]] = 0
    after = asked.rerun().log_probs(states[None]).detach().double()
    assert some.nothing == pytest.approx(float(DISTANCES["root"](after, asked.log_probs.double(), TARGET)))
    with pytest.raises(ValueError, match=r"positions \[8\] are not among the 8 scores"):
        soft(asked, scores, candidates=[8])
    with pytest.raises(ValueError, match="candidates is empty"):
        soft(asked, scores, candidates=[])


@ONE_EACH
def test_equal_retention_is_the_mean_height_over_shares(build: Any) -> None:
    asked, scores = prediction_of(build()), some_scores()
    at = [soft(asked, scores, keep=share) for share in (0.2, 0.4, 0.8)]
    found = soft_area(asked, scores, (0.2, 0.4, 0.8))
    expected = ((at[0].ns + at[1].ns) / 2 * 0.2 + (at[1].ns + at[2].ns) / 2 * 0.4) / 0.6
    assert found["ns"] == pytest.approx(expected)
    assert soft_area(asked, 100 * scores) == pytest.approx(soft_area(asked, scores))


@ONE_EACH
def test_gates_that_are_constant_are_evaluated_alike(build: Any) -> None:
    asked = prediction_of(build())
    with doubts_allowed():
        none, uniform = (Heta(probes=2, variant=name)(asked).scores for name in ("no_gate", "uniform_gate"))
    assert relative(none, N * uniform) < 1e-9
    one, other = soft(asked, none), soft(asked, uniform)
    assert (one.nc, one.ns) == pytest.approx((other.nc, other.ns), rel=1e-9)
    assert curve(asked, none) == curve(asked, uniform) and hard(asked, none) == hard(asked, uniform)


@MODEL
def test_hard_nc_and_ns_are_what_a_loop_finds(build: Any) -> None:
    model = build()
    asked, scores = prediction_of(model), some_scores()
    embeddings, log_probs = plain_embeddings(model, zoo.prompt(model, N)), plain_log_probs(model, zoo.prompt(model, N))
    clean = log_probs(embeddings).detach()

    def apart(gone: list[int], of: str = "root") -> float:
        states = embeddings.clone()
        states[gone] = 0
        return float(DISTANCES[of](log_probs(states).detach()[None], clean, TARGET))

    order = scores.argsort(descending=True).tolist()
    found = hard(asked, scores, k=3)
    nothing = apart([*range(N)])
    assert found["nc"] == pytest.approx(apart(order[:3]) / nothing, rel=1e-6)
    assert found["ns"] == pytest.approx(max(0.0, nothing - apart(order[3:])) / nothing, rel=1e-6)
    assert hard(asked, scores, k=3, as_reagent=True)["nc"] == pytest.approx(
        apart(order[:3], "hellinger") / nothing, rel=1e-6
    )
    assert hard(asked, scores, share=0.4) == found  # 3.2, rounded down
    assert hard(asked, scores, k=N) == pytest.approx({"nc": 1, "ns": 1})
    assert hard(asked, scores, k=0) == pytest.approx({"nc": 0, "ns": 0}, abs=1e-9)
    kl = released(asked, scores, shares=(0.1, 0.5))
    assert kl["nc"] == pytest.approx((apart(order[:1], "kl") + apart(order[:4], "kl")) / 2, rel=1e-6)
    assert kl["ns"] == pytest.approx(-(apart(order[1:], "kl") + apart(order[4:], "kl")) / 2, rel=1e-6)
