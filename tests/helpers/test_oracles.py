"""The oracles against hand-computed numbers, textbook formulas, finite differences and each other."""

import math
from itertools import product

import pytest
import torch
from einops import rearrange, reduce, repeat
from jaxtyping import install_import_hook
from torch import Tensor
from torch.testing import assert_close

with install_import_hook("oracles", "beartype.beartype"):  # checks the annotated shapes and dtypes
    from helpers import oracles

FLOWS = ["suffix", "suffix_input", "rollout", "direct", "prefix_head"]


def double(values) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def random_hessian(n: int, d: int, seed: int = 0) -> Tensor:
    matrix = normal(n * d, n * d, seed=seed)
    return rearrange(matrix + matrix.T, "(i a) (j b) -> i a j b", i=n, j=n)


def random_signs(m: int, n: int, d: int) -> Tensor:
    return normal(m, n, d, seed=1).sign()


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


@pytest.mark.parametrize("functional", [False, True])
def test_hessian_of_a_quadratic_is_its_symmetric_part(functional):
    matrix = normal(2, 3, 2, 3)
    hessian = oracles.dense_hessian(oracles.quadratic(matrix), normal(2, 3, seed=1), functional=functional)
    assert_close(hessian, (matrix + rearrange(matrix, "i a j b -> j b i a")) / 2)


def test_hessian_of_log_softmax_is_minus_the_covariance_of_the_prediction():
    logits = normal(1, 4)
    p = logits[0].softmax(dim=0)
    hessian = oracles.dense_hessian(lambda e: e[0].log_softmax(dim=0)[2], logits)
    assert_close(hessian[0, :, 0, :], torch.outer(p, p) - p.diag())


@pytest.mark.parametrize("functional", [False, True])
def test_hessian_of_an_affine_function_is_zero(functional):
    slope = normal(3, 2, seed=1)
    hessian = oracles.dense_hessian(lambda e: (slope * e).sum() + 7, normal(3, 2), functional=functional)
    assert torch.equal(hessian, torch.zeros(3, 2, 3, 2, dtype=torch.float64))


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


def test_a_block_probe_ignores_the_signs_of_other_tokens():
    hessian, signs = random_hessian(3, 4), random_signs(5, 3, 4)
    others_flipped = signs * double([1, -1, -1])[:, None]
    assert_close(oracles.block_l1(hessian, signs)[:, 0], oracles.block_l1(hessian, others_flipped)[:, 0])
    assert not torch.allclose(oracles.row_l1(hessian, signs)[:, 0], oracles.row_l1(hessian, others_flipped)[:, 0])


def test_block_and_row_agree_exactly_when_tokens_do_not_interact():
    signs = random_signs(5, 3, 2)
    apart, together = oracles.block_hessian([[1.0, 2.0], [2.0, -3.0]], tokens=3), random_hessian(3, 2)
    assert_close(oracles.block_l1(apart, signs), oracles.row_l1(apart, signs))
    assert not torch.allclose(oracles.block_l1(together, signs), oracles.row_l1(together, signs))


def test_sign_vectors_are_all_different_and_complete():
    chunks = list(oracles.sign_vectors(5, chunk=7))
    assert [len(chunk) for chunk in chunks] == [7, 7, 7, 7, 4]
    rows = {tuple(row) for row in torch.cat(chunks).tolist()}
    assert rows == set(product((-1.0, 1.0), repeat=5))


def test_expectations_do_not_depend_on_the_chunk():
    hessian = random_hessian(2, 3)
    assert_close(oracles.expected_block_l1(hessian, chunk=3), oracles.expected_block_l1(hessian))
    assert_close(oracles.expected_row_l1(hessian, chunk=5), oracles.expected_row_l1(hessian))


