"""Metrics of what a model does: worked examples, identities, and that each tells good scores from bad ones."""

from dataclasses import replace
from functools import partial
from math import inf, isnan, log, nan
from typing import Any

import numpy as np
import pytest
import torch
from asking import doubts_allowed, plain_embeddings, plain_log_probs, predict, relative
from torch import Tensor

import heta_lens
import zoo
from heta_lens import Heta
from heta_lens.baselines.leave_one_out import LeaveOneOut
from heta_lens.lens import EMBED
from heta_lens.metrics import (
    GRID,
    Curve,
    Drops,
    Setting,
    Soft,
    abpc,
    additivity_gap,
    aopc,
    area,
    cascade,
    curve,
    exact_match_change,
    faithfulness_error,
    first_token,
    hard,
    hit_change,
    kept_mass,
    kept_share,
    look_up,
    normalised,
    relative_change,
    released,
    retrained,
    sensitivity,
    soft,
    soft_area,
    summed,
    told_alike,
    under_noise,
    with_mean,
)
from heta_lens.metrics.distances import DISTANCES, ratios
from heta_lens.metrics.normalised import signed
from heta_lens.metrics.retraining import without
from heta_lens.metrics.robustness import matched, stem
from heta_lens.metrics.sanity import shuffled

N, TARGET = 8, 7
MODEL = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))

CLEAN = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64).log()
WITHOUT, ONLY, NOTHING = (
    torch.tensor([row], dtype=torch.float64).log() for row in ([0.4, 0.4, 0.2], [0.5, 0.3, 0.2], [1 / 3, 1 / 3, 1 / 3])
)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def asked_of(model: Any, n: int = N) -> heta_lens.Prediction:
    return predict(model, zoo.prompt(model, n), TARGET)


def some_scores(n: int = N) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


# -------------------------------------------------------------------------------------------- signs, norms, retention
@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        ("none", [0.0, 1.0, 3.0]),
        ("sum", [0.0, 0.25, 0.75]),
        ("max", [0.0, 1 / 3, 1.0]),
        ("minmax", [0.0, 1 / 3, 1.0]),
        ("softmax", [0.0420, 0.1142, 0.8438]),
        ("sigmoid", [0.5, 0.7311, 0.9526]),
        ("zscore", [-1.0690, -0.2673, 1.3363]),
    ],
)
def test_scores_are_brought_to_a_scale(norm: Any, expected: list[float]) -> None:
    values, degenerate = normalised(double(-2.0, 1.0, 3.0), "relu", norm)
    assert values.tolist() == pytest.approx(expected, abs=1e-4) and not degenerate


def test_signs() -> None:
    assert signed(double(-2.0, 1.0), "relu").tolist() == [0, 1]
    assert signed(double(-2.0, 1.0), "abs").tolist() == [2, 1]
    assert signed(double(-2.0, 1.0), "none").tolist() == [-2, 1]


@pytest.mark.parametrize(("norm", "every"), [("sum", 0.25), ("max", 1.0), ("minmax", 0.5), ("zscore", 0.0)])
def test_scores_that_tell_nothing_count_all_the_same(norm: Any, every: float) -> None:
    values, degenerate = normalised(torch.zeros(4), "relu", norm)
    assert values.tolist() == [every] * 4 and degenerate
    assert normalised(torch.full((4,), 2.0), "relu", norm).degenerate


@pytest.mark.parametrize("mean", [0.05, 0.3, 0.5, 0.75, 0.95])
@pytest.mark.parametrize("values", [(4.0, 3.0, 2.0, 1.0), (1.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0), (0.0,) * 4])
def test_retention_has_the_mean_that_was_asked_for(values: tuple[float, ...], mean: float) -> None:
    kept = with_mean(double(*values), mean).values
    assert float(kept.mean()) == pytest.approx(mean) and (kept >= 0).all() and (kept <= 1).all()
    assert (kept.diff() <= 1e-12).all()  # what scored more keeps more
    free = (kept > 0) & (kept < 1) & (double(*values) > 0)
    ratios_of_free = (kept / double(*values))[free]
    assert ratios_of_free.numel() == 0 or float(ratios_of_free.max() - ratios_of_free.min()) < 1e-12


@pytest.mark.usefixtures("unchecked")
def test_what_has_no_scale_is_refused() -> None:
    for call, said in (
        (partial(normalised, double(1), "relu", "l2"), "norm='l2' is not one of"),
        (partial(normalised, double(1), "plus"), "sign='plus' is not one of"),
        (partial(with_mean, double(1), 1.0), "mean=1.0 must be between 0 and 1"),
        (partial(with_mean, double(-1), 0.5), "choose sign="),
    ):
        with pytest.raises(ValueError, match=said):
            call()


