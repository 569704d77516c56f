"""Grouped probes against a dense Hessian: what products show, what is taken out of them, and what that leaves."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import oracles, zoo
from helpers.asking import explain, predict, relative, signs
from helpers.group_oracles import products_of_groups, shown_by_others
from helpers.hessians import Dense, from_dense, random_hessian
from heta_lens._util.numerics import Samples
from heta_lens.diagnostics import standard_error
from heta_lens.methods.heta import probes as grouped_probes
from heta_lens.methods.heta.probes import (
    Groups,
    drawn_groups,
    gaussian,
    grouped_products,
    late_start,
    without_cross_talk,
)
from heta_lens.model.batching import Batches

N, GROUPS, PROBES, WIDTH = 9, 4, 5, 6
TARGET = 7


def decaying_hessian(n: int = N, d: int = WIDTH) -> Tensor:
    """A random one whose first tokens disturb the others most."""
    weights = torch.tensor([3.0, 2.0, *[1.0] * (n - 2)], dtype=torch.float64)
    return random_hessian(n, d) * weights[:, None, None, None] * weights[:, None]


def of_dense(hessian: Tensor, probes: int = PROBES, groups: int = GROUPS, seed: int = 0, at_once: int = 3) -> Tensor:
    """The readings of all tokens."""
    wanted = dict.fromkeys(range(len(hessian)), range(probes))
    return torch.stack(grouped_products(from_dense(hessian), seed, wanted, groups, at_once).readings())


def groups_of(hessian: Tensor, probe: int, seed: int = 0) -> Groups:
    """The groups that a probe has, from the first product."""
    n, d = hessian.shape[:2]
    pilot = torch.einsum("iajb,jb->ia", hessian, gaussian(seed, 0, 1, n, d)[0])
    return drawn_groups(pilot.square().sum(1), torch.ones(n, dtype=torch.bool), GROUPS, [seed, 0], probe)


# ------------------------------------------------------------------------------------------------ on real models
@pytest.mark.parametrize("name", [name for name, _ in zoo.KINDS])
def test_with_a_group_a_token_nothing_differs_from_probing_them_one_by_one(name: str) -> None:
    model = dict(zoo.KINDS)[name]()
    ids = zoo.prompt(model, 8)
    shared, alone = (explain(model, ids, TARGET, probes=2, groups=groups) for groups in (8, None))
    assert relative(shared.parts["curvature"], alone.parts["curvature"]) < 1e-12
    assert shared.diagnostics["hvps"] == alone.diagnostics["hvps"] == 16
    assert "cross_talk" not in shared.diagnostics


@pytest.mark.parametrize("name", [name for name, _ in zoo.KINDS])
def test_products_on_a_model_are_those_of_its_dense_hessian(name: str) -> None:
    model = dict(zoo.KINDS)[name]()
    ids = zoo.prompt(model, 6)
    prediction = predict(model, ids, TARGET)
    with prediction.running():
        width, objective = prediction.embeddings.shape[1], prediction.objective_from(0)
        bloom = name == "bridge-bloom"  # whose activation is one that torch.func cannot run
        hessian = oracles.dense_hessian(objective, prediction.embeddings.double(), functional=bloom)
    attribution = explain(model, ids, TARGET, probes=3, groups=3, variant="hessian_only")
    readings = of_dense(hessian, probes=3, groups=3)
    expected = torch.stack(without_cross_talk(readings.unbind())).mean(1)
    assert relative(attribution.parts["curvature"], expected) < zoo.tolerance(name)
    assert attribution.diagnostics["hvps"] == 3 * 3 + 1
    assert width * 6 == len(hessian.flatten(2).flatten(0, 1))


@pytest.mark.parametrize(
    "options", [{}, {"variant": "gn"}, {"variant": "ls", "layers": 1}, {"variant": "win", "window": 8}]
)
@pytest.mark.slow
def test_variants_share_products_too(options: dict[str, Any]) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 12)
    exact = explain(model, ids, TARGET, probes=400, groups=None, **options).parts["curvature"]
    attribution = explain(model, ids, TARGET, probes=400, groups=4, **options)
    error = attribution.standard_errors["curvature"]
    assert error is not None
    assert relative(attribution.parts["curvature"], exact) < 0.1
    assert attribution.diagnostics["hvps"] < 400 * 12 * 0.7
    assert attribution.diagnostics.cross_talk is not None and (attribution.diagnostics.cross_talk >= 0).any()


# ------------------------------------------------------------------------------------------------------ of the core
def test_readings_are_those_of_the_groups() -> None:
    hessian = decaying_hessian()
    readings, probes = of_dense(hessian), signs(0, PROBES, N, WIDTH)
    for probe in range(PROBES):
        groups = groups_of(hessian, probe)
        assert groups.alone > 0 and groups.count == GROUPS
        products = products_of_groups(hessian, probes[probe], groups.of)
        torch.testing.assert_close(readings[:, 0, probe], products.abs().sum(1))
        torch.testing.assert_close(readings[:, 1, probe], products.square().sum(1))
        shown = shown_by_others(hessian, probes[probe], groups.of, groups.alone)
        torch.testing.assert_close(readings[:, 2, probe], groups.expected_share() * shown)


def test_tokens_with_a_group_of_their_own_have_no_cross_talk() -> None:
    readings = of_dense(decaying_hessian())
    own = torch.einsum("iaib,kib->kia", decaying_hessian(), signs(0, PROBES, N, WIDTH)).abs().sum(-1)
    for token in (0, 1):
        assert not readings[token, 2].any()
        torch.testing.assert_close(readings[token, 0], own[:, token])
    assert all(readings[token, 2].all() for token in range(3, N))


@pytest.mark.slow
def test_many_probes_come_near_the_expectation_without_the_cross_talk() -> None:
    hessian = decaying_hessian()
    readings = of_dense(hessian, probes=4000, at_once=100)
    exact = oracles.expected_block_l1(hessian)
    samples = torch.stack(without_cross_talk(readings.unbind()))
    assert (samples.mean(1) / exact - 1).abs().max() < 0.1
    assert (readings[2:, 0].mean(1) / exact[2:] - 1).min() > 0.5


def test_samples_have_the_mean_and_the_spread_of_what_is_reported() -> None:
    readings = of_dense(decaying_hessian(), probes=12)[5]

    def reported(means: Tensor) -> Tensor:
        return means[0] * (1 - means[2] / means[1]).sqrt()

    (samples,) = without_cross_talk([readings])
    means = readings.mean(1)
    torch.testing.assert_close(samples.mean(), reported(means))
    slopes = torch.func.grad(reported)(means)
    expected = (slopes @ readings.cov() @ slopes / 12).sqrt()
    error = standard_error(Samples.even(samples[:, None]), torch.clone)
    assert error is not None
    torch.testing.assert_close(error[0], expected)


def test_cross_talk_above_all_that_was_seen_leaves_a_rest() -> None:
    readings = torch.tensor([[2.0, 2.0], [1.0, 1.0], [3.0, 5.0]])
    some, none = without_cross_talk([readings, torch.empty(3, 0)])
    assert 0 < float(some.mean()) < 2 and float(some.std()) == 0 and none.shape == (0,)


def test_a_token_that_bends_nothing_has_no_curvature_whatever_others_show() -> None:
    (dead,) = without_cross_talk([torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 2.0]])])
    assert dead.tolist() == [0.0, 0.0]


def test_a_hessian_of_few_blocks_gives_numbers() -> None:
    """Tokens of which most do not meet: what other groups show need not be in one's own."""
    hessian = random_hessian(N, WIDTH)
    hessian[3:] = hessian[:, :, 3:] = 0
    hessian[4, :, 8] = hessian[8, :, 4] = torch.eye(WIDTH, dtype=torch.float64)
    samples = torch.stack(without_cross_talk(of_dense(hessian).unbind()))
    assert samples.isfinite().all() and not samples[[3, 5, 6, 7]].any()


