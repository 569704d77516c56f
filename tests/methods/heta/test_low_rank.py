"""The low-rank Hessian: a range finder with known test directions, and what it says it leaves out."""

from functools import partial
from typing import Any

import pytest
import torch
from einops import rearrange
from torch import Tensor

from helpers import oracles, zoo
from helpers import variant_oracles as variants
from helpers.asking import explain, plain_embeddings, plain_log_probs, relative, signs
from helpers.hessians import Dense, random_hessian
from heta_lens.methods.heta.curvature import LowRank, low_rank, tail_energy
from heta_lens.methods.heta.hessian import EVERYWHERE, Places
from heta_lens.methods.heta.probes import gaussian

TARGET, N, PROBES = 7, 4, 3
NORMS: list[dict[str, Any]] = [
    {"support": support, "norm": norm} for support in ("block", "row") for norm in ("hutchinson", "entrywise")
]
SEVERAL = "bridge-(gpt2|llama|native)|hooked-(rotary_gqa|alibi)"


def curved(model: Any, ids: Tensor, target: Any = TARGET, **options: Any) -> Any:
    """Without information, which a low rank has nothing to do with."""
    return explain(model, ids, target, gamma=0, probes=options.pop("probes", PROBES), **options)


def dense(model: Any, ids: Tensor) -> oracles.Hessian:
    log_probs = plain_log_probs(model, ids)
    return oracles.dense_hessian(lambda e: log_probs(e)[TARGET], plain_embeddings(model, ids), functional=True)


def cut(hessian: Tensor, rank: int, seed: int = 0, start: int = 0) -> Tensor:
    """The oracle's H_k, with the directions that are said to be used."""
    n, d = hessian.shape[:2]
    tests = gaussian(seed, start, min(rank + 8, n * d), n, d)
    return variants.range_finder(hessian, rearrange(tests, "k n d -> n d k"), rank)[0]


def of_norm(hessian: Tensor, support: str, norm: str, seed: int = 0) -> Tensor:
    if norm == "entrywise":
        return (oracles.entrywise_block if support == "block" else oracles.entrywise_row)(hessian)
    probes = signs(seed, PROBES, *hessian.shape[:2])
    return (oracles.block_l1 if support == "block" else oracles.row_l1)(hessian, probes).mean(0)


def found(matrix: Tensor, rank: int, probes: int = 4, seed: int = 0) -> LowRank:
    return low_rank(Dense(matrix), rank, partial(gaussian, seed, 0), signs(seed, probes, *matrix.shape[:2]))


def of_rank(rank: int, n: int, d: int) -> Tensor:
    """A symmetric, indefinite matrix, with eigenvalues 1, -2, 3, ..."""
    vectors = torch.linalg.qr(random_hessian(n, d).reshape(n * d, n * d)[:, :rank]).Q
    sizes = torch.arange(1, rank + 1, dtype=torch.float64) * (-1.0) ** torch.arange(rank)
    return (vectors * sizes @ vectors.T).reshape(n, d, n, d)


# ---------------------------------------------------------------------------------------------------- real models
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


@pytest.mark.parametrize(("name", "build"), zoo.named(SEVERAL))
def test_what_is_left_out_is_measured_with_the_probes(name: str, build: Any) -> None:
    model, rank = build(), 3
    ids = zoo.prompt(model, N)
    hessian = dense(model, ids)
    expected = cut(hessian, rank)
    missed = torch.einsum("iajb,kjb->kia", hessian - expected, signs(0, PROBES, N, 8)).square().sum((1, 2)).mean()
    facts = curved(model, ids, variant="lr", rank=rank).diagnostics
    close = 30 * zoo.tolerance(name)
    assert facts["tail_energy"] == pytest.approx(float(missed.sqrt()), rel=close)
    share = missed / (missed + expected.square().sum())
    assert facts["tail_energy_share"] == pytest.approx(float(share.sqrt()), rel=close)


@pytest.mark.parametrize("build", zoo.models("bridge-gpt2|hooked-rotary_gqa"))
def test_many_probes_tell_how_much_is_left_out(build: Any) -> None:
    model, rank, probes = build(), 3, 600
    ids = zoo.prompt(model, N)
    hessian = dense(model, ids)
    expected = cut(hessian, rank)
    exact = float(variants.residual_energy(hessian, expected))
    samples = torch.einsum("iajb,kjb->kia", hessian - expected, signs(5, probes, N, 8)).square().sum((1, 2))
    error = float(samples.std()) / probes**0.5
    facts = curved(model, ids, variant="lr", rank=rank, probes=probes).diagnostics
    assert abs(facts["tail_energy"] ** 2 - exact**2) < 4 * error
    assert error < 0.1 * exact**2
    assert facts["tail_energy_share"] == pytest.approx(exact / float(hessian.norm()), rel=0.1)
    assert exact >= float(variants.tail_energy(hessian, rank))


def test_the_seed_chooses_the_directions() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    hessian = dense(model, ids)
    how: dict[str, Any] = {"support": "row", "norm": "entrywise"}
    for seed in (1, 6):
        low = curved(model, ids, variant="lr", rank=2, seed=seed, **how)
        assert relative(low.parts["curvature"], of_norm(cut(hessian, 2, seed), **how)) < 1e-8
    assert relative(cut(hessian, 2, 1), cut(hessian, 2, 6)) > 1e-3