# --------------------------------------------------------------------------------------------------- Soft-NC, Soft-NS
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
    asked = asked_of(build())
    none = soft(asked, torch.zeros(N), norm="none", seed=seed)
    assert (none.nc, none.ns) == pytest.approx((0, 0), abs=1e-9)
    every = soft(asked, torch.ones(N), norm="none", seed=seed)
    assert (every.nc, every.ns) == pytest.approx((1, 1))


@MODEL
def test_soft_is_what_a_loop_finds(build: Any) -> None:
    model = build()
    asked, scores = asked_of(model), some_scores()
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
    asked, scores = asked_of(build()), some_scores()
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
    asked = asked_of(build())
    uniform = soft(asked, torch.ones(N), paired=True, draws=2, keep=0.5)
    assert uniform.spread[0] > 0
    half = torch.full((N,), 0.5, dtype=torch.float64)
    alike = soft(asked, half, norm="none", paired=True)
    assert alike.comprehensive == alike.sufficient  # the same halves
    assert soft(asked, half, norm="none").comprehensive != soft(asked, half, norm="none").sufficient


@ONE_EACH
def test_only_candidates_are_thinned(build: Any) -> None:
    asked, scores = asked_of(build()), some_scores()
    some = soft(asked, scores, draws=2, candidates=[2, 3, 5])
    moved = scores.clone()
    moved[[0, 1, 4, 6, 7]] = 9.0
    assert soft(asked, moved, draws=2, candidates=[2, 3, 5]) == some
    assert some.nothing != soft(asked, scores).nothing
    states = asked.embeddings.clone()
    states[[2, 3, 5]] = 0
    after = asked.log_probs_from(0)(states[None]).detach().double()
    assert some.nothing == pytest.approx(float(DISTANCES["root"](after, asked.log_probs.double(), TARGET)))
    with pytest.raises(ValueError, match=r"positions \[8\] are not among the 8 scores"):
        soft(asked, scores, candidates=[8])
    with pytest.raises(ValueError, match="candidates is empty"):
        soft(asked, scores, candidates=[])


@ONE_EACH
def test_equal_retention_is_the_mean_height_over_shares(build: Any) -> None:
    asked, scores = asked_of(build()), some_scores()
    at = [soft(asked, scores, keep=share) for share in (0.2, 0.4, 0.8)]
    found = soft_area(asked, scores, (0.2, 0.4, 0.8))
    expected = ((at[0].ns + at[1].ns) / 2 * 0.2 + (at[1].ns + at[2].ns) / 2 * 0.4) / 0.6
    assert found["ns"] == pytest.approx(expected)
    assert soft_area(asked, 100 * scores) == pytest.approx(soft_area(asked, scores))


# ------------------------------------------------------------------------------------------------------------ NC, NS
@MODEL
def test_hard_nc_and_ns_are_what_a_loop_finds(build: Any) -> None:
    model = build()
    asked, scores = asked_of(model), some_scores()
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


# ------------------------------------------------------------------------------------------------------------- curves
def test_the_worked_example_of_curves() -> None:
    thirds = (0.0, 1 / 3, 2 / 3, 1.0)
    morf, lerf = Curve(thirds, (0.9, 0.5, 0.3, 0.1)), Curve(thirds, (0.9, 0.85, 0.7, 0.1))
    assert (aopc(morf), aopc(morf, skip_first=True)) == pytest.approx((0.45, 0.6))
    assert (area(morf), area(lerf)) == pytest.approx((0.433333, 0.683333), abs=1e-6)
    assert abpc(morf, lerf) == pytest.approx(0.25) == area(morf, "drop") - area(lerf, "drop")
    assert aopc(Curve(thirds, (0.1, 0.6, 0.8, 0.9)), insert=True) == pytest.approx(0.5)


@MODEL
@pytest.mark.parametrize("insert", [False, True])
@pytest.mark.parametrize("order", ["morf", "lerf"])
def test_a_curve_is_one_run_after_another(build: Any, order: Any, insert: bool) -> None:
    model = build()
    asked, scores = asked_of(model), some_scores()
    embeddings, log_probs = plain_embeddings(model, zoo.prompt(model, N)), plain_log_probs(model, zoo.prompt(model, N))
    places = [at for at in scores.argsort(descending=order == "morf").tolist() if at]  # the first begins the text
    expected = []
    for count in range(N):
        gone = places[count:] if insert else places[:count]
        states = embeddings.clone()
        states[gone] = 0
        expected.append(float(log_probs(states).detach()[TARGET].exp()))
    found = curve(asked, scores, order=order, insert=insert, steps="tokens")
    assert found.values == pytest.approx(expected, rel=1e-6) and found.shares[-1] == 1
    tenths = curve(asked, scores, order=order, insert=insert)
    assert tenths.values == pytest.approx([expected[int(share * 7 / 10)] for share in range(11)], rel=1e-6)