def test_neither_the_batch_nor_other_tokens_change_what_a_token_alone_shows() -> None:
    hessian = decaying_hessian()
    torch.testing.assert_close(of_dense(hessian, at_once=1), of_dense(hessian, at_once=99))
    assert not torch.equal(of_dense(hessian, seed=1), of_dense(hessian))
    torch.testing.assert_close(of_dense(hessian, probes=8)[:, :, :PROBES], of_dense(hessian))


def test_tokens_may_want_other_probes() -> None:
    hessian = decaying_hessian()
    wanted = {0: range(3), 2: range(3), 4: range(3, 6), 5: range(2, 6), 7: range(6), 8: range(6)}
    readings = grouped_products(from_dense(hessian), 0, wanted, 3, 99).readings()
    assert [own.shape[1] for own in readings] == [3, 3, 3, 4, 6, 6]
    own = torch.einsum("iaib,kib->kia", hessian, signs(0, 6, N, WIDTH)).abs().sum(-1)
    torch.testing.assert_close(readings[0][0], own[:3, 0])
    alone = grouped_products(from_dense(hessian), 0, wanted, 6, 99).readings()
    for (token, numbers), mine in zip(wanted.items(), alone, strict=True):
        torch.testing.assert_close(mine[0], own[numbers.start : numbers.stop, token])
        assert not mine[2].any()


