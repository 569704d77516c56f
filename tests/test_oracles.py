"""The oracles: worked out by hand, compared with independent formulas and with finite differences."""

import math
from itertools import product

import pytest
import torch
from einops import rearrange, reduce, repeat
from torch import Tensor
from torch.testing import assert_close

from helpers import oracles, zoo

FLOWS = ["suffix", "rollout", "direct", "prefix_head"]


def double(values) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def random_hessian(n: int, d: int, seed: int = 0) -> Tensor:
    matrix = normal(n * d, n * d, seed=seed)
    return rearrange(matrix + matrix.T, "(i a) (j b) -> i a j b", i=n, j=n)


def random_patterns(layers: int, heads: int, n: int) -> list[Tensor]:
    """Causal softmax attention, a row a query."""
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    logits = normal(layers, heads, n, n, seed=2).masked_fill(future, -math.inf)
    return list(logits.softmax(dim=-1))


def leaky_patterns(layers: int, heads: int, n: int) -> list[Tensor]:
    """The same with rows that sum to less than 1, each to its own amount."""
    kept = normal(layers, heads, n, 1, seed=3).sigmoid()
    return [pattern * k for pattern, k in zip(random_patterns(layers, heads, n), kept, strict=True)]


def random_log_probs(vocabulary: int, seed: int) -> Tensor:
    return (3 * normal(vocabulary, seed=seed)).log_softmax(dim=0)


# --- curvature ---------------------------------------------------------------------------------------------------
INWARD, OUTWARD = normal(6, 5, seed=4), normal(5, 4, seed=5)


def curved(embeddings: Tensor) -> Tensor:
    """A small network in which all coordinates interact; its Hessian depends on the point."""
    return (torch.tanh(embeddings.flatten() @ INWARD) @ OUTWARD).log_softmax(dim=0)[1]


def hessian_by_differences(g, embeddings: Tensor, step: float = 1e-4) -> Tensor:
    """Central second differences, four evaluations an entry."""
    point, size = embeddings.flatten(), embeddings.numel()
    axes = step * torch.eye(size, dtype=torch.float64)
    hessian = torch.empty(size, size, dtype=torch.float64)
    for a, b in product(range(size), range(size)):
        corners = [(s, t, point + s * axes[a] + t * axes[b]) for s, t in product((1, -1), (1, -1))]
        hessian[a, b] = sum(s * t * g(corner.view_as(embeddings)) for s, t, corner in corners) / (4 * step**2)
    return hessian.reshape(*embeddings.shape, *embeddings.shape)


@pytest.mark.slow
@pytest.mark.parametrize("functional", [False, True])
def test_hessian_agrees_with_finite_differences(functional):
    embeddings = normal(3, 2)
    hessian = oracles.dense_hessian(curved, embeddings, functional=functional)
    assert hessian.abs().max() > 0.1
    assert_close(hessian, hessian_by_differences(curved, embeddings), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("block", "expected", "entrywise"), oracles.BLOCKS)
def test_the_hand_computed_blocks(block, expected, entrywise):
    hessian = oracles.block_hessian(block, tokens=2)
    assert_close(oracles.expected_block_l1(hessian), double([expected, expected]))
    assert_close(oracles.entrywise_block(hessian), double([entrywise, entrywise]))


def test_probes_on_the_own_block_and_on_all_tokens_by_hand():
    # Two tokens of width 1: H = [[1, 2], [2, -5]]. Own block: |1|, |-5| for any signs.
    # All tokens: r = (1, 1) gives |1 + 2|, |2 - 5|; r = (1, -1) gives |1 - 2|, |2 + 5|.
    hessian = double([[1, 2], [2, -5]]).reshape(2, 1, 2, 1)
    signs = double([[1, 1], [1, -1]]).reshape(2, 2, 1)
    assert_close(oracles.block_l1(hessian, signs), double([[1, 5], [1, 5]]))
    assert_close(oracles.row_l1(hessian, signs), double([[3, 3], [1, 7]]))
    # Their expectations: |1|, |-5|; and max(1, 2), max(2, 5), the means of the columns above.
    assert_close(oracles.expected_block_l1(hessian), double([1, 5]))
    assert_close(oracles.expected_row_l1(hessian), double([2, 5]))
    assert_close(oracles.entrywise_block(hessian), double([1, 5]))
    assert_close(oracles.entrywise_row(hessian), double([3, 7]))