@ONE_EACH
def test_what_a_curve_depends_on(build: Any) -> None:
    asked, scores = asked_of(build()), some_scores()
    plain = curve(asked, scores)
    changes: list[dict[str, Any]] = [{"mask": "mean"}, {"scale": "log_prob"}, {"ablate": "remove"}, {"order": "lerf"}]
    for change in [*changes, {"candidates": [2, 3]}, {"steps": (0.0, 0.5)}]:
        assert curve(asked, scores, **change).values != plain.values, change
    assert curve(asked, torch.zeros(N)) == curve(asked, torch.arange(N, 0, -1.0))  # of equal ones the first
    alone = curve(asked, scores, ablate="remove", steps=(0.0, 1.0), candidates=range(1, N))
    assert alone.values[1] == pytest.approx(
        float(predict(build(), asked.ids[None, :1], TARGET).log_probs[TARGET].exp()), rel=1e-5
    )


def test_what_curves_refuse() -> None:
    asked = asked_of(zoo.bridge("gpt2"))
    for steps in ((0.1, 1.0), (0.0, 2.0), (0.0, 0.5, 0.4), (0.0,)):
        with pytest.raises(ValueError, match="must be shares from 0 up"):
            curve(asked, some_scores(), steps=steps)
    with pytest.raises(ValueError, match=r"scores\[2\] is nan"):
        curve(asked, double(1, 2, nan, 4, 5, 6, 7, 8))


# -------------------------------------------------------------------------------------------------------- adding up
@ONE_EACH
def test_scores_that_leave_one_out_gives_add_up_for_single_tokens(build: Any) -> None:
    asked = asked_of(build())
    scores, drops = LeaveOneOut(effect="log_prob")(asked).scores, Drops.of(asked)
    torch.testing.assert_close(drops.each[:N], scores.cpu(), check_dtype=False, rtol=1e-4, atol=1e-6)
    found, zero = faithfulness_error(drops, scores), faithfulness_error(drops, torch.zeros(N))
    assert 0 < found["raw"] != zero["raw"] and zero["scale"] == 0
    nothing = asked.log_probs_from(0)(torch.zeros(1, N, 8)).detach()
    everything = float(asked.objective(asked.log_probs) - nothing[0, TARGET])
    assert additivity_gap(drops, torch.zeros(N)) == pytest.approx(abs(everything), rel=1e-6)
    assert additivity_gap(drops, torch.full((N,), everything / N)) == pytest.approx(0, abs=1e-6)


# --------------------------------------------------------------------------------------------------------- robustness
def test_the_worked_example_of_sensitivity() -> None:
    assert sensitivity(torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="1 run tells nothing"):
        sensitivity(torch.ones(1, 4))


@MODEL
def test_noise_falls_on_every_embedding(build: Any) -> None:
    model = build()
    asked, seen = asked_of(model), []
    method = LeaveOneOut(effect="log_prob")

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
    asked = asked_of(build())
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
        asked_of(zoo.bridge("gpt2"), len(words)).attribution("random", double(*found), {}, {}, {}),
        text=text, tokens=tuple(f" {word}" for word in words), offsets=torch.tensor(offsets),
        special=torch.zeros(len(words), dtype=torch.bool),
    )  # fmt: skip


def test_the_worked_example_of_two_tellings() -> None:
    one = told({"Ann": 1.0, "kicks": 2.0, "the": 3.0, "ball": 4.0})
    other = told({"The": 2.0, "ball": 4.0, "was": 9.0, "kicked": 3.0, "by": 9.0, "Ann.": 1.0})
    found = told_alike(one, other)
    assert found.correlation == pytest.approx(0.8) and found.pairs == 4 and found.coverage == 1
    assert isnan(told_alike(one, told({"Ann": 1.0, "ball": 2.0})).correlation)
    assert isnan(told_alike(one, told({"Ann": 1.0, "ball": 1.0, "the": 1.0})).correlation)


