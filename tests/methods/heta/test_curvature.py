"""The curvature against dense Hessians, with every sign vector enumerated, and of a low rank in their place."""

from functools import partial
from typing import Any

import pytest
import torch
from einops import rearrange
from scipy.stats import t as student
from torch import Tensor

from helpers import oracles, zoo
from helpers.asking import chunks, explain, plain_embeddings, plain_log_probs, relative, signs
from helpers.heta import Dense, hessian_from, random_hessian, signs_over
from helpers.odd_models import sure
from heta_lens._util.numerics import Samples
from heta_lens.diagnostics import standard_error
from heta_lens.methods.heta.curvature import (
    LowRank,
    Norm,
    Support,
    check_enumerable,
    curvature,
    expected_l1,
    low_rank,
    tail_energy,
)
from heta_lens.methods.heta.hessian import EVERYWHERE, HessianOperator, Places
from heta_lens.methods.heta.probes import gaussian, rademacher

BLOCKS = (
    "hooked-(standard|rotary_gqa|parallel)|bridge-(gpt2|llama|gptj|neox)"  # LN + learned, RMS + rotary + GQA, parallel
)

TARGET = 7


def close(name: str) -> float:
    """1e-8, but for norms that Hugging Face computes in float32 whatever the model."""
    return 3e-5 if name in ("bridge-llama", "bridge-gptj") else 1e-8


def dense(model: Any, ids: Tensor) -> oracles.Hessian:
    log_probs = plain_log_probs(model, ids)
    return oracles.dense_hessian(lambda e: log_probs(e)[TARGET], plain_embeddings(model, ids), functional=True)


def found(model: Any, ids: Tensor, **options: Any) -> Tensor:
    return explain(model, ids, TARGET, variant="hessian_only", **options).parts["curvature"]


def of_quadratic(matrix: Tensor, probes: int, **options: Any) -> Tensor:
    """Samples of ``½ EᵀQE`` at a random point: its Hessian is Q everywhere."""
    n, _, _, d = matrix.shape
    at = torch.randn(n, d, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    how = {name: options.pop(name) for name in ("batch", "done") if name in options}
    signs, by_start = signs_over(at, probes, options.pop("seed", 0)), chunks(range(n), options.pop("chunk", 2))
    options = {"support": "block", "norm": "hutchinson"} | options
    return curvature(hessian_from(oracles.quadratic(matrix), at, **how), signs, by_start=by_start, **options).values


@pytest.mark.parametrize(("name", "build"), zoo.named(BLOCKS))
def test_both_supports_equal_the_dense_hessian_with_the_same_probes(name: str, build: Any) -> None:
    model, n = build(), 4
    ids = zoo.prompt(model, n)
    hessian = dense(model, ids)
    probes = signs(0, 10, n, hessian.shape[1])
    assert relative(found(model, ids), oracles.block_l1(hessian, probes).mean(0)) < close(name)
    assert relative(found(model, ids, support="row"), oracles.row_l1(hessian, probes).mean(0)) < close(name)


@pytest.mark.parametrize(("name", "build"), zoo.named(BLOCKS))
def test_exact_and_entrywise_norms_equal_the_dense_hessian(name: str, build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 4)
    hessian = dense(model, ids)
    for norm, support, oracle in (
        ("exact", "block", oracles.expected_block_l1),
        ("entrywise", "block", oracles.entrywise_block),
        ("entrywise", "row", oracles.entrywise_row),
    ):
        assert relative(found(model, ids, norm=norm, support=support), oracle(hessian)) < close(name), (norm, support)


@pytest.mark.parametrize(("name", "build"), zoo.named("gpt2|rotary_gqa"))
def test_the_exact_row_norm_visits_every_sign_of_every_token(name: str, build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 2)
    expected = oracles.expected_row_l1(dense(model, ids))
    assert relative(found(model, ids, norm="exact", support="row"), expected) < close(name)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "build"), zoo.named(BLOCKS))
@pytest.mark.usefixtures("unchecked")
def test_many_probes_come_within_three_standard_errors_of_the_exact_expectation(name: str, build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 4)
    attribution = explain(model, ids, TARGET, variant="hessian_only", probes=400)
    error = attribution.standard_errors["curvature"]
    assert error is not None
    miss = (attribution.parts["curvature"] - oracles.expected_block_l1(dense(model, ids))).abs()
    assert (miss < 3 * error).all(), (name, miss / error)
    assert (error < 0.05 * attribution.parts["curvature"]).all()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "build"), zoo.named("hooked-gpt2|bridge-llama"))
