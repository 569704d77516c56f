"""The curvature against dense Hessians, with every sign vector enumerated."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from scipy.stats import t as student
from torch import Tensor

from helpers import oracles, zoo
from helpers.asking import chunks, explain, plain_embeddings, plain_log_probs, relative, signs
from helpers.hessians import hessian_from, random_hessian
from helpers.sure_models import sure
from heta_lens._util.numerics import Samples
from heta_lens.diagnostics import standard_error
from heta_lens.methods.heta.curvature import Norm, Probes, Support, check_enumerable, curvature, expected_l1
from heta_lens.methods.heta.probes import rademacher

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


def each(probes: Callable[[int], Tensor]) -> Probes:
    """Probes of several tokens, given those of one."""
    return lambda tokens: [probes(token) for token in tokens]


def of_quadratic(matrix: Tensor, probes: Callable[[int], Tensor], **options: Any) -> Tensor:
    """The core on ``½ EᵀQE`` at a random point, from any start: its Hessian is Q everywhere."""
    n, _, _, d = matrix.shape
    at = torch.randn(n, d, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def objective_from(start: int) -> Callable[[Tensor], Tensor]:
        return lambda embeddings: oracles.quadratic(matrix)(torch.cat([at[:start], embeddings]))

    how = {"batch": 4, "done": lambda _: None}
    products = hessian_from(objective_from, at, **{name: options.pop(name, how[name]) for name in how})
    return curvature(products, at, each(probes), by_start=chunks(range(n), options.pop("chunk", 2)), **options).values


# ------------------------------------------------------------------------------------------------ on real models
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
    samples = of_quadratic(hessian, lambda i: rademacher(0, i, repeats * probes, hessian.shape[1]))
    exact = oracles.expected_block_l1(hessian)
    reach = float(student.ppf(0.975, probes - 1))
    covered = []
    for group in samples.split(probes):
        error = standard_error(Samples.even(group), lambda mean: mean)
        assert error is not None
        covered.append(((group.mean(0) - exact).abs() <= reach * error).double())
    assert 0.92 < torch.stack(covered).mean() < 0.98


# --------------------------------------------------------------------------------------------------- of the core
@pytest.mark.parametrize(("block", "expected", "entrywise"), oracles.BLOCKS)
def test_blocks_by_hand(block: oracles.Matrix, expected: float, entrywise: float) -> None:
    hessian = oracles.block_hessian(block, tokens=3)
    probes = partial(rademacher, 0, probes=1, d=2)
    assert of_quadratic(hessian, probes, norm="exact").tolist() == [[pytest.approx(expected)] * 3]
    assert of_quadratic(hessian, probes, norm="entrywise").tolist() == [[pytest.approx(entrywise)] * 3]


@pytest.mark.parametrize("support", ["block", "row"])
def test_every_probe_of_a_quadratic_equals_its_definition(support: Support) -> None:
    hessian = random_hessian(3, 4)
    oracle = oracles.block_l1 if support == "block" else oracles.row_l1
    samples = of_quadratic(hessian, lambda i: rademacher(0, i, 6, 4), support=support)
    torch.testing.assert_close(samples, oracle(hessian, signs(0, 6, 3, 4)), rtol=1e-10, atol=0)


@pytest.mark.parametrize("support", ["block", "row"])
@pytest.mark.parametrize("norm", ["hutchinson", "exact", "entrywise"])
@pytest.mark.parametrize("trainable", [False, True])
def test_an_affine_function_has_no_curvature(support: Support, norm: Norm, trainable: bool) -> None:
    weights = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights.requires_grad_(trainable)  # as those of a hook may be
    counted: list[int] = []
    at = torch.ones(3, 4, dtype=torch.float64)
    products = hessian_from(lambda start: lambda e: (weights[start:] * e).sum() + 1, at, done=counted.append)
    probes = partial(rademacher, 0, probes=2, d=4)
    samples = curvature(products, at, each(probes), support=support, norm=norm, by_start=chunks(range(3), 2)).values
    assert samples.shape == (2 if norm == "hutchinson" else 1, 3)
    assert not samples.any()
    at_once = support == "row" and norm == "hutchinson"
    assert sum(counted) == (2 if norm == "hutchinson" else 4) * (1 if at_once else 3)


@pytest.mark.parametrize("chunk", [1, 2, 3, 99])
@pytest.mark.parametrize("batch", [1, 3, 99])
def test_neither_chunk_nor_batch_changes_a_sample(chunk: int, batch: int) -> None:
    hessian = random_hessian(5, 3)
    probes = partial(rademacher, 1, probes=4, d=3)
    samples = of_quadratic(hessian, probes, chunk=chunk, batch=batch)
    torch.testing.assert_close(samples, of_quadratic(hessian, probes), rtol=1e-12, atol=0)


def test_the_tokens_around_a_chunk_count_as_they_are() -> None:
    at = torch.arange(1, 7, dtype=torch.float64).reshape(3, 2)

    def objective_from(start: int) -> Callable[[Tensor], Tensor]:
        return lambda embeddings: torch.cat([at[:start], embeddings]).sum() ** 3

    for chunk in (1, 2, 3):
        probes = partial(rademacher, 0, probes=1, d=2)
        samples = curvature(
            hessian_from(objective_from, at), at, each(probes), norm="entrywise", by_start=chunks(range(3), chunk)
        ).values
        assert samples.tolist() == [[pytest.approx(4 * 6 * 21)] * 3], chunk  # every entry of H is 6 (1 + … + 6)


def test_a_chunk_begins_where_the_one_before_it_ends_and_rows_need_all_tokens_at_once() -> None:
    matrix = random_hessian(5, 2)
    at = torch.zeros(5, 2, dtype=torch.float64)
    for support, norm, oracle, begun in (
        ("block", "entrywise", oracles.entrywise_block, [0, 2, 4]),
        ("row", "entrywise", oracles.entrywise_row, [0]),
        ("row", "exact", oracles.expected_row_l1, [0]),
    ):
        starts: list[int] = []

        def objective_from(start: int, starts: list[int] = starts) -> Callable[[Tensor], Tensor]:
            starts.append(start)
            return lambda embeddings: oracles.quadratic(matrix)(torch.cat([at[:start], embeddings]))

        probes = partial(rademacher, 0, probes=1, d=2)
        samples = curvature(
            hessian_from(objective_from, at), at, each(probes), support=support, norm=norm, by_start=chunks(range(5), 2)
        ).values
        torch.testing.assert_close(samples[0], oracle(matrix), rtol=1e-10, atol=0)
        assert starts == begun


def test_the_work_that_is_reported_is_the_work_done() -> None:
    for support, norm, expected in (("block", "hutchinson", 12), ("row", "hutchinson", 4), ("block", "exact", 9)):
        counted: list[int] = []
        probes = partial(rademacher, 0, probes=4, d=3)
        of_quadratic(random_hessian(3, 3), probes, support=support, norm=norm, done=counted.append)
        assert sum(counted) == expected


def test_no_more_products_are_alive_at_once_than_a_batch_holds() -> None:
    counted: list[int] = []
    of_quadratic(random_hessian(2, 3), partial(rademacher, 0, probes=5, d=3), batch=2, done=counted.append)
    assert counted == [2] * 5, "ten directions, two to a product"


@pytest.mark.parametrize("norm", ["hutchinson", "exact", "entrywise"])
def test_directions_may_be_taken_a_few_at_a_time(norm: Norm, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, probes = random_hessian(3, 4), partial(rademacher, 0, probes=5, d=4)
    at_once = of_quadratic(matrix, probes, norm=norm)
    monkeypatch.setattr("heta_lens.methods.heta.curvature.AT_ONCE", 3)
    torch.testing.assert_close(of_quadratic(matrix, probes, norm=norm), at_once, rtol=1e-12, atol=0)


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