def test_a_single_token_and_a_contrast_have_a_low_rank_too() -> None:
    model = zoo.bridge("gpt2")
    one, ids = zoo.prompt(model, 1), zoo.prompt(model, N)
    assert relative(curved(model, one, variant="lr").scores, curved(model, one).scores) < 1e-10
    assert curved(model, one, variant="lr", rank=1).scores.isfinite().all()
    pair = (7, 9)
    assert relative(curved(model, ids, pair, variant="lr").scores, curved(model, ids, pair).scores) < 1e-10


# --------------------------------------------------------------------------------------------------- of the core
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_a_matrix_of_that_rank_is_recovered_and_nothing_is_left_out(rank: int) -> None:
    matrix = of_rank(rank, 5, 4)
    low = found(matrix, rank)
    units = torch.eye(20, dtype=torch.float64).reshape(20, 5, 4)
    whole = rearrange(low.matmat(units), "(j b) i a -> i a j b", j=5)
    torch.testing.assert_close(whole, matrix, rtol=0, atol=1e-11)
    assert low.values.tolist() == pytest.approx([(-1.0) ** (k - 1) * k for k in range(rank, 0, -1)])
    facts = tail_energy([low.energy])
    assert facts["tail_energy"] < 1e-10 and facts["tail_energy_share"] < 1e-10


def test_parts_of_a_low_rank_are_parts_of_its_matrix() -> None:
    low = found(random_hessian(4, 3), 5)
    vectors = rearrange(low.vectors, "i a k -> (i a) k")
    matrix = (vectors * low.values @ vectors.T).reshape(4, 3, 4, 3)
    directions = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for start in range(4):
        for part in range(4 - start):
            expected = torch.einsum("iab,kb->kia", matrix[start:, :, start + part], directions)
            torch.testing.assert_close(low.part(start).matmat(directions, part), expected)
            torch.testing.assert_close(low.part(start, part + 1).matmat(directions, part), expected[:, : part + 1])
    every = torch.randn(2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(low.matmat(every), Dense(matrix).matmat(every))


def test_the_eigenvalues_of_largest_size_are_kept_whatever_their_sign() -> None:
    matrix = random_hessian(3, 2)
    low = found(matrix, 4)
    expected = variants.best_rank(matrix, 4)[1]  # with 12 directions for 6 dimensions nothing is missed
    torch.testing.assert_close(low.values, expected)
    assert (low.values < 0).any() and (low.values > 0).any()


def test_the_estimate_of_what_is_left_out_is_unbiased() -> None:
    matrix, rank, probes = random_hessian(6, 3), 2, 20_000
    units = torch.eye(18, dtype=torch.float64).reshape(18, 6, 3)
    for seed in range(3):
        low = found(matrix, rank, probes, seed)
        whole = rearrange(low.matmat(units), "(j b) i a -> i a j b", j=6)
        exact = float(variants.residual_energy(matrix, whole)) ** 2
        assert exact == pytest.approx(float(matrix.square().sum() - low.values.square().sum()))  # Pythagoras
        rest = rearrange(matrix - whole, "i a j b -> (i a) (j b)")
        gram = rest.T @ rest
        variance = 2 * float(gram.square().sum() - gram.diagonal().square().sum())  # of a quadratic form of signs
        assert abs(low.missed_squared - exact) < 4 * (variance / probes) ** 0.5
        assert (variance / probes) ** 0.5 < 0.02 * exact
        share = tail_energy([low.energy])["tail_energy_share"]
        assert share == pytest.approx((exact / float(matrix.square().sum())) ** 0.5, rel=0.02)


def test_energies_of_several_windows_add_up() -> None:
    lows = [LowRank(torch.zeros(1, 1, 2), torch.tensor([3.0, -4.0]), missed) for missed in (4.0, 7.0)]
    assert tail_energy([low.energy for low in lows]) == {"tail_energy": 11**0.5, "tail_energy_share": (11 / 61) ** 0.5}
    assert tail_energy([]) == {}


def test_nothing_bends_nothing_is_found_and_nothing_is_left_out() -> None:
    low = found(torch.zeros(3, 2, 3, 2, dtype=torch.float64), 2)
    assert not low.matmat(signs(0, 2, 3, 2)).any()
    assert tail_energy([low.energy]) == {"tail_energy": 0.0, "tail_energy_share": 0.0}


def test_the_directions_are_normal_and_their_own() -> None:
    tests = gaussian(0, 0, 4000, 2, 2).flatten(1)
    assert tests.mean(0).abs().max() < 0.07
    assert (tests.T @ tests / 4000 - torch.eye(4)).abs().max() < 0.1
    torch.testing.assert_close(gaussian(3, 2, 6, 4, 5)[:2], gaussian(3, 2, 2, 4, 5))
    streams = [gaussian(seed, start, 1, n, 2).flatten()[:4] for seed in (0, 1) for start in (0, 1) for n in (2, 3)]
    assert len({tuple(stream.tolist()) for stream in streams}) == 8


class Single(Dense):
    def matmat(self, directions: Tensor, places: Places = EVERYWHERE) -> Tensor:
        return super().matmat(directions.double(), places).float()


def test_single_precision_finds_nearly_the_same() -> None:
    matrix = of_rank(6, 5, 4)
    low = low_rank(Single(matrix), 6, partial(gaussian, 0, 0), signs(0, 4, 5, 4).float())
    assert low.vectors.dtype == low.values.dtype == torch.float32
    units = torch.eye(20).reshape(20, 5, 4)
    whole = rearrange(low.matmat(units), "(j b) i a -> i a j b", j=5)
    assert relative(whole, matrix) < 1e-5
    assert tail_energy([low.energy])["tail_energy_share"] < 1e-5


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
