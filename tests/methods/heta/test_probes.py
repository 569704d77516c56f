"""Tokens that share products: their groups, what is taken out as cross-talk, and the pairs of tokens."""

from typing import Any

import pytest
import torch
from einops import rearrange
from torch import Tensor

from helpers import oracles, zoo
from helpers.asking import explain, plain_embeddings, plain_log_probs, predict, relative, signs
from helpers.heta import Dense, dense, random_hessian
from helpers.oracles import every_deal, pair_energies, products_of_groups, shown_by_others
from heta_lens.methods.heta.probes import Groups, Readings, check_separable, drawn_groups, gaussian, grouped_products
from heta_lens.methods.heta.probes import _apart as apart
from heta_lens.methods.heta.probes import _shown as shown
from heta_lens.methods.heta.score import standard_error


@pytest.mark.thorough
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


N, GROUPS, PROBES, WIDTH = 9, 4, 5, 6
TARGET = 7


def decaying_hessian(n: int = N, d: int = WIDTH) -> Tensor:
    """A random one whose first tokens disturb the others most."""
    weights = torch.tensor([3.0, 2.0, *[1.0] * (n - 2)], dtype=torch.float64)
    return random_hessian(n, d) * weights[:, None, None, None] * weights[:, None]


def of_dense(hessian: Tensor, probes: int = PROBES, groups: int = GROUPS, seed: int = 0, at_once: int = 3) -> Tensor:
    """The readings of all tokens."""
    readings = grouped_products(Dense(hessian), seed, range(len(hessian)), probes, groups, at_once).readings()
    return torch.stack([torch.stack([*own]) for own in readings])


def without_cross_talk(readings: Any) -> list[Tensor]:
    return [Readings(*own).samples for own in readings]


def groups_of(hessian: Tensor, probe: int, seed: int = 0) -> Groups:
    """The groups that a probe has, from the first product."""
    n, d = hessian.shape[:2]
    pilot = torch.einsum("iajb,jb->ia", hessian, gaussian(seed, 0, 1, n, d)[0])
    return drawn_groups(pilot.square().sum(1), GROUPS, [seed, 0], probe)


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


@pytest.mark.thorough
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
        assert groups.singles > 0 and groups.count == GROUPS
        products = products_of_groups(hessian, probes[probe], groups.of)
        torch.testing.assert_close(readings[:, 0, probe], products.abs().sum(1))
        torch.testing.assert_close(readings[:, 1, probe], products.square().sum(1))
        shown = shown_by_others(hessian, probes[probe], groups.of, groups.singles)
        torch.testing.assert_close(readings[:, 2, probe], groups.expected_share() * shown)


@pytest.mark.thorough
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
    error = standard_error(samples[:, None], torch.clone)
    assert error is not None
    torch.testing.assert_close(error[0], expected)


def expected_energies(pairs: Tensor, groups: Groups) -> Tensor:
    """What each group shows at each token, on average over the signs."""
    return torch.stack([pairs[groups.of == group].sum(0) for group in range(groups.count)])


@pytest.mark.sample(quick=1, test=1)
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
    drawn = [drawn_groups(energies, groups, [0, 0], probe) for probe in range(probes)]
    assert torch.stack([apart(own) for own in drawn]).sum(0).min() >= 2


TOKENS = 5
SEVERAL = "bridge-(gpt2|llama|native)|hooked-(rotary_gqa|parallel)"


def asked(model: Any, ids: Tensor, target: Any = TARGET, **options: Any) -> Any:
    return explain(model, ids, target, interactions=True, gamma=0, **options)


@pytest.mark.parametrize(("name", "build"), zoo.named(SEVERAL))
def test_entrywise_norms_give_every_block_of_the_dense_hessian(name: str, build: Any) -> None:
    model = build()
    ids, close = zoo.prompt(model, TOKENS), zoo.tolerance(name)
    expected = dense(model, ids)
    for support in ("block", "row"):
        found = asked(model, ids, norm="entrywise", support=support)
        assert relative(found.interactions, oracles.entrywise_pairs(expected)) < close, support
        assert torch.equal(found.interactions, found.interactions.T)
        assert found.diagnostics["standard_errors"]["interactions"] is None
        # They come with the curvature, and leave it as it is.
        alone = explain(model, ids, TARGET, gamma=0, norm="entrywise", support=support)
        torch.testing.assert_close(found.scores, alone.scores)


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


@pytest.mark.thorough
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
        for support in ("block", "row"):
            found = asked(model, ids, norm="entrywise", support=support, **options)
            assert relative(found.interactions, oracles.entrywise_pairs(expected)) < 1e-7, (options, support)


@pytest.mark.thorough
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