def test_tokens_that_want_more_probes_have_the_same_expectation() -> None:
    n, more = 24, 600
    hessian = random_hessian(n, 4)
    hessian[range(n), :, range(n)] *= 6
    wanted = {token: range(more) if token % 3 == 0 else range(more // 3) for token in range(n)}
    readings = grouped_products(from_dense(hessian), 0, wanted, 4, 99).readings()
    exact = oracles.expected_block_l1(hessian)
    means = torch.stack([own.mean() for own in without_cross_talk(readings)])
    assert (means / exact - 1).abs().max() < 0.1
    assert [own.shape[1] for own in readings] == [more, more // 3, more // 3] * (n // 3)


def test_the_readings_of_an_operator_that_begins_later_are_the_same() -> None:
    hessian = decaying_hessian().flip(0, 2)  # the last tokens disturb the others most
    wanted = dict.fromkeys(range(3, N), range(PROBES))
    late = grouped_products(from_dense(hessian[3:, :, 3:]), 0, wanted, GROUPS, 9).readings()
    exact = oracles.block_l1(hessian, signs(0, PROBES, N, WIDTH))[:, 3:]
    for token in (4, 5):
        assert not late[token][2].any()
        torch.testing.assert_close(late[token][0], exact[:, token])


# --------------------------------------------------------------------------------------------------- of late tokens
def test_late_tokens_alone_show_the_same_from_a_graph_of_their_own() -> None:
    n = 60
    weights = torch.ones(n, dtype=torch.float64)
    weights[[3, 50, 55]] = 9.0
    hessian = random_hessian(n, 2) * weights[:, None, None, None] * weights[:, None]
    begun = list[int]()

    def begin(start: int) -> Dense:
        begun.append(start)
        return Dense(hessian[start:, :, start:])

    wanted = dict.fromkeys(range(n), range(PROBES))
    whole, later = (grouped_products(begin, 0, wanted, 8, 7, late=late) for late in (False, True))
    assert begun == [0, 0, 50]
    for one, other in zip(whole.readings(), later.readings(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("alone", "length", "start"),
    [
        ([], 100, 100),
        ([0, 1, 2], 100, 100),  # nothing is before them
        ([60] * 3, 100, 60),
        ([10, 60] * 3, 100, 60),
        ([60, 61] * 3, 100, 60),
        ([60, 95] * 9, 100, 60),
        ([30] * 9 + [60], 100, 30),
        ([95], 100, 95),  # a run of 5 positions takes as long as one of 32
        ([30] * 10, 32, 32),  # as long as the whole
        ([5], 200, 200),  # the graph would take more than one product saves
    ],
)
def test_a_graph_begins_later_where_that_saves_more_than_it_takes(alone: list[int], length: int, start: int) -> None:
    assert late_start(alone, length) == start


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:probes=10 were too few")
@pytest.mark.parametrize("options", [{}, {"variant": "gn"}, {"variant": "ls", "layers": 1}, {"tolerance": 0.2}])
@pytest.mark.parametrize(("name", "build"), zoo.named("bridge-(gpt2|llama|native)|hooked-rotary_gqa"))
def test_late_tokens_of_a_model_have_the_same_curvature(
    name: str, build: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build()
    ids, starts = zoo.prompt(model, 48), list[int]()

    def latest(alone: list[int], _: int) -> int:
        starts.append(max(alone))
        return starts[-1]

    monkeypatch.setattr(grouped_probes, "late_start", latest)
    late = explain(model, ids, TARGET, **options)
    monkeypatch.setattr(grouped_probes, "late_start", lambda _, length: length)
    whole = explain(model, ids, TARGET, **options)
    restarts = name != "bridge-native"  # whose runs cannot continue from keys and values
    assert bool(starts) == restarts
    assert (late.diagnostics["backwards"] > whole.diagnostics["backwards"]) == restarts
    assert relative(late.parts["curvature"], whole.parts["curvature"]) < zoo.tolerance(name)


# ----------------------------------------------------------------------------------------------------- as an option
def test_a_group_of_all_tokens_is_no_group() -> None:
    model = zoo.bridge("gpt2")
    with pytest.raises(ValueError, match="groups=1 must be at least 2"):
        explain(model, zoo.prompt(model, 5), TARGET, groups=1)


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_number_of_groups_is_refused() -> None:
    model = zoo.bridge("gpt2")
    with pytest.raises(TypeError, match="groups='many' must be a whole number, or None"):
        explain(model, zoo.prompt(model, 5), TARGET, groups="many")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"support": "row"}, "support='row'"),
        ({"norm": "exact"}, "norm='exact'"),
        ({"variant": "gs"}, "variant='gs'"),
    ],
)
def test_groups_without_effect_are_warned_of(options: dict[str, Any], why: str) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 2)
    with pytest.warns(UserWarning, match=f"groups=4 has no effect with {why}"):
        attribution = explain(model, ids, TARGET, groups=4, **options)
    assert attribution.diagnostics.unused_options == ("groups",)


def test_what_was_taken_out_is_reported_for_every_token_and_survives_a_file(tmp_path: Any) -> None:
    model = zoo.bridge("gpt2")
    attribution = explain(model, zoo.prompt(model, 12), TARGET, groups=4)
    taken = attribution.diagnostics.cross_talk
    assert taken is not None and taken.shape == (12,) and float(taken.sum()) > 0
    attribution.save(tmp_path / "a")
    again = type(attribution).load(tmp_path / "a")
    assert torch.equal(again.diagnostics["cross_talk"], taken)
    some = attribution.without([0, 5]).diagnostics.cross_talk
    assert some is not None and torch.equal(some, taken[[1, 2, 3, 4, *range(6, 12)]])


def test_a_small_batch_changes_nothing() -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, 12), TARGET)
    assert isinstance(prediction.prompt.batches(3, 12), Batches)
    one, other = (explain(model, zoo.prompt(model, 12), TARGET, groups=4, batch=batch) for batch in (1, 64))
    assert relative(one.scores, other.scores) < 1e-9