def test_the_mean_over_all_probes_is_the_expectation():
    hessian = random_hessian(2, 3)
    same_on_each_token = repeat(torch.cat(list(oracles.sign_vectors(3))), "m d -> m n d", n=2)
    assert_close(oracles.block_l1(hessian, same_on_each_token).mean(0), oracles.expected_block_l1(hessian))
    all_signs = rearrange(torch.cat(list(oracles.sign_vectors(6))), "m (n d) -> m n d", n=2)
    assert_close(oracles.row_l1(hessian, all_signs).mean(0), oracles.expected_row_l1(hessian))


# --- gate --------------------------------------------------------------------------------------------------------
def phi_by_products(patterns: list[Tensor], flow: str) -> Tensor:
    """Phi through matrix products instead of paths."""
    eye = torch.eye(patterns[0].shape[-1], dtype=torch.float64)
    stacked = torch.stack(patterns)
    mixed = 0.5 * stacked.mean(dim=1) + 0.5 * eye

    def chain(matrices) -> Tensor:  # the first layer stands rightmost
        result = eye
        for matrix in matrices:
            result = matrix @ result
        return result

    def one(layer: int, h: int) -> Tensor:
        if flow == "rollout":
            return chain(mixed)[-1]
        if flow == "prefix_head":
            return chain(0.5 * stacked[: layer + 1, h] + 0.5 * eye)[-1]
        above = eye if flow == "direct" else chain(mixed[layer + 1 :])
        return above[-1] @ stacked[layer, h]

    return torch.stack([torch.stack([one(layer, h) for h in range(stacked.shape[1])]) for layer in range(len(stacked))])


@pytest.mark.parametrize("make", [random_patterns, leaky_patterns])
@pytest.mark.parametrize("flow", FLOWS)
def test_paths_agree_with_matrix_products(flow, make):
    patterns = make(3, 2, 4)
    assert_close(oracles.phi_by_paths(patterns, flow), phi_by_products(patterns, flow), rtol=1e-12, atol=1e-14)


def test_value_norms_with_grouped_queries_by_hand():
    # Heads 0 and 1 read the value 3, heads 2 and 3 the value -5.
    # L1: 3 * 2, 3 * 3, 5 * 2, 5 * 7.  L2: 3 * sqrt 2, 3 * sqrt 5, 5 * 2, 5 * 5.
    values = double([[[3], [-5]]])
    W_O = double([[[1, 1]], [[1, -2]], [[0, 2]], [[3, 4]]])
    assert_close(oracles.value_norms(values, W_O, p=1), double([[6], [9], [10], [35]]))
    assert_close(oracles.value_norms(values, W_O, p=2), double([[3 * 2**0.5], [3 * 5**0.5], [10], [25]]))


def random_writes(layers: int, heads: int, n: int) -> tuple[list[Tensor], list[Tensor]]:
    return list(normal(layers, n, 1, 3, seed=6)), list(normal(layers, heads, 3, 5, seed=7))


@pytest.mark.parametrize("make", [random_patterns, leaky_patterns])
@pytest.mark.parametrize("flow", FLOWS)
def test_gate_agrees_with_matrix_products(flow, make):
    patterns = make(3, 2, 4)
    values, weights = random_writes(3, 2, 4)
    norms = torch.stack([oracles.value_norms(v, w, p=2) for v, w in zip(values, weights, strict=True)])
    raw = reduce(phi_by_products(patterns, flow) * norms, "l h n -> l n", "sum")
    expected = raw.sum(dim=0) / raw.sum()
    assert_close(oracles.gate_by_paths(patterns, values, weights, p=2, flow=flow), expected, rtol=1e-12, atol=1e-14)