def test_words_are_matched_by_their_stems_each_once() -> None:
    assert [stem(word) for word in ("kicked", "Kicks,", "was", "carries", "carried", "red")] == [
        *("kick", "kick", "", "carr", "carr", "red")
    ]
    assert matched(["a", "key", "a", "key"], ["key", "a", "key"]) == [(0, 1), (1, 0), (3, 2)]


# ----------------------------------------------------------------------------------------------------------- decoding
def test_there_are_as_many_settings_as_the_paper_has() -> None:
    assert len(set(GRID)) == 54


def test_a_setting_chooses_by_what_it_says() -> None:
    asked = asked_of(zoo.bridge("gpt2"))
    best = int(asked.log_probs.argmax())
    assert first_token(asked, Setting()) == best == first_token(asked, Setting(temperature=5.0, top_k=1))
    assert first_token(asked, Setting(temperature=5.0, top_p=1e-6)) == best
    hot = {first_token(asked, Setting(temperature=50.0), seed) for seed in range(20)}
    assert len(hot) > 5
    few = {first_token(asked, Setting(temperature=50.0, top_k=3), seed) for seed in range(60)}
    assert few == {*asked.log_probs.topk(3).indices.tolist()}
    said = predict(zoo.bridge("gpt2"), torch.tensor([[*asked.ids.tolist()[:-1], best]]))
    top = int(said.log_probs.argmax())
    strict = first_token(said, Setting(repetition=1e6))
    assert strict not in said.ids.tolist() and (top in said.ids.tolist()) == (strict != top)


def test_the_worked_example_of_relative_change() -> None:
    assert relative_change([2.0, 2.1, 1.9], [0.0] * 3) == pytest.approx(10)
    assert relative_change([2.0, 2.1, 1.9], [0.0] * 3, reduce="mean") == pytest.approx(10 / 3)
    assert relative_change([2.0, 2.1, 1.8], [0.0] * 3, reference=2.0) == pytest.approx(10)
    assert relative_change([2.0, 2.0], [0.0, 0.0]) == 0
    assert isnan(relative_change([0.1, -0.1, 0.02], [0.05] * 3))
    with pytest.raises(ValueError, match="1 figures with 1 standard errors"):
        relative_change([1.0], [0.0])


# --------------------------------------------------------------------------------------------------------- downstream
def test_a_share_and_a_mass_of_tokens_are_kept_in_order() -> None:
    scores = double(0.1, 0.9, 0.5, 0.0, 0.5)
    assert kept_share(scores, range(5), 0.4) == [1, 2] == kept_share(scores, range(5), 0.3)
    assert kept_share(scores, [0, 3, 4], 0.4) == [0, 4]
    assert kept_mass(scores, range(5), 0.4) == [1] and kept_mass(scores, range(5), 0.5) == [1, 2]
    assert kept_mass(torch.ones(5), range(5), 0.4) == [0, 1] and kept_mass(torch.zeros(5), range(5), 0.4) == [0, 1]
    for wrong in (0.0, 1.5):
        with pytest.raises(ValueError, match=f"share={wrong} must be above 0"):
            kept_share(scores, range(5), wrong)
        with pytest.raises(ValueError, match=f"mass={wrong} must be above 0"):
            kept_mass(scores, range(5), wrong)


@MODEL
def test_a_verdict_is_the_choice_the_model_finds_likeliest(build: Any) -> None:
    model = build()
    asked = asked_of(model)
    log_probs, states = plain_log_probs(model, zoo.prompt(model, N)), plain_embeddings(model, zoo.prompt(model, N))
    context, scores = [2, 3, 4, 5, 6], some_scores()
    left = states.clone()
    left[[at for at in context if at not in kept_share(scores, context, 0.4)]] = 0
    after, before = log_probs(left).detach(), log_probs(states).detach()
    gains = (after - before).argsort()
    least, most = int(gains[0]), int(gains[-1])
    for own, other in ((most, least), (least, most)):
        found = exact_match_change(
            predict(model, asked.ids[None], own), scores, context=context, choices=[own, other], share=0.4
        )
        expected = float(after[own] > after[other]) - float(before[own] > before[other])
        assert found["change"] == 100 * expected
    with pytest.raises(ValueError, match="the target 7 is none of the choices"):
        exact_match_change(asked, scores, context=context, choices=[1, 2])


def test_a_little_tool_looks_things_up() -> None:
    story = "Ann put the key in the box. Bob put the key in the bag."
    for who, place in (("Ann", "box"), ("Bob", "bag")):
        assert look_up(story, f"Where did {who} put the key?", [" box", " bag", " bin"]) == f" {place}"
    assert look_up("Ann put", "Where?", [" box"]) == ""
    asked = ("Where did Bob put the key?", " bag", [" box", " bag"])
    assert hit_change(look_up, story, "Bob in the bag", *asked) == 0
    assert hit_change(look_up, story, "Bob put the key", *asked) == -100
    assert hit_change(look_up, "the box", "Bob bag", *asked) == 100