def test_the_mean_over_all_probes_is_the_expectation():
    hessian = random_hessian(2, 3)
    same_on_each_token = repeat(torch.cat(list(oracles.sign_vectors(3))), "m d -> m n d", n=2)
    assert_close(oracles.block_l1(hessian, same_on_each_token).mean(0), oracles.expected_block_l1(hessian))
    all_signs = rearrange(torch.cat(list(oracles.sign_vectors(6))), "m (n d) -> m n d", n=2)
    assert_close(oracles.row_l1(hessian, all_signs).mean(0), oracles.expected_row_l1(hessian))


@pytest.mark.parametrize("support", ["block", "row"])
def test_random_probes_converge_to_the_expectation_and_not_to_the_entrywise_norm(support):
    hessian, probes = random_hessian(2, 4), 2000
    sampled = getattr(oracles, f"{support}_l1")(hessian, random_signs(probes, 2, 4))
    error = sampled.std(dim=0) / math.sqrt(probes)
    expected = getattr(oracles, f"expected_{support}_l1")(hessian)
    assert ((sampled.mean(dim=0) - expected).abs() < 4 * error).all()
    entrywise = getattr(oracles, f"entrywise_{support}")(hessian)
    assert ((sampled.mean(dim=0) - entrywise).abs() > 20 * error).all()


def test_expectations_lie_within_khintchines_bounds():
    hessian = random_hessian(3, 5)
    own_blocks = torch.stack([hessian[i, :, i, :] for i in range(3)])
    upper = own_blocks.norm(dim=-1).sum(dim=-1)
    expected = oracles.expected_block_l1(hessian)
    assert (upper / math.sqrt(2) < expected).all() and (expected < upper).all()
    assert (upper < oracles.entrywise_block(hessian)).all()


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


@pytest.mark.parametrize("flow", FLOWS)
def test_phi_of_the_pencil_example(flow):
    phi = oracles.phi_by_paths(oracles.two_layer_attention(), flow)
    assert_close(phi[:, 0], double(oracles.TWO_LAYER_PHI[flow]))


def test_attention_that_goes_to_no_token_stays_lost():
    phi = oracles.phi_by_paths(oracles.two_layer_attention(sink=True), "suffix")
    assert_close(phi[:, 0], double(oracles.TWO_LAYER_SINK_SUFFIX))
    assert_close(phi.sum(dim=-1), double([[3 / 4], [1 / 2]]))