def test_divergences_agree_with_torch():
    p, q = random_log_probs(9, seed=0), random_log_probs(9, seed=1)
    kl_div = torch.nn.functional.kl_div
    forward, backward = (kl_div(a, b, reduction="sum", log_target=True) for a, b in [(q, p), (p, q)])
    assert abs(forward - backward) > 0.01  # the two directions can be told apart
    assert_close(oracles.divergence(p, q, "orig_masked"), forward)
    assert_close(oracles.divergence(p, q, "masked_orig"), backward)
    assert_close(oracles.divergence(p, q, "js"), oracles.divergence(q, p, "js"))
    assert 0 < oracles.divergence(p, q, "js") < math.log(2)


# --- score -------------------------------------------------------------------------------------------------------
def parts() -> tuple[Tensor, Tensor, Tensor]:
    return double([0.5, 0.25, 0.25]), double([2, 8, 10]), double([0.5, 0.0, 1.5])


def test_eq4_by_hand():
    # 0.5 (2 * 2 + 3 * 0.5), 0.25 (2 * 8), 0.25 (2 * 10 + 3 * 1.5)
    assert_close(oracles.eq4(*parts(), beta=2.0, gamma=3.0), double([2.75, 4.0, 6.125]))


def test_balanced_by_hand():
    # S by sum 20: [0.1, 0.4, 0.5]; I by sum 2: [0.25, 0, 0.75]. By max 10 and 1.5: [0.2, 0.8, 1] and [1/3, 0, 1].
    by_sum = oracles.balanced(*parts(), beta=2.0, gamma=4.0, by="sum")
    assert_close(by_sum, double([0.5 * (0.2 + 1.0), 0.25 * 0.8, 0.25 * (1.0 + 3.0)]))
    by_max = oracles.balanced(*parts(), beta=2.0, gamma=3.0, by="max")
    assert_close(by_max, double([0.5 * (0.4 + 1.0), 0.25 * 1.6, 0.25 * (2.0 + 3.0)]))


def indefinite(n: int, d: int, rank: int | None = None) -> Tensor:
    """Symmetric and indefinite, with these many dimensions."""
    size = n * d
    rank = size if rank is None else rank
    vectors, eigenvalues = torch.linalg.qr(normal(size, rank)).Q, normal(rank, seed=1)
    return rearrange(vectors @ eigenvalues.diag() @ vectors.T, "(i a) (j b) -> i a j b", i=n, j=n)


def diagonal(*values: float) -> Tensor:
    """The Hessian of tokens of width 1 that do not interact."""
    return double(values).diag().reshape(len(values), 1, len(values), 1)


def curved_logits(embeddings: Tensor) -> Tensor:
    return torch.tanh(embeddings.flatten() @ INWARD) @ OUTWARD


def bent(embeddings: Tensor) -> Tensor:
    return curved_logits(embeddings).log_softmax(dim=0)


def test_gauss_newton_is_the_hessian_expected_under_the_prediction():
    embeddings = normal(3, 2)  # Bartlett: E[second derivative of log p] = -Fisher information
    p = bent(embeddings).exp()
    hessians = [oracles.dense_hessian(lambda e, v=v: bent(e)[v], embeddings) for v in range(len(p))]
    assert_close(oracles.gauss_newton(bent, embeddings), sum(q * h for q, h in zip(p, hessians, strict=True)))


def test_squared_gradient_by_hand():
    # g = x y + 3 z at x = 2, y = 5, with tokens (x, y) and (z, nothing): (5^2 + 2^2, 3^2).
    found = oracles.squared_gradient(lambda e: e[0, 0] * e[0, 1] + 3 * e[1, 0], double([[2, 5], [7, 1]]))
    assert_close(found, double([29, 9]))