# -------------------------------------------------------------------------------------------------------------- sanity
@MODEL
def test_a_method_that_reads_the_model_changes_with_its_weights(build: Any) -> None:
    model = build()
    asked = asked_of(model)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    own = LeaveOneOut(effect="log_prob")
    found = cascade(asked, own, own(asked).scores)
    assert list(found) == [1, 2] and all(value < 0.999 for value in found.values())
    blind = heta_lens.METHODS["recency"]()
    assert cascade(asked, blind, blind(asked).scores) == pytest.approx({1: 1.0, 2: 1.0})
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def test_weights_come_back_whatever_happens() -> None:
    model = zoo.bridge("gpt2")
    asked = asked_of(model)
    clean = asked.log_probs

    def stopped() -> None:
        with shuffled(asked.lens, 1):
            assert relative(asked_of(model).log_probs, clean) > 1e-3
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stopped()
    assert torch.equal(asked_of(model).log_probs, clean)
    for wrong in (0, 3):
        with (
            pytest.raises(ValueError, match=f"{wrong} layers cannot be shuffled: the model has 2"),
            shuffled(asked.lens, wrong),
        ):
            pass


# ---------------------------------------------------------------------------------------------------------- identities
@ONE_EACH
def test_gates_that_are_constant_are_judged_alike(build: Any) -> None:
    asked = asked_of(build())
    with doubts_allowed():
        none, uniform = (Heta(probes=2, variant=name)(asked).scores for name in ("no_gate", "uniform_gate"))
    assert relative(none, N * uniform) < 1e-9
    one, other = soft(asked, none), soft(asked, uniform)
    assert (one.nc, one.ns) == pytest.approx((other.nc, other.ns), rel=1e-9)
    assert curve(asked, none) == curve(asked, uniform) and hard(asked, none) == hard(asked, uniform)


# ---------------------------------------------------------------------------------------------------------- retraining
def sorted_texts(count: int = 400) -> tuple[list[list[int]], list[int]]:
    """Of 10 words; one, anywhere, tells which of two kinds a text is of."""
    generator = np.random.default_rng(0)
    texts, labels = generator.integers(10, 60, (count, 10)), generator.integers(0, 2, count)
    texts[np.arange(count), generator.integers(0, 10, count)] = labels
    return texts.tolist(), labels.tolist()


def test_without_the_word_that_tells_nothing_can_be_learned() -> None:
    texts, labels = sorted_texts()
    good = [torch.tensor([float(word < 2) for word in text]) for text in texts]
    found = retrained(texts, labels, good, shares=(0.1, 0.5))
    assert found.removed.shape == (3, 2) and (found.removed < 0.65).all() and (found.kept > 0.99).all()
    assert (found.whole > 0.95).all() and (found.nothing < 0.65).all()
    bad = retrained(texts, labels, [-one for one in good], shares=(0.1, 0.5))
    assert (bad.removed > 0.95).all() and (bad.kept < 0.65).all()
    assert (abs(bad.removed_by_chance[:, 1] - 0.75) < 0.12).all() and (
        abs(bad.kept_by_chance[:, 1] - 0.75) < 0.12
    ).all()
    spared = retrained(texts, labels, good, shares=(1.0,), candidates=[[*range(5)]] * len(texts))
    assert (abs(spared.removed - 0.75) < 0.12).all()  # half of the words that tell lie elsewhere
    again = retrained(texts, labels, good, shares=(0.1, 0.5))
    assert all(np.array_equal(getattr(again, name), getattr(found, name)) for name in vars(found))


def test_counts_leave_out_what_is_gone() -> None:
    assert without([[3, 1, 3], [0]], [[0], []]).tolist() == [[0, 1, 0, 1, 1], [1, 0, 0, 0, 0]]


def test_what_cannot_be_learned_is_refused() -> None:
    texts, labels = sorted_texts(4)
    scores = [torch.ones(10)] * 4
    with pytest.raises(ValueError, match="4 texts, 3 labels and 4 scores"):
        retrained(texts, labels[:3], scores)
    with pytest.raises(ValueError, match=r"shares=\(2.0,\) must be between 0 and 1"):
        retrained(texts, labels, scores, shares=(2.0,))
    with pytest.raises(ValueError, match="have one label"):
        retrained(texts, [1] * 4, scores)
