"""Tokens that share products: their groups, what is taken out as cross-talk, and the pairs of tokens."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from einops import rearrange
from torch import Tensor

import heta_lens
from helpers import oracles, zoo
from helpers.asking import chunks, explain, plain_embeddings, plain_log_probs, predict, relative, signs
from helpers.heta import from_dense, hessian_from, random_hessian, signs_over
from helpers.oracles import every_deal, pair_energies, products_of_groups, shown_by_others
from heta_lens._util.numerics import Samples
from heta_lens._util.work import counting
from heta_lens.diagnostics import standard_error
from heta_lens.methods.heta import probes as grouped_probes
from heta_lens.methods.heta.curvature import Norm, curvature
from heta_lens.methods.heta.probes import (
    Groups,
    Pairs,
    Readings,
    check_separable,
    count_alone,
    dealt,
    drawn_groups,
    gaussian,
    grouped_products,
    late_start,
    pairs_of_groups,
    rounds,
)
from heta_lens.methods.heta.probes import _apart as apart
from heta_lens.methods.heta.probes import _shown as shown


@pytest.mark.parametrize(("tokens", "groups"), [(4, 2), (5, 2), (6, 3), (7, 3)])
def test_the_expected_cross_talk_is_that_of_all_deals(tokens: int, groups: int) -> None:
    energies = pair_energies(random_hessian(tokens, 2))
    real, expected = torch.zeros(2, tokens, dtype=torch.float64)
    deals = every_deal(tokens, groups)
    for of in deals:
        together = of[:, None] == of
        real += (energies * (together & ~torch.eye(tokens, dtype=torch.bool))).sum(1)
        expected += Groups(of, 0, groups).expected_share() * (energies * ~together).sum(1)
    torch.testing.assert_close(expected / len(deals), real / len(deals))


def test_every_token_is_in_one_group_and_groups_differ_by_one_at_most() -> None:
    energies, present = torch.rand(23, dtype=torch.float64), torch.ones(23, dtype=torch.bool)
    present[4] = False
    groups = drawn_groups(energies, present, 6, [0, 0], 0)
    counts = torch.bincount(groups.of[present], minlength=6)
    assert groups.of[4] == -1 and counts.sum() == 22
    assert (counts[: groups.alone] == 1).all() and int(counts[groups.alone :].max() - counts[groups.alone :].min()) <= 1
    other = drawn_groups(energies, present, 6, [0, 0], 1)
    assert torch.equal(other.of < groups.alone, groups.of < groups.alone) and not torch.equal(other.of, groups.of)


@pytest.mark.parametrize(
    ("energies", "groups", "alone"),
    [
        ([100.0, 1, 1, 1, 1, 1, 1, 1], 4, 1),  # one token disturbs all others
        ([1.0] * 40, 4, 0),  # all do alike: no group may be wasted
        ([50.0, 40, 30, 20, *[1] * 16], 8, 4),
        ([9.0, 8, 7, 6, 5], 2, 0),  # two groups are the least to be shared
        ([100.0, 1, 1, 1, 1], 2, 0),
        ([100.0, 1, 1, 1, 1], 3, 1),
        ([1e6] * 6 + [1.0] * 6, 8, 4),  # at most half may be of one token
        ([0.0] * 5, 4, 0),
    ],
)
def test_the_most_disturbing_tokens_get_groups_of_their_own(energies: list[float], groups: int, alone: int) -> None:
    assert count_alone(torch.tensor(energies), groups) == alone


@pytest.mark.parametrize(("tokens", "groups"), [(5, 8), (9, 8), (64, 8), (65, 8), (100, 3), (300, 8), (17, 2)])
def test_a_few_deals_in_a_row_set_any_two_tokens_apart(tokens: int, groups: int) -> None:
    needed = rounds(tokens, groups)
    assert groups**needed >= tokens > groups ** (needed - 1) or needed == 1
    for turn in range(3):
        deals = torch.stack([dealt(tokens, groups, [7], turn * needed + digit) for digit in range(needed)])
        together = (deals[:, :, None] == deals[:, None, :]).all(0)
        assert torch.equal(together, torch.eye(tokens, dtype=torch.bool))
        for deal in deals:
            sizes = torch.bincount(deal, minlength=groups)
            assert int(sizes.max() - sizes.min()) <= 1


N, GROUPS, PROBES, WIDTH = 9, 4, 5, 6

TARGET = 7


def decaying_hessian(n: int = N, d: int = WIDTH) -> Tensor:
    """A random one whose first tokens disturb the others most."""
    weights = torch.tensor([3.0, 2.0, *[1.0] * (n - 2)], dtype=torch.float64)
    return random_hessian(n, d) * weights[:, None, None, None] * weights[:, None]


def of_dense(hessian: Tensor, probes: int = PROBES, groups: int = GROUPS, seed: int = 0, at_once: int = 3) -> Tensor:
    """The readings of all tokens."""
    wanted = dict.fromkeys(range(len(hessian)), range(probes))
    readings = grouped_products(from_dense(hessian), seed, wanted, groups, at_once).readings()
    return torch.stack([torch.stack([*own]) for own in readings])


def without_cross_talk(readings: Any) -> list[Tensor]:
    return [Readings(*own).samples for own in readings]


def groups_of(hessian: Tensor, probe: int, seed: int = 0) -> Groups:
    """The groups that a probe has, from the first product."""
    n, d = hessian.shape[:2]
    pilot = torch.einsum("iajb,jb->ia", hessian, gaussian(seed, 0, 1, n, d)[0])
    return drawn_groups(pilot.square().sum(1), torch.ones(n, dtype=torch.bool), GROUPS, [seed, 0], probe)


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
        width, g = prediction.embeddings.shape[1], prediction.rerun().g
        bloom = name == "bridge-bloom"  # whose activation is one that torch.func cannot run
        hessian = oracles.dense_hessian(lambda e: g(e[None])[0], prediction.embeddings.double(), functional=bloom)
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


def test_neither_the_batch_nor_other_tokens_change_what_a_token_alone_shows() -> None:
    hessian = decaying_hessian()
    torch.testing.assert_close(of_dense(hessian, at_once=1), of_dense(hessian, at_once=99))
    assert not torch.equal(of_dense(hessian, seed=1), of_dense(hessian))
    torch.testing.assert_close(of_dense(hessian, probes=8)[:, :, :PROBES], of_dense(hessian))


def test_tokens_may_want_other_probes() -> None:
    hessian = decaying_hessian()
    wanted = {0: range(3), 2: range(3), 4: range(3, 6), 5: range(2, 6), 7: range(6), 8: range(6)}
    readings = grouped_products(from_dense(hessian), 0, wanted, 3, 99).readings()
    assert [len(own.size) for own in readings] == [3, 3, 3, 4, 6, 6]
    own = torch.einsum("iaib,kib->kia", hessian, signs(0, 6, N, WIDTH)).abs().sum(-1)
    torch.testing.assert_close(readings[0][0], own[:3, 0])
    alone = grouped_products(from_dense(hessian), 0, wanted, 6, 99).readings()
    for (token, numbers), mine in zip(wanted.items(), alone, strict=True):
        torch.testing.assert_close(mine[0], own[numbers.start : numbers.stop, token])
        assert not mine[2].any()


def test_the_readings_of_an_operator_that_begins_later_are_the_same() -> None:
    hessian = decaying_hessian().flip(0, 2)  # the last tokens disturb the others most
    wanted = dict.fromkeys(range(3, N), range(PROBES))
    late = grouped_products(from_dense(hessian[3:, :, 3:]), 0, wanted, GROUPS, 9).readings()
    exact = oracles.block_l1(hessian, signs(0, PROBES, N, WIDTH))[:, 3:]
    for token in (4, 5):
        assert not late[token][2].any()
        torch.testing.assert_close(late[token][0], exact[:, token])


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


MANY, MORE_GROUPS = 14, 6


def uneven_hessian() -> Tensor:
    """A random one whose first tokens disturb the others most."""
    weights = torch.tensor([4.0, 3.0, *[1.0] * (MANY - 2)], dtype=torch.float64)
    return random_hessian(MANY, WIDTH) * weights[:, None, None, None] * weights[:, None]


def expected_energies(pairs: Tensor, groups: Groups) -> Tensor:
    """What each group shows at each token, on average over the signs."""
    return torch.stack([pairs[groups.of == group].sum(0) for group in range(groups.count)])


@pytest.mark.parametrize("alone", [0, 1, 2])
def test_over_all_deals_a_pair_that_is_apart_shows_its_block(alone: int) -> None:
    tokens, count = 6, 3 + alone
    pairs = pair_energies(random_hessian(tokens + alone, 2))
    total, often = torch.zeros(2, tokens + alone, tokens + alone, dtype=torch.float64)
    for of in every_deal(tokens, 3):
        groups = Groups(torch.cat([torch.arange(alone), of + alone]), alone, count)
        separate = apart(groups)
        total += torch.where(separate, shown(groups, expected_energies(pairs, groups)), 0)
        often += separate
    torch.testing.assert_close(total / often, pairs)


def test_a_token_alone_shows_its_pairs_without_the_others() -> None:
    pairs = pair_energies(uneven_hessian())
    groups = drawn_groups(pairs.sum(1), torch.ones(MANY, dtype=torch.bool), MORE_GROUPS, [0, 0], 0)
    assert groups.of[:2].tolist() == [0, 1] and groups.alone < MANY
    one = shown(groups, expected_energies(pairs, groups))
    torch.testing.assert_close(one[:2], pairs[:2])
    torch.testing.assert_close(one, one.T)


def test_with_a_group_a_token_pairs_are_the_mean_of_both_readings() -> None:
    hessian = random_hessian(4, WIDTH)
    products = grouped_products(from_dense(hessian), 0, dict.fromkeys(range(4), range(3)), 4, 64)
    squares = products.energies.transpose(1, 2)  # of H_ij r_j, by i and j
    both = (squares + squares.transpose(1, 2)) / 2
    pairs = pairs_of_groups(products)
    torch.testing.assert_close(pairs.sizes, both.mean(0).sqrt())
    torch.testing.assert_close(pairs.standard_errors, both.std(0) / 3**0.5 / (2 * both.mean(0).sqrt()))


@pytest.mark.parametrize(("tokens", "groups", "probes"), [(14, 6, 6), (50, 16, 4), (512, 16, 6), (17, 5, 6)])
def test_the_fewest_probes_that_are_let_through_set_all_pairs_apart_twice(
    tokens: int, groups: int, probes: int
) -> None:
    check_separable(tokens, groups, probes)
    with pytest.raises(
        ValueError, match=f"interactions=True needs at least probes={probes} .* got probes={probes - 1}"
    ):
        check_separable(tokens, groups, probes - 1)
    energies = torch.ones(tokens, dtype=torch.float64)
    energies[:groups] = 1e6
    drawn = [drawn_groups(energies, energies > 0, groups, [0, 0], probe) for probe in range(probes)]
    assert torch.stack([apart(own) for own in drawn]).sum(0).min() >= 2


def test_too_few_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="tell pairs of 20 tokens apart in groups=4: it needs groups=5 or more"):
        check_separable(20, 4, 100)


TOKENS = 5

SEVERAL = "bridge-(gpt2|llama|native)|hooked-(rotary_gqa|parallel)"


def asked(model: Any, ids: Tensor, target: Any = TARGET, **options: Any) -> Any:
    return explain(model, ids, target, interactions=True, gamma=0, **options)


def dense(model: Any, ids: Tensor) -> oracles.Hessian:
    log_probs = plain_log_probs(model, ids)
    return oracles.dense_hessian(lambda e: log_probs(e)[TARGET], plain_embeddings(model, ids), functional=True)


def of_quadratic(matrix: Tensor, probes: int = 1, seed: int = 0, chunk: int = 2, norm: Norm = "hutchinson") -> Pairs:
    at = torch.ones(len(matrix), matrix.shape[1], dtype=torch.float64)
    products, by_start = hessian_from(oracles.quadratic(matrix), at, batch=64), chunks(range(len(matrix)), chunk)
    signs = signs_over(at, probes, seed)
    found = curvature(products, signs, support="block", norm=norm, by_start=by_start, pairs=True).pairs
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "build"), zoo.named(SEVERAL))
def test_exact_norms_give_every_block_of_the_dense_hessian(name: str, build: Any) -> None:
    model = build()
    ids, close = zoo.prompt(model, TOKENS), zoo.tolerance(name)
    expected = dense(model, ids)
    for support in ("block", "row"):
        found = asked(model, ids, norm="entrywise", support=support)
        assert relative(found.interactions, oracles.entrywise_pairs(expected)) < close, support
    exact = asked(model, ids, norm="exact")
    assert relative(exact.interactions, oracles.frobenius_pairs(expected)) < close
    assert torch.equal(exact.interactions, exact.interactions.T)
    assert exact.diagnostics["standard_errors"]["interactions"] is None
    # They come with the curvature, and leave it as it is.
    assert torch.equal(exact.scores, explain(model, ids, TARGET, gamma=0, norm="exact").scores)


def test_the_probes_are_those_of_the_curvature() -> None:
    model = zoo.bridge("gpt2")
    ids, probes = zoo.prompt(model, TOKENS), signs(2, 3, TOKENS, 8)
    squares = torch.einsum("iajb,kjb->kija", dense(model, ids), probes).square().sum(-1)  # of H_ij r_j
    found = asked(model, ids, probes=3, seed=2)
    expected = squares.mean(0).sqrt()
    expected = expected.tril() + expected.tril(-1).T  # an earlier token's probes tell of it and later ones
    assert relative(found.interactions, expected) < 1e-8
    error = squares.std(0) / 3**0.5 / (2 * squares.mean(0).sqrt())
    error = error.tril() + error.tril(-1).T
    assert relative(found.diagnostics["standard_errors"]["interactions"], error) < 1e-8
    assert relative(found.scores, explain(model, ids, TARGET, gamma=0, probes=3, seed=2).scores) < 1e-12
    assert asked(model, ids, probes=1).diagnostics["standard_errors"]["interactions"] is None


@pytest.mark.parametrize(("name", "build"), zoo.named("bridge-(gpt2|llama)|hooked-rotary_gqa"))
def test_rows_of_entries_sum_to_the_curvature_of_rows(name: str, build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, TOKENS)
    row = asked(model, ids, norm="entrywise", support="row")
    assert relative(row.interactions.sum(1), row.parts["curvature"]) < zoo.tolerance(name)
    block = asked(model, ids, norm="entrywise")
    assert relative(block.interactions.sum(1), row.parts["curvature"]) < zoo.tolerance(name)
    assert relative(block.interactions.diagonal(), block.parts["curvature"]) < zoo.tolerance(name)


@pytest.mark.slow
def test_every_kind_of_hessian_has_its_pairs() -> None:
    model, rank = zoo.bridge("gpt2"), 3
    ids = zoo.prompt(model, TOKENS)
    log_probs, at = plain_log_probs(model, ids), plain_embeddings(model, ids)
    stream = oracles.log_probs_of_stream(model, ids, 1)
    tests = rearrange(gaussian(0, 0, rank + 8, TOKENS, 8), "k n d -> n d k")
    cases: list[tuple[dict[str, Any], Tensor]] = [
        ({"variant": "gn"}, oracles.gauss_newton(log_probs, at)),
        ({"variant": "lr", "rank": rank, "probes": 2}, oracles.range_finder(dense(model, ids), tests, rank)[0]),
        (
            {"variant": "ls", "layers": 1},
            oracles.dense_hessian(lambda e: stream(e)[TARGET], oracles.stream(model, ids, 1), functional=True),
        ),
    ]
    for options, expected in cases:
        for norm, oracle in (("exact", oracles.frobenius_pairs), ("entrywise", oracles.entrywise_pairs)):
            found = asked(model, ids, norm=norm, **options)
            assert relative(found.interactions, oracle(expected)) < 1e-7, (options, norm)
        found = asked(model, ids, norm="entrywise", support="row", **options)
        assert relative(found.interactions, oracles.entrywise_pairs(expected)) < 1e-7, options


@pytest.mark.slow
@pytest.mark.parametrize(("name", "build"), zoo.named("bridge-(gpt2|llama)|hooked-rotary_gqa"))
def test_tokens_that_share_products_have_their_pairs_too(name: str, build: Any) -> None:  # noqa: ARG001
    model = build()
    ids = zoo.prompt(model, 9)
    exact = oracles.frobenius_pairs(dense(model, ids))
    shared = asked(model, ids, probes=400, batch=100, groups=6)
    error = shared.diagnostics["standard_errors"]["interactions"]
    assert shared.diagnostics["hvps"] == 6 * 400 + 1
    assert ((shared.interactions - exact).abs() < 4.5 * error).all()
    assert relative(shared.interactions, exact) < 0.1
    plain = explain(model, ids, TARGET, gamma=0, probes=400, batch=100, groups=6)
    assert relative(shared.scores, plain.scores) < 1e-12


def test_pairs_that_groups_cannot_tell_apart_are_refused_before_any_work() -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, 9), TARGET)
    for options, message in (({"groups": 4}, "groups=5 or more"), ({"groups": 6, "probes": 3}, "at least probes=4")):
        with counting(Counter()) as ran, pytest.raises(ValueError, match=message):
            heta_lens.Heta(interactions=True, **options)(prediction)
        assert not ran["forwards"] and not ran["backwards"]


def test_pairs_of_a_contrast_at_a_position_and_under_a_hook() -> None:
    model, pair = zoo.bridge("gpt2"), (7, 9)
    ids = zoo.prompt(model, TOKENS + 2)
    log_probs = plain_log_probs(model, ids[:, :TOKENS])
    bent = oracles.dense_hessian(
        lambda e: log_probs(e)[7] - log_probs(e)[9], plain_embeddings(model, ids[:, :TOKENS]), functional=True
    )
    found = asked(model, ids, pair, position=TOKENS, norm="exact")
    assert relative(found.interactions, oracles.frobenius_pairs(bent)) < 1e-8
    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_post", lambda live, hook: live * 1.0)]):  # noqa: ARG005
        again = asked(model, ids, pair, position=TOKENS, norm="exact")
    assert relative(again.interactions, found.interactions) < 1e-9


def test_leaving_tokens_out_leaves_their_rows_and_columns_out() -> None:
    model = zoo.bridge("gpt2")
    whole = asked(model, zoo.prompt(model, TOKENS), probes=3)
    rest = whole.without([1, 4])
    keep = [0, 2, 3]
    assert torch.equal(rest.interactions, whole.interactions[keep][:, keep])
    error = whole.diagnostics["standard_errors"]["interactions"]
    assert torch.equal(rest.diagnostics["standard_errors"]["interactions"], error[keep][:, keep])
    again = rest.without([2])
    assert torch.equal(again.interactions, whole.interactions[[0, 3]][:, [0, 3]])


@pytest.mark.parametrize("norm", ["hutchinson", "entrywise"])
def test_a_file_keeps_pairs(norm: str, tmp_path: Path) -> None:
    model = zoo.bridge("gpt2")
    saved = asked(model, zoo.prompt(model, TOKENS), norm=norm)
    saved.save(tmp_path / "pairs")
    loaded = heta_lens.Attribution.load(tmp_path / "pairs")
    assert torch.equal(torch.as_tensor(loaded.interactions), saved.interactions)
    error = saved.diagnostics["standard_errors"]["interactions"]
    kept = loaded.diagnostics["standard_errors"]["interactions"]
    assert kept is None if norm == "entrywise" else torch.equal(kept, error)


@pytest.mark.parametrize("chunk", [1, 2, 3, 99])
def test_pairs_of_a_quadratic_are_its_blocks(chunk: int) -> None:
    matrix = random_hessian(5, 3)
    for norm, oracle in (("exact", oracles.frobenius_pairs), ("entrywise", oracles.entrywise_pairs)):
        found = of_quadratic(matrix, norm=norm, chunk=chunk)
        torch.testing.assert_close(found.sizes, oracle(matrix), rtol=1e-10, atol=0)
        assert found.standard_errors is None