def test_tail_energy_by_hand():
    hessian = diagonal(1, 3, -2)
    assert_close(oracles.tail_energy(hessian, 1), double(5**0.5))
    assert_close(oracles.tail_energy(hessian, 0), double(14**0.5))
    assert oracles.tail_energy(hessian, 3) == 0
    assert_close(oracles.tail_energy(hessian, 1) / oracles.tail_energy(hessian, 0), double(0.5976143))


def test_range_finder_by_hand():
    # H = diag(3, -2, 1), Omega = (1, 1, 0): Y = (3, -2, 0), Q = Y / sqrt 13, B = (9 * 3 - 4 * 2) / 13 = 19 / 13,
    # and H_1 = 19 / 13^2 Y Y^T.
    approximation, eigenvalues = oracles.range_finder(diagonal(3, -2, 1), double([1, 1, 0]).reshape(3, 1, 1), 1)
    expected = 19 / 169 * double([[9, -6, 0], [-6, 4, 0], [0, 0, 0]])
    assert_close(approximation, expected.reshape(3, 1, 3, 1))
    assert_close(eigenvalues, double([19 / 13]))


def test_pairs_by_hand():
    # Blocks [[3, 0], [0, -4]] on the diagonal of token 1, [[0, 0], [0, 2]] on that of token 2, [[1, -1], [1, 1]]
    # between them: Frobenius 5, 2 and 2; entries 7, 2 and 4.
    hessian = torch.zeros(2, 2, 2, 2, dtype=torch.float64)
    hessian[0, :, 0], hessian[1, :, 1] = double([[3, 0], [0, -4]]), double([[0, 0], [0, 2]])
    hessian[0, :, 1] = double([[1, -1], [1, 1]])
    hessian[1, :, 0] = hessian[0, :, 1].T
    assert_close(oracles.frobenius_pairs(hessian), double([[5, 2], [2, 2]]))
    assert_close(oracles.entrywise_pairs(hessian), double([[7, 4], [4, 2]]))


# --- runs --------------------------------------------------------------------------------------------------------
def clean_log_probs(model, ids: Tensor) -> Tensor:
    return model(ids)[0, -1].log_softmax(dim=-1).detach()


def embeddings_of(model, ids: Tensor) -> Tensor:
    return model.run_with_cache(ids, names_filter=["hook_embed"])[1]["hook_embed"][0].clone()


def with_embeddings(model, ids: Tensor, embeddings: Tensor) -> Tensor:
    replace = [("hook_embed", lambda live, hook: embeddings[None])]  # noqa: ARG005
    return model.run_with_hooks(ids, fwd_hooks=replace)[0, -1].log_softmax(dim=-1).detach()


def with_frozen_streams(model, ids: Tensor, embeddings: Tensor, frozen: Tensor) -> Tensor:
    """Frozen positions enter every block as in the clean run, which fixes the keys and values computed from them."""
    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(model.cfg.n_layers)]
    clean = model.run_with_cache(ids, names_filter=names)[1]

    def keep(clean: Tensor):
        return lambda live, hook: torch.where(frozen[:, None], clean, live)  # noqa: ARG005

    hooks = [("hook_embed", lambda live, hook: embeddings[None]), *((name, keep(clean[name])) for name in names)]  # noqa: ARG005
    return model.run_with_hooks(ids, fwd_hooks=hooks)[0, -1].log_softmax(dim=-1).detach()


N, START, STOP, TAIL = 8, 2, 5, 7  # frozen: 0 and 1 before the window, 5 and 6 between it and the tail


def moved_window(model, ids: Tensor) -> Tensor:
    """The prompt's embeddings, with other ones in the window."""
    embeddings = embeddings_of(model, ids)
    embeddings[START:STOP] += normal(STOP - START, embeddings.shape[1])
    return embeddings