@pytest.mark.usefixtures("unchecked")
def test_ten_probes_give_honest_intervals(name: str, build: Any) -> None:  # noqa: ARG001
    """Student's t 95 % intervals from 10 probes hold the exact value in 92–98 % of repeats of a model's blocks."""
    hessian = dense(build(), zoo.prompt(build(), 4))
    repeats, probes = 400, 10
    samples = of_quadratic(hessian, repeats * probes)
    exact = oracles.expected_block_l1(hessian)
    reach = float(student.ppf(0.975, probes - 1))
    covered = []
    for group in samples.split(probes):
        error = standard_error(Samples.even(group), lambda mean: mean)
        assert error is not None
        covered.append(((group.mean(0) - exact).abs() <= reach * error).double())
    assert 0.92 < torch.stack(covered).mean() < 0.98


@pytest.mark.parametrize(("block", "expected", "entrywise"), oracles.BLOCKS)
def test_blocks_by_hand(block: oracles.Matrix, expected: float, entrywise: float) -> None:
    hessian = oracles.block_hessian(block, tokens=3)
    assert of_quadratic(hessian, 1, norm="exact").tolist() == [[pytest.approx(expected)] * 3]
    assert of_quadratic(hessian, 1, norm="entrywise").tolist() == [[pytest.approx(entrywise)] * 3]


@pytest.mark.parametrize("support", ["block", "row"])
def test_every_probe_of_a_quadratic_equals_its_definition(support: Support) -> None:
    hessian = random_hessian(3, 4)
    oracle = oracles.block_l1 if support == "block" else oracles.row_l1
    samples = of_quadratic(hessian, 6, support=support)
    torch.testing.assert_close(samples, oracle(hessian, signs(0, 6, 3, 4)), rtol=1e-10, atol=0)


@pytest.mark.parametrize("support", ["block", "row"])
@pytest.mark.parametrize("norm", ["hutchinson", "exact", "entrywise"])
@pytest.mark.parametrize("trainable", [False, True])
def test_an_affine_function_has_no_curvature(support: Support, norm: Norm, trainable: bool) -> None:
    weights = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights.requires_grad_(trainable)  # as those of a hook may be
    counted: list[int] = []
    at = torch.ones(3, 4, dtype=torch.float64)
    products = hessian_from(lambda e: (weights * e).sum() + 1, at, done=counted.append)
    samples = curvature(products, signs_over(at, 2), support=support, norm=norm, by_start=chunks(range(3), 2)).values
    assert samples.shape == (2 if norm == "hutchinson" else 1, 3)
    assert not samples.any()
    at_once = support == "row" and norm == "hutchinson"
    assert sum(counted) == (2 if norm == "hutchinson" else 4) * (1 if at_once else 3)


def test_a_chunk_begins_where_the_one_before_it_ends_and_rows_need_all_tokens_at_once() -> None:
    matrix = random_hessian(5, 2)
    at = torch.zeros(5, 2, dtype=torch.float64)
    for support, norm, oracle, begun in (
        ("block", "entrywise", oracles.entrywise_block, [0, 2, 4]),
        ("row", "entrywise", oracles.entrywise_row, [0]),
        ("row", "exact", oracles.expected_row_l1, [0]),
    ):
        starts: list[int] = []

        def begin(start: int, starts: list[int] = starts) -> HessianOperator:
            starts.append(start)
            return hessian_from(oracles.quadratic(matrix), at)(start)

        by_start = chunks(range(5), 2)
        samples = curvature(begin, signs_over(at, 1), support=support, norm=norm, by_start=by_start).values
        torch.testing.assert_close(samples[0], oracle(matrix), rtol=1e-10, atol=0)
        assert starts == begun


def test_no_more_products_are_alive_at_once_than_a_batch_holds() -> None:
    counted: list[int] = []
    of_quadratic(random_hessian(2, 3), 5, batch=2, done=counted.append)
    assert counted == [2] * 5, "ten directions, two to a product"


def test_expected_l1_visits_all_signs_in_every_chunk() -> None:
    rows = torch.randn(3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    every = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 16)
    torch.testing.assert_close(expected_l1(rows), (every @ rows.T).abs().sum(1).mean(), rtol=1e-12, atol=0)
    assert float(expected_l1(torch.tensor([[3.0]]))) == 3