@pytest.mark.parametrize("make", [random_patterns, leaky_patterns])
@pytest.mark.parametrize("flow", FLOWS)
def test_paths_agree_with_matrix_products(flow, make):
    patterns = make(3, 2, 4)
    assert_close(oracles.phi_by_paths(patterns, flow), phi_by_products(patterns, flow), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("flow", FLOWS)
def test_phi_sums_to_one_exactly_when_no_attention_is_lost(flow):
    sums = oracles.phi_by_paths(random_patterns(3, 2, 4), flow).sum(dim=-1)
    assert_close(sums, torch.ones_like(sums))
    assert (oracles.phi_by_paths(leaky_patterns(3, 2, 4), flow).sum(dim=-1) < 0.99).all()


def test_path_sum_without_layers_stays_in_place():
    assert [oracles.path_sum([], start=i, end=1) for i in range(3)] == [0.0, 1.0, 0.0]


def test_path_sum_follows_edges_from_key_to_query():
    edge = [[0.0, 0.0], [5.0, 0.0]]  # query 1 reads key 0
    assert oracles.path_sum([edge], start=0, end=1) == 5.0
    assert oracles.path_sum([edge], start=1, end=0) == 0.0


def test_an_unknown_flow_is_an_error():
    with pytest.raises(ValueError, match="sideways"):
        oracles.phi_by_paths(oracles.two_layer_attention(), "sideways")


def test_value_norms_with_grouped_queries_by_hand():
    # Heads 0 and 1 read the value 3, heads 2 and 3 the value -5.
    # L1: 3 * 2, 3 * 3, 5 * 2, 5 * 7.  L2: 3 * sqrt 2, 3 * sqrt 5, 5 * 2, 5 * 5.
    values = double([[[3], [-5]]])
    W_O = double([[[1, 1]], [[1, -2]], [[0, 2]], [[3, 4]]])
    assert_close(oracles.value_norms(values, W_O, p=1), double([[6], [9], [10], [35]]))
    assert_close(oracles.value_norms(values, W_O, p=2), double([[3 * 2**0.5], [3 * 5**0.5], [10], [25]]))


@pytest.mark.parametrize("p", [1, 2])
def test_value_norms_agree_with_torch(p):
    values, W_O = normal(3, 2, 4), normal(6, 4, 5, seed=1)
    written = torch.einsum("nhk,hkd->hnd", values.repeat_interleave(3, dim=1), W_O)
    assert_close(oracles.value_norms(values, W_O, p=p), torch.linalg.vector_norm(written, ord=p, dim=-1))


@pytest.mark.parametrize("flow", ["suffix", "suffix_input"])
def test_gate_of_the_pencil_example(flow):
    values, weights = oracles.two_layer_values()
    gate = oracles.gate_by_paths(oracles.two_layer_attention(), values, weights, p=1, flow=flow)
    assert_close(gate, double(oracles.TWO_LAYER_GATE[flow]))


def random_writes(layers: int, heads: int, n: int) -> tuple[list[Tensor], list[Tensor]]:
    return list(normal(layers, n, 1, 3, seed=6)), list(normal(layers, heads, 3, 5, seed=7))


@pytest.mark.parametrize("make", [random_patterns, leaky_patterns])
@pytest.mark.parametrize("flow", FLOWS)
def test_gate_agrees_with_matrix_products(flow, make):
    patterns = make(3, 2, 4)
    values, weights = random_writes(3, 2, 4)
    norms = torch.stack([oracles.value_norms(v, w, p=2) for v, w in zip(values, weights, strict=True)])
    raw = reduce(phi_by_products(patterns, flow) * norms, "l h n -> l n", "sum")
    if flow == "suffix_input":
        eye = torch.eye(4, dtype=torch.float64)
        mixed = [0.5 * pattern.mean(dim=0) + 0.5 * eye for pattern in patterns]
        raw = torch.stack([raw[0], raw[1] @ mixed[0], raw[2] @ mixed[1] @ mixed[0]])
    expected = raw.sum(dim=0) / raw.sum()
    assert_close(oracles.gate_by_paths(patterns, values, weights, p=2, flow=flow), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("flow", FLOWS)
def test_a_token_without_a_path_to_the_target_has_no_gate(flow):
    # Nobody but token 1 itself reads token 1.
    pattern = double([[[1, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5]]])
    values, weights = random_writes(2, 1, 3)
    gate = oracles.gate_by_paths([pattern, pattern], values, weights, p=1, flow=flow)
    assert gate[1] == 0 and gate[0] > 0 and gate[2] > 0


def test_a_gate_without_any_weight_is_uniform():
    values, weights = oracles.two_layer_values()
    nothing = [torch.zeros_like(v) for v in values]
    gate = oracles.gate_by_paths(oracles.two_layer_attention(), nothing, weights, p=1, flow="suffix")
    assert_close(gate, double([1 / 3, 1 / 3, 1 / 3]))


# --- information -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["orig_masked", "masked_orig", "js"])
def test_information_of_the_coin(direction):
    # The second token does not matter; masking the first moves [3/4, 1/4] to [1/2, 1/2].
    scores = oracles.information(oracles.coin_log_probs, double([[1], [5]]), double([0]), direction)
    assert_close(scores, double([oracles.COIN_INFORMATION[direction], 0]))


def test_masking_a_token_that_equals_the_mask_changes_nothing():
    embeddings = normal(3, 2)
    scores = oracles.information(lambda e: e.flatten().log_softmax(dim=0), embeddings, embeddings[1], "orig_masked")
    assert scores[1] == 0 and scores[0] > 0 and scores[2] > 0


def test_information_leaves_the_embeddings_alone():
    embeddings = double([[1], [5]])
    oracles.information(oracles.coin_log_probs, embeddings, double([0]), "js")
    assert torch.equal(embeddings, double([[1], [5]]))


def test_divergences_agree_with_torch():
    p, q = random_log_probs(9, seed=0), random_log_probs(9, seed=1)
    kl_div = torch.nn.functional.kl_div
    forward, backward = (kl_div(a, b, reduction="sum", log_target=True) for a, b in [(q, p), (p, q)])
    assert abs(forward - backward) > 0.01  # the two directions can be told apart
    assert_close(oracles.divergence(p, q, "orig_masked"), forward)
    assert_close(oracles.divergence(p, q, "masked_orig"), backward)
    assert_close(oracles.divergence(p, q, "js"), oracles.divergence(q, p, "js"))
    assert 0 < oracles.divergence(p, q, "js") < math.log(2)


def test_an_unknown_direction_is_an_error():
    p = random_log_probs(3, seed=0)
    with pytest.raises(ValueError, match="sideways"):
        oracles.divergence(p, p, "sideways")


def test_impossible_tokens_count_nothing():
    certain, coin = double([1, 0]).log(), double([0.5, 0.5]).log()
    assert_close(oracles.kl(certain, coin), double(math.log(2)))
    assert oracles.kl(coin, certain) == math.inf
    # Against the middle [3/4, 1/4]: (ln 4/3) / 2 + (ln 2/3 + ln 2) / 4.
    js = math.log(4 / 3) / 2 + (math.log(2 / 3) + math.log(2)) / 4
    assert_close(oracles.divergence(certain, coin, "js"), double(js))


def test_pinsker_of_the_coin():
    p, q = double([3 / 4, 1 / 4]).log(), double([1 / 2, 1 / 2]).log()
    assert_close(oracles.pinsker_gap(p, q), double(oracles.COIN_INFORMATION["orig_masked"] - 1 / 8))


@pytest.mark.parametrize("seed", range(5))
def test_pinskers_inequality(seed):
    p = random_log_probs(6, seed=seed)
    q = (p + 0.1 * normal(6, seed=seed + 100)).log_softmax(dim=0)  # close, where the bound is tightest
    assert oracles.kl(p, q) > 0
    assert oracles.pinsker_gap(p, q) > 0


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


@pytest.mark.parametrize("by", ["sum", "max"])
def test_balance_forgets_the_units_of_the_parts(by):
    gate, curvature, information = parts()
    score = oracles.balanced(gate, curvature, information, 0.5, 0.5, by)
    assert_close(oracles.balanced(gate, 1e4 * curvature, 1e-2 * information, 0.5, 0.5, by), score)
    unbalanced = oracles.eq4(gate, curvature, information, 0.5, 0.5)
    assert not torch.allclose(oracles.eq4(gate, 1e4 * curvature, 1e-2 * information, 0.5, 0.5), unbalanced)


@pytest.mark.parametrize("by", ["sum", "max"])
def test_a_part_that_is_zero_everywhere_adds_nothing(by):
    gate, curvature, information = parts()
    size = {"sum": 20, "max": 10}[by]
    score = oracles.balanced(gate, curvature, 0 * information, beta=2.0, gamma=3.0, by=by)
    assert_close(score, 2 * gate * curvature / size)


def test_no_gate_and_a_uniform_gate_give_proportional_scores():
    _, curvature, information = parts()
    ones = torch.ones(3, dtype=torch.float64)
    no_gate = oracles.eq4(ones, curvature, information, 0.5, 0.5)
    assert_close(oracles.eq4(ones / 3, curvature, information, 0.5, 0.5), no_gate / 3)