@pytest.mark.parametrize("build", zoo.models())
def test_frozen_keys_and_values_agree_with_frozen_streams(build):
    model = build()
    ids = zoo.prompt(model, N)
    embeddings = moved_window(model, ids)
    found = oracles.frozen_window(model, ids, START, STOP, TAIL)(embeddings[START:STOP]).detach()
    frozen = torch.tensor([True, True, False, False, False, True, True, False])
    assert_close(found, with_frozen_streams(model, ids, embeddings, frozen), rtol=1e-9, atol=1e-9)
    # Everything live, the gap between window and tail passes the change on as well.
    assert not torch.allclose(found, with_embeddings(model, ids, embeddings), atol=1e-4)
    assert not torch.allclose(found, clean_log_probs(model, ids), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("build", zoo.models("native|gpt2|llama|gptoss"))
def test_curvature_of_a_window_and_of_a_stream_is_that_of_differences(build):
    model, step = build(), 1e-3
    ids = zoo.prompt(model, 5)
    window = (oracles.frozen_window(model, ids, 1, 3, 4), embeddings_of(model, ids)[1:3])
    states = (oracles.log_probs_of_stream(model, ids, 1), oracles.stream(model, ids, 1))
    for log_probs, point in (window, states):

        def g(e, log_probs=log_probs):
            return log_probs(e)[7]

        direction = normal(*point.shape)
        hessian = oracles.dense_hessian(g, point, functional=True)
        found = torch.einsum("iajb,jb->ia", hessian, direction)
        ahead, behind = (torch.autograd.functional.jacobian(g, point + h * direction) for h in (step, -step))
        expected = (ahead - behind) / (2 * step)
        assert expected.abs().max() > 0.01
        tolerance = 0.01 * float(expected.abs().max())  # norms of some bridges are float32 inside
        assert_close(found, expected, rtol=0, atol=tolerance)


# --- windows -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("n", "size", "overlap", "expected"),
    [
        (10, 4, 0.5, [(0, 4), (2, 6), (4, 8), (6, 10)]),  # the last one ends at 10 by itself
        (9, 4, 0.5, [(0, 4), (2, 6), (4, 8), (5, 9)]),  # moved back from 6
        (10, 4, 0, [(0, 4), (4, 8), (6, 10)]),
        (10, 4, 0.75, [(0, 4), (1, 5), (2, 6), (3, 7), (4, 8), (5, 9), (6, 10)]),
        (4, 2, 0.99, [(0, 2), (1, 3), (2, 4)]),  # a stride of at least 1
        (5, 4, 0.5, [(0, 4), (1, 5)]),
        (4, 4, 0.5, [(0, 4)]),
        (3, 4, 0.5, [(0, 3)]),
        (3, 1, 0.5, [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_windows_by_hand(n, size, overlap, expected):
    assert oracles.windows(n, size, overlap) == expected


def test_window_mean_by_hand():
    # Token 1 is in the first two windows, token 2 in all three.
    values, where = [double([1, 2, 3]), double([4, 6]), double([9, 8])], [(0, 3), (1, 3), (2, 4)]
    assert_close(oracles.window_mean(values, where, 4), double([1, 3, 6, 8]))


def test_window_gate_by_hand():
    # Of [1, 1, 3]: [1/2, 1/2] and [1/4, 3/4], so [1/2, 3/8, 3/4] of 13/8.
    where = [(0, 2), (1, 3)]
    assert_close(oracles.window_gate(double([1, 1, 3]), where), double([4 / 13, 3 / 13, 6 / 13]))
    # A first window without mass is uniform: [1/2, 1/2] and [0, 1], so [1/2, 1/4, 1] of 7/4.
    assert_close(oracles.window_gate(double([0, 0, 3]), where), double([2 / 7, 1 / 7, 4 / 7]))


# --- diagnostics -------------------------------------------------------------------------------------------------
def interacting(embeddings: Tensor) -> Tensor:
    """g = x + x y + 10 z for tokens x, y, z of width 1."""
    x, y, z = embeddings[:, 0]
    return x + x * y + 10 * z


def test_drop_by_hand():
    # At (2, 3, 1): g = 2 + 6 + 10 = 18. With 1 in the place of x: 14; of y: 14; of both: 12; of z: nothing changes.
    embeddings, mask = double([[2], [3], [1]]), double([1])
    for subset, expected in [([], 0), ([0], 4), ([1], 4), ([0, 1], 6), ([2], 0), ([0, 1, 2], 6)]:
        assert oracles.drop(interacting, embeddings, mask, subset) == expected
    assert torch.equal(embeddings, double([[2], [3], [1]]))


def test_faithfulness_errors_by_hand():
    # g(X) = -1 and -3 without R, attributed 1.5: |2 - 1.5|.
    found = oracles.faithfulness_errors(double([2, -1, 0]), double([1.5, 0.5, 0]))
    assert_close(found, double([0.5, 1.5, 0]))


def test_best_scale_by_hand():
    # (1 * 1 + 2 * 4) / (1 + 4) = 9/5; opposed, nothing helps; and nothing to scale.
    assert_close(oracles.best_scale(double([1, 4]), double([1, 2])), double(9 / 5))
    assert oracles.best_scale(double([-1, -4]), double([1, 2])) == 0
    assert oracles.best_scale(double([1, 4]), double([0, 0])) == 0


@pytest.mark.parametrize(
    ("features", "drops", "expected"),
    [
        ([[1, 0], [0, 1], [1, 1]], [2, 3, 5], (2, 3)),  # an exact fit
        ([[1, 0], [0, 1]], [2, -3], (2, 0)),
        ([[1, 0], [0, 1]], [-2, 3], (0, 3)),
        ([[1, 0], [0, 1]], [-2, -3], (0, 0)),
        # Both free give (3, -1); without gamma beta is (1 * 2 + 1 * 3) / 2, not 3.
        ([[1, 1], [1, 0]], [2, 3], (2.5, 0)),
        ([[0, 1], [0, 2]], [1, 2], (0, 1)),  # nothing to weigh in the first
    ],
)
def test_nnls_by_hand(features, drops, expected):
    found = oracles.nnls_by_enumeration(double(features), double(drops))
    assert found == pytest.approx(expected, abs=1e-12)


def test_additivity_gap_by_hand():
    # g falls from 18 to 1 + 1 + 10 = 12 when everything is masked with 1: |(1 + 2 + 0.5) - 6| and |8 - 6|.
    embeddings, mask = double([[2], [3], [1]]), double([1])
    assert_close(oracles.additivity_gap(double([1, 2, 0.5]), interacting, embeddings, mask), double(2.5))
    assert_close(oracles.additivity_gap(double([1, 5, 2]), interacting, embeddings, mask), double(2))


def test_envelope_by_hand():
    # 0.5 (2 * 2 + 3 * 1), and 0.25 (2 * 8): a negative drop counts nothing.
    found = oracles.envelope(double([0.5, 0.25]), double([2, 8]), double([1, -4]), beta=2.0, gamma=3.0)
    assert_close(found, double([3.5, 4.0]))


def test_leakage_by_hand():
    # Differences 0.1, -0.3, 0.2: at most 0.3, and half of 0.6.
    found = oracles.leakage(double([0.5, 0.2, 0.3]), double([0.4, 0.5, 0.1]))
    assert found == pytest.approx((0.3, 0.3))
    # 0.2, -0.1, -0.1, 0.2, -0.2: at most 0.2, half of 0.8.
    found = oracles.leakage(double([0.4, 0.1, 0.1, 0.2, 0.2]), double([0.2, 0.2, 0.2, 0, 0.4]))
    assert found == pytest.approx((0.2, 0.4))