def test_twenty_signs_can_be_enumerated_and_no_more() -> None:
    check_enumerable(4, 20, "block")
    check_enumerable(4, 5, "row")
    for shape, support in (((4, 21), "block"), ((3, 7), "row")):
        with pytest.raises(ValueError, match=r"all 2\^21 sign vectors"):
            check_enumerable(*shape, support)


def test_a_sure_prediction_keeps_its_digits_in_float32() -> None:
    """Although what is left of 1 - p has none there."""
    ids = zoo.prompt(zoo.bridge("gpt2"), 12, 3)
    single, double = (explain(sure("gpt2", kind, 50), ids, probes=2) for kind in (torch.float32, torch.float64))
    assert -1e-6 < double.diagnostics["target_log_prob"] < 0
    assert relative(single.parts["curvature"], double.parts["curvature"]) < 1e-4


N, PROBES = 4, 3

NORMS: list[dict[str, Any]] = [
    {"support": support, "norm": norm} for support in ("block", "row") for norm in ("hutchinson", "entrywise")
]

SEVERAL = "bridge-(gpt2|llama|native)|hooked-(rotary_gqa|alibi)"


def curved(model: Any, ids: Tensor, target: Any = TARGET, **options: Any) -> Any:
    """Without information, which a low rank has nothing to do with."""
    return explain(model, ids, target, gamma=0, probes=options.pop("probes", PROBES), **options)


def cut(hessian: Tensor, rank: int, seed: int = 0, start: int = 0) -> Tensor:
    """The oracle's H_k, with the directions that are said to be used."""
    n, d = hessian.shape[:2]
    tests = gaussian(seed, start, min(rank + 8, n * d), n, d)
    return oracles.range_finder(hessian, rearrange(tests, "k n d -> n d k"), rank)[0]


def of_norm(hessian: Tensor, support: str, norm: str, seed: int = 0) -> Tensor:
    if norm == "entrywise":
        return (oracles.entrywise_block if support == "block" else oracles.entrywise_row)(hessian)
    probes = signs(seed, PROBES, *hessian.shape[:2])
    return (oracles.block_l1 if support == "block" else oracles.row_l1)(hessian, probes).mean(0)


def low_rank_of(matrix: Tensor, rank: int, probes: int = 4, seed: int = 0) -> LowRank:
    return low_rank(Dense(matrix), rank, partial(gaussian, seed, 0), signs(seed, probes, *matrix.shape[:2]))


def of_rank(rank: int, n: int, d: int) -> Tensor:
    """A symmetric, indefinite matrix, with eigenvalues 1, -2, 3, ..."""
    vectors = torch.linalg.qr(random_hessian(n, d).reshape(n * d, n * d)[:, :rank]).Q
    sizes = torch.arange(1, rank + 1, dtype=torch.float64) * (-1.0) ** torch.arange(rank)
    return (vectors * sizes @ vectors.T).reshape(n, d, n, d)


