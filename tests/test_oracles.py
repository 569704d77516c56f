"""The oracles, worked out by hand; each is also compared with the library, which computes the same in another way."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from einops import rearrange, repeat
from torch import Tensor
from torch.testing import assert_close

from helpers import oracles


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def diagonal(*values: float) -> Tensor:
    """The Hessian of tokens of width 1 that do not interact."""
    return double(values).diag().reshape(len(values), 1, len(values), 1)


# --- curvature ---------------------------------------------------------------------------------------------------
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
    matrix = normal(6, 6)
    hessian = rearrange(matrix + matrix.T, "(i a) (j b) -> i a j b", i=2, j=2)
    same_on_each_token = repeat(torch.cat(list(oracles.sign_vectors(3))), "m d -> m n d", n=2)
    assert_close(oracles.block_l1(hessian, same_on_each_token).mean(0), oracles.expected_block_l1(hessian))
    all_signs = rearrange(torch.cat(list(oracles.sign_vectors(6))), "m (n d) -> m n d", n=2)
    assert_close(oracles.row_l1(hessian, all_signs).mean(0), oracles.expected_row_l1(hessian))


def test_gauss_newton_is_the_hessian_expected_under_the_prediction():
    """Bartlett: E[second derivative of log p] = -Fisher information."""
    inward, outward, embeddings = normal(6, 5, seed=4), normal(5, 4, seed=5), normal(3, 2)

    def bent(e: Tensor) -> Tensor:
        return (torch.tanh(e.flatten() @ inward) @ outward).log_softmax(dim=0)

    hessians = [oracles.dense_hessian(lambda e, v=v: bent(e)[v], embeddings) for v in range(4)]
    expected = sum(q * h for q, h in zip(bent(embeddings).exp(), hessians, strict=True))
    assert_close(oracles.gauss_newton(bent, embeddings), expected)


def test_pairs_by_hand():
    # Blocks [[3, 0], [0, -4]] on the diagonal of token 1, [[0, 0], [0, 2]] on that of token 2, [[1, -1], [1, 1]]
    # between them: Frobenius 5, 2 and 2; entries 7, 2 and 4.
    hessian = torch.zeros(2, 2, 2, 2, dtype=torch.float64)
    hessian[0, :, 0], hessian[1, :, 1] = double([[3, 0], [0, -4]]), double([[0, 0], [0, 2]])
    hessian[0, :, 1] = double([[1, -1], [1, 1]])
    hessian[1, :, 0] = hessian[0, :, 1].T
    assert_close(oracles.frobenius_pairs(hessian), double([[5, 2], [2, 2]]))
    assert_close(oracles.entrywise_pairs(hessian), double([[7, 4], [4, 2]]))


def test_divergences_agree_with_torch():
    p, q = ((3 * normal(9, seed=seed)).log_softmax(dim=0) for seed in range(2))
    kl_div = torch.nn.functional.kl_div
    forward, backward = (kl_div(a, b, reduction="sum", log_target=True) for a, b in [(q, p), (p, q)])
    assert abs(forward - backward) > 0.01  # the two directions can be told apart
    assert_close(oracles.divergence(p, q, "orig_masked"), forward)
    assert_close(oracles.divergence(p, q, "masked_orig"), backward)
    assert_close(oracles.divergence(p, q, "js"), oracles.divergence(q, p, "js"))
    assert 0 < oracles.divergence(p, q, "js") < math.log(2)


# --- formulas ----------------------------------------------------------------------------------------------------
def interacting(embeddings: Tensor) -> Tensor:
    """g = x + x y + 10 z for tokens x, y, z of width 1; 18 at `AT`."""
    x, y, z = embeddings[:, 0]
    return x + x * y + 10 * z


AT, MASK = double([[2], [3], [1]]), double([1])
PARTS = double([0.5, 0.25, 0.25]), double([2, 8, 10]), double([0.5, 0.0, 1.5])
VALUES, OUTPUTS = double([[[3], [-5]]]), double([[[1, 1]], [[1, -2]], [[0, 2]], [[3, 4]]])
ONE_GATE = double([1, 1, 3]), [(0, 2), (1, 3)]

BY_HAND: dict[str, tuple[Callable[[], Any], Any]] = {
    # Heads 0 and 1 read the value 3, heads 2 and 3 the value -5: 3 · 2, 3 · 3, 5 · 2, 5 · 7, and by L2.
    "L1 of values": (lambda: oracles.value_norms(VALUES, OUTPUTS, p=1), [[6], [9], [10], [35]]),
    "L2 of values": (lambda: oracles.value_norms(VALUES, OUTPUTS, p=2), [[3 * 2**0.5], [3 * 5**0.5], [10], [25]]),
    # 0.5 (2 · 2 + 3 · 0.5), 0.25 (2 · 8), 0.25 (2 · 10 + 3 · 1.5)
    "Eq. 4": (lambda: oracles.eq4(*PARTS, beta=2.0, gamma=3.0), [2.75, 4.0, 6.125]),
    # S by sum 20: [0.1, 0.4, 0.5]; I by sum 2: [0.25, 0, 0.75]. By max 10 and 1.5: [0.2, 0.8, 1] and [1/3, 0, 1].
    "balanced by sum": (lambda: oracles.balanced(*PARTS, beta=2.0, gamma=4.0, by="sum"), [0.6, 0.2, 1.0]),
    "balanced by max": (lambda: oracles.balanced(*PARTS, beta=2.0, gamma=3.0, by="max"), [0.7, 0.4, 1.25]),
    # g = x y + 3 z at x = 2, y = 5, with tokens (x, y) and (z, nothing): (5² + 2², 3²).
    "squared gradient": (
        lambda: oracles.squared_gradient(lambda e: e[0, 0] * e[0, 1] + 3 * e[1, 0], double([[2, 5], [7, 1]])),
        [29, 9],
    ),
    "tail energy of rank 1": (lambda: oracles.tail_energy(diagonal(1, 3, -2), 1), 5**0.5),
    "tail energy of rank 0": (lambda: oracles.tail_energy(diagonal(1, 3, -2), 0), 14**0.5),
    # H = diag(3, -2, 1), Omega = (1, 1, 0): Y = (3, -2, 0), Q = Y / √13, B = (9 · 3 - 4 · 2) / 13 = 19 / 13,
    # and H_1 = 19 / 13² Y Yᵀ.
    "range finder": (
        lambda: oracles.range_finder(diagonal(3, -2, 1), double([1, 1, 0]).reshape(3, 1, 1), 1)[0].reshape(3, 3),
        [[9 * 19 / 169, -6 * 19 / 169, 0], [-6 * 19 / 169, 4 * 19 / 169, 0], [0, 0, 0]],
    ),
    # Token 1 is in the first two windows, token 2 in all three.
    "mean over windows": (
        lambda: oracles.window_mean([double([1, 2, 3]), double([4, 6]), double([9, 8])], [(0, 3), (1, 3), (2, 4)], 4),
        [1, 3, 6, 8],
    ),
    # Of [1, 1, 3]: [1/2, 1/2] and [1/4, 3/4], so [1/2, 3/8, 3/4] of 13/8. A window without mass is uniform.
    "gate of windows": (lambda: oracles.window_gate(*ONE_GATE), [4 / 13, 3 / 13, 6 / 13]),
    "gate without mass": (lambda: oracles.window_gate(double([0, 0, 3]), ONE_GATE[1]), [2 / 7, 1 / 7, 4 / 7]),
    # With 1 in the place of x: 14; of y: 14; of both: 12; of z: nothing changes.
    "drops": (
        lambda: torch.stack([oracles.drop(interacting, AT, MASK, s) for s in ([], [0], [1], [0, 1], [2])]),
        [0, 4, 4, 6, 0],
    ),
    # g(X) = -1 and -3 without R, attributed 1.5: |2 - 1.5|.
    "faithfulness": (
        lambda: oracles.faithfulness_errors(double([2, -1, 0]), double([1.5, 0.5, 0])), [0.5, 1.5, 0],
    ),
    # (1 · 1 + 2 · 4) / (1 + 4); opposed, nothing helps.
    "best scale": (lambda: oracles.best_scale(double([1, 4]), double([1, 2])), 9 / 5),
    "no scale": (lambda: double(float(oracles.best_scale(double([-1, -4]), double([1, 2])))), 0),
    # g falls from 18 to 12 when everything is masked with 1: |(1 + 2 + 0.5) - 6| and |8 - 6|.
    "gap below": (lambda: oracles.additivity_gap(double([1, 2, 0.5]), interacting, AT, MASK), 2.5),
    "gap above": (lambda: oracles.additivity_gap(double([1, 5, 2]), interacting, AT, MASK), 2),
    # 0.5 (2 · 2 + 3 · 1), and 0.25 (2 · 8): a negative drop counts nothing.
    "envelope": (
        lambda: oracles.envelope(double([0.5, 0.25]), double([2, 8]), double([1, -4]), beta=2.0, gamma=3.0), [3.5, 4.0],
    ),
    # Differences 0.1, -0.3, 0.2: at most 0.3, and half of 0.6.
    "leakage": (lambda: double(oracles.leakage(double([0.5, 0.2, 0.3]), double([0.4, 0.5, 0.1]))), [0.3, 0.3]),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_a_formula_by_hand(name: str) -> None:
    found, expected = BY_HAND[name]
    assert_close(found(), double(expected))


@pytest.mark.parametrize(
    ("n", "size", "overlap", "expected"),
    [
        (10, 4, 0.5, [(0, 4), (2, 6), (4, 8), (6, 10)]),  # the last one ends at 10 by itself
        (9, 4, 0.5, [(0, 4), (2, 6), (4, 8), (5, 9)]),  # moved back from 6
        (10, 4, 0, [(0, 4), (4, 8), (6, 10)]),
        (4, 2, 0.99, [(0, 2), (1, 3), (2, 4)]),  # a stride of at least 1
        (4, 4, 0.5, [(0, 4)]),
        (3, 4, 0.5, [(0, 3)]),
        (3, 1, 0.5, [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_windows_by_hand(n, size, overlap, expected):
    assert oracles.windows(n, size, overlap) == expected


@pytest.mark.parametrize(
    ("features", "drops", "expected"),
    [
        ([[1, 0], [0, 1], [1, 1]], [2, 3, 5], (2, 3)),  # an exact fit
        ([[1, 0], [0, 1]], [2, -3], (2, 0)),
        ([[1, 0], [0, 1]], [-2, -3], (0, 0)),
        # Both free give (3, -1); without gamma beta is (1 · 2 + 1 · 3) / 2, not 3.
        ([[1, 1], [1, 0]], [2, 3], (2.5, 0)),
        ([[0, 1], [0, 2]], [1, 2], (0, 1)),  # nothing to weigh in the first
    ],
)
def test_nnls_by_hand(features, drops, expected):
    assert oracles.nnls_by_enumeration(double(features), double(drops)) == pytest.approx(expected, abs=1e-12)