@pytest.mark.parametrize(("name", "build"), zoo.named(""))
@pytest.mark.filterwarnings("ignore:probes=10 has no effect with norm='entrywise'")
def test_all_of_the_rank_is_the_full_method(name: str, build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    close = 1e-10 if zoo.tolerance(name) < 1e-6 else 1e-5
    several = NORMS if name in ("bridge-gpt2", "hooked-rotary_gqa") else NORMS[:1]
    for rank, how in zip((32, 40, 32, 64), several, strict=False):
        drawn = {"probes": 10} if how["norm"] == "entrywise" else {}  # which says nothing to an exact norm
        low, full = curved(model, ids, variant="lr", rank=rank, **how), curved(model, ids, **drawn, **how)
        assert relative(low.parts["curvature"], full.parts["curvature"]) < close, how
        assert relative(low.scores, full.scores) < close, how
        assert low.diagnostics["tail_energy_share"] < close


@pytest.mark.parametrize(("name", "build"), zoo.named(SEVERAL))
@pytest.mark.usefixtures("unchecked")
def test_a_part_of_the_rank_is_the_oracles_range_finder(name: str, build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    hessian = dense(model, ids)
    for rank in (1, 5, 18):
        expected = cut(hessian, rank)
        assert relative(expected, hessian) > 1e-3
        for how in NORMS if rank == 5 else NORMS[:2]:
            low = curved(model, ids, variant="lr", rank=rank, **how)
            assert relative(low.parts["curvature"], of_norm(expected, **how)) < 30 * zoo.tolerance(name), (rank, how)


@pytest.mark.parametrize("build", zoo.models("bridge-gpt2|hooked-rotary_gqa"))
def test_many_probes_tell_how_much_is_left_out(build: Any) -> None:
    model, rank, probes = build(), 3, 600
    ids = zoo.prompt(model, N)
    hessian = dense(model, ids)
    expected = cut(hessian, rank)
    exact = float(oracles.residual_energy(hessian, expected))
    samples = torch.einsum("iajb,kjb->kia", hessian - expected, signs(5, probes, N, 8)).square().sum((1, 2))
    error = float(samples.std()) / probes**0.5
    facts = curved(model, ids, variant="lr", rank=rank, probes=probes).diagnostics
    assert abs(facts["tail_energy"] ** 2 - exact**2) < 4 * error
    assert error < 0.1 * exact**2
    assert facts["tail_energy_share"] == pytest.approx(exact / float(hessian.norm()), rel=0.1)
    assert exact >= float(oracles.tail_energy(hessian, rank))


def test_the_seed_chooses_the_directions() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    hessian = dense(model, ids)
    how: dict[str, Any] = {"support": "row", "norm": "entrywise"}
    for seed in (1, 6):
        low = curved(model, ids, variant="lr", rank=2, seed=seed, **how)
        assert relative(low.parts["curvature"], of_norm(cut(hessian, 2, seed), **how)) < 1e-8
    assert relative(cut(hessian, 2, 1), cut(hessian, 2, 6)) > 1e-3


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_a_matrix_of_that_rank_is_recovered_and_nothing_is_left_out(rank: int) -> None:
    matrix = of_rank(rank, 5, 4)
    low = low_rank_of(matrix, rank)
    units = torch.eye(20, dtype=torch.float64).reshape(20, 5, 4)
    whole = rearrange(low.matmat(units), "(j b) i a -> i a j b", j=5)
    torch.testing.assert_close(whole, matrix, rtol=0, atol=1e-11)
    assert low.values.tolist() == pytest.approx([(-1.0) ** (k - 1) * k for k in range(rank, 0, -1)])
    facts = tail_energy([low.energy])
    assert facts["tail_energy"] < 1e-10 and facts["tail_energy_share"] < 1e-10


def test_the_eigenvalues_of_largest_size_are_kept_whatever_their_sign() -> None:
    matrix = random_hessian(3, 2)
    low = low_rank_of(matrix, 4)
    expected = oracles.best_rank(matrix, 4)[1]  # with 12 directions for 6 dimensions nothing is missed
    torch.testing.assert_close(low.values, expected)
    assert (low.values < 0).any() and (low.values > 0).any()


class NotFinite(Dense):
    def matmat(self, directions: Tensor, places: Places = EVERYWHERE) -> Tensor:  # noqa: ARG002
        products = torch.ones_like(directions)
        products[:, 1] = torch.nan
        return products


def test_what_is_not_finite_is_named_where_it_arises() -> None:
    """And not where the eigenvectors are looked for."""
    low = low_rank(NotFinite(torch.zeros(3, 2, 3, 2)), 2, partial(gaussian, 0, 0), signs(0, 2, 3, 2))
    samples = low.matmat(signs(0, 2, 3, 2)).abs().sum((0, 2))
    assert samples.isfinite().logical_not().any()


def test_probes_are_signs_of_their_own_seed_and_position() -> None:
    assert set(rademacher(0, 0, 50, 8).unique().tolist()) == {-1.0, 1.0}
    streams = [rademacher(seed, position, 8, 16) for seed in range(3) for position in range(3)]
    assert len({tuple(stream.flatten().tolist()) for stream in streams}) == 9
    torch.testing.assert_close(rademacher(2**33, 7, 4, 4), rademacher(2**33, 7, 4, 4))
    assert not torch.equal(rademacher(2**33, 7, 4, 4), rademacher(0, 7, 4, 4))


def test_probes_are_unbiased_and_independent() -> None:
    probes = rademacher(0, 0, 20_000, 4)
    assert probes.mean(0).abs().max() < 0.03
    assert (probes.T @ probes / len(probes) - torch.eye(4)).abs().max() < 0.03
