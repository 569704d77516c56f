"""The oracles of variants and diagnostics against hand-computed numbers, identities, and second ways to the same."""

import math
from itertools import pairwise

import pytest
import scipy.optimize
import torch
from einops import rearrange
from jaxtyping import install_import_hook
from torch import Tensor
from torch.testing import assert_close

from helpers import zoo

with install_import_hook(["oracles", "variant_oracles"], "beartype.beartype"):  # checks annotated shapes and dtypes
    from helpers import oracles
    from helpers import variant_oracles as variants


def double(values) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def random_hessian(n: int, d: int, rank: int | None = None) -> Tensor:
    """Symmetric and indefinite, with these many dimensions."""
    size = n * d
    rank = size if rank is None else rank
    vectors, eigenvalues = torch.linalg.qr(normal(size, rank)).Q, normal(rank, seed=1)
    return rearrange(vectors @ eigenvalues.diag() @ vectors.T, "(i a) (j b) -> i a j b", i=n, j=n)


def diagonal(*values: float) -> Tensor:
    """The Hessian of tokens of width 1 that do not interact."""
    return double(values).diag().reshape(len(values), 1, len(values), 1)


# --- curvature ---------------------------------------------------------------------------------------------------


INWARD, OUTWARD = normal(6, 5, seed=4), normal(5, 4, seed=5)


def curved_logits(embeddings: Tensor) -> Tensor:
    return torch.tanh(embeddings.flatten() @ INWARD) @ OUTWARD


def curved(embeddings: Tensor) -> Tensor:
    return curved_logits(embeddings).log_softmax(dim=0)


def affine(embeddings: Tensor) -> Tensor:
    return (embeddings.flatten() @ INWARD @ OUTWARD + 1).log_softmax(dim=0)


def test_gauss_newton_of_the_coin():
    # Logits (e ln 3, 0) at e = 1: p = [3/4, 1/4], F_11 = 3/16, J = (ln 3, 0), so G = -(3/16) (ln 3)^2 for token 1.
    expected = torch.zeros(2, 1, 2, 1, dtype=torch.float64)
    expected[0, 0, 0, 0] = -3 / 16 * math.log(3) ** 2
    assert_close(variants.gauss_newton(oracles.coin_log_probs, double([[1], [5]])), expected)


def test_gauss_newton_is_the_hessian_exactly_when_logits_are_affine():
    embeddings = normal(3, 2)
    found = variants.gauss_newton(affine, embeddings)
    assert_close(found, oracles.dense_hessian(lambda e: affine(e)[1], embeddings))
    hessian = oracles.dense_hessian(lambda e: curved(e)[1], embeddings)
    assert not torch.allclose(variants.gauss_newton(curved, embeddings), hessian, rtol=0.1)


def test_gauss_newton_lacks_the_second_derivatives_of_the_logits():
    embeddings, target = normal(3, 2), 1
    hessian = oracles.dense_hessian(lambda e: curved(e)[target], embeddings)
    for v, p in enumerate(curved(embeddings).exp()):
        hessian -= (float(v == target) - p) * oracles.dense_hessian(lambda e, v=v: curved_logits(e)[v], embeddings)
    assert_close(variants.gauss_newton(curved, embeddings), hessian)


def test_gauss_newton_is_the_hessian_expected_under_the_prediction():
    embeddings = normal(3, 2)  # Bartlett: E[second derivative of log p] = -Fisher information
    p = curved(embeddings).exp()
    hessians = [oracles.dense_hessian(lambda e, v=v: curved(e)[v], embeddings) for v in range(len(p))]
    assert_close(variants.gauss_newton(curved, embeddings), sum(q * h for q, h in zip(p, hessians, strict=True)))


def test_log_probabilities_stand_for_logits():
    embeddings = normal(3, 2)
    p = curved(embeddings).exp()
    J = torch.autograd.functional.jacobian(curved_logits, embeddings)
    fisher = p.diag() - torch.outer(p, p)
    expected = -torch.einsum("via,vw,wjb->iajb", J, fisher, J)
    assert_close(variants.gauss_newton(curved, embeddings), expected)


def test_squared_gradient_by_hand():
    # g = x y + 3 z at x = 2, y = 5, with tokens (x, y) and (z, nothing): (5^2 + 2^2, 3^2).
    found = variants.squared_gradient(lambda e: e[0, 0] * e[0, 1] + 3 * e[1, 0], double([[2, 5], [7, 1]]))
    assert_close(found, double([29, 9]))


def test_the_largest_eigenvalues_are_those_of_largest_modulus():
    # Of 1, 3, -2: 3, then -2, then 1.
    hessian = diagonal(1, 3, -2)
    for rank, kept, eigenvalues in [(1, (0, 3, 0), [3]), (2, (0, 3, -2), [3, -2]), (3, (1, 3, -2), [3, -2, 1])]:
        approximation, found = variants.best_rank(hessian, rank)
        assert_close(approximation, diagonal(*kept))
        assert_close(found, double(eigenvalues))


def test_tail_energy_by_hand():
    hessian = diagonal(1, 3, -2)
    assert_close(variants.tail_energy(hessian, 1), double(5**0.5))
    assert_close(variants.tail_energy(hessian, 0), double(14**0.5))
    assert variants.tail_energy(hessian, 3) == 0
    assert_close(variants.tail_energy(hessian, 1) / variants.tail_energy(hessian, 0), double(0.5976143))


def test_residual_energy_by_hand():
    # The differences are 1, -2, 2 and twice 4 off the diagonal: sqrt(1 + 4 + 4 + 16 + 16).
    approximation = diagonal(0, 5, -4)
    approximation[0, 0, 1, 0] = approximation[1, 0, 0, 0] = 4
    assert_close(variants.residual_energy(diagonal(1, 3, -2), approximation), double(41**0.5))


def test_nothing_of_its_rank_is_nearer_than_the_best():
    hessian = random_hessian(3, 2)
    for rank in range(7):
        approximation, _ = variants.best_rank(hessian, rank)
        assert torch.linalg.matrix_rank(approximation.reshape(6, 6)) == rank
        assert_close(variants.residual_energy(hessian, approximation), variants.tail_energy(hessian, rank))
    for seed, rank in [(2, 1), (3, 2), (4, 3)]:
        approximation, _ = variants.range_finder(hessian, normal(3, 2, 4, seed=seed), rank)
        assert variants.residual_energy(hessian, approximation) > 1.0001 * variants.tail_energy(hessian, rank)


def test_range_finder_by_hand():
    # H = diag(3, -2, 1), Omega = (1, 1, 0): Y = (3, -2, 0), Q = Y / sqrt 13, B = (9 * 3 - 4 * 2) / 13 = 19 / 13,
    # and H_1 = 19 / 13^2 Y Y^T.
    approximation, eigenvalues = variants.range_finder(diagonal(3, -2, 1), double([1, 1, 0]).reshape(3, 1, 1), 1)
    expected = 19 / 169 * double([[9, -6, 0], [-6, 4, 0], [0, 0, 0]])
    assert_close(approximation, expected.reshape(3, 1, 3, 1))
    assert_close(eigenvalues, double([19 / 13]))


def test_range_finder_sees_only_the_range_of_its_test_matrix():
    axes = torch.eye(3, dtype=torch.float64).reshape(3, 1, 3)
    approximation, eigenvalues = variants.range_finder(diagonal(3, -2, 1), axes[..., 1:], 1)
    assert_close(approximation, diagonal(0, -2, 0))
    assert_close(eigenvalues, double([-2]))


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_range_finder_with_all_directions_is_the_best(rank):
    hessian = random_hessian(3, 2)
    for columns in (6, 8):
        for found, best in zip(
            variants.range_finder(hessian, normal(3, 2, columns), rank), variants.best_rank(hessian, rank), strict=True
        ):
            assert_close(found, best)


@pytest.mark.parametrize("columns", [2, 4])
def test_range_finder_recovers_a_hessian_of_low_rank(columns):
    hessian = random_hessian(3, 2, rank=2)
    approximation, eigenvalues = variants.range_finder(hessian, normal(3, 2, columns, seed=7), 2)
    assert_close(approximation, hessian)
    assert_close(eigenvalues, variants.best_rank(hessian, 2)[1])


def test_pairs_by_hand():
    # Blocks [[3, 0], [0, -4]] on the diagonal of token 1, [[0, 0], [0, 2]] on that of token 2, [[1, -1], [1, 1]]
    # between them: Frobenius 5, 2 and 2; entries 7, 2 and 4.
    hessian = torch.zeros(2, 2, 2, 2, dtype=torch.float64)
    hessian[0, :, 0], hessian[1, :, 1] = double([[3, 0], [0, -4]]), double([[0, 0], [0, 2]])
    hessian[0, :, 1] = double([[1, -1], [1, 1]])
    hessian[1, :, 0] = hessian[0, :, 1].T
    assert_close(variants.frobenius_pairs(hessian), double([[5, 2], [2, 2]]))
    assert_close(variants.entrywise_pairs(hessian), double([[7, 4], [4, 2]]))


def test_pairs_sum_to_the_norms_of_the_whole():
    hessian = random_hessian(3, 2)
    pairs = variants.entrywise_pairs(hessian)
    assert_close(pairs.diagonal(), oracles.entrywise_block(hessian))
    assert_close(pairs.sum(dim=1), oracles.entrywise_row(hessian))
    nothing = torch.zeros_like(hessian)
    assert_close(variants.frobenius_pairs(hessian).norm(), variants.residual_energy(hessian, nothing))
    assert (variants.frobenius_pairs(hessian) <= pairs).all()


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


def other_ids(model, n: int) -> Tensor:
    return zoo.prompt(model, n, seed=1)


@pytest.mark.parametrize("build", zoo.models())
def test_the_stream_of_another_prompt_gives_its_prediction(build):
    model = build()
    ids, other = zoo.prompt(model, 5), other_ids(model, 5)
    for layer in range(model.cfg.n_layers):
        log_probs = variants.log_probs_of_stream(model, ids, layer)
        assert_close(log_probs(variants.stream(model, ids, layer)), clean_log_probs(model, ids))
        assert_close(log_probs(variants.stream(model, other, layer)), clean_log_probs(model, other))
    assert not torch.allclose(clean_log_probs(model, ids), clean_log_probs(model, other), atol=1e-3)


N, START, STOP, TAIL = 8, 2, 5, 7  # frozen: 0 and 1 before the window, 5 and 6 between it and the tail


def moved_window(model, ids: Tensor) -> Tensor:
    """The prompt's embeddings, with other ones in the window."""
    embeddings = embeddings_of(model, ids)
    embeddings[START:STOP] += normal(STOP - START, embeddings.shape[1])
    return embeddings


@pytest.mark.parametrize("build", zoo.models())
def test_a_window_of_clean_embeddings_changes_nothing(build):
    model = build()
    ids = zoo.prompt(model, N)
    log_probs = variants.frozen_window(model, ids, START, STOP, TAIL)
    assert_close(log_probs(embeddings_of(model, ids)[START:STOP]), clean_log_probs(model, ids))
    for layer in range(model.cfg.n_layers):
        log_probs = variants.frozen_window(model, ids, START, STOP, TAIL, layer=layer)
        assert_close(log_probs(variants.stream(model, ids, layer)[START:STOP]), clean_log_probs(model, ids))


@pytest.mark.parametrize("build", zoo.models())
def test_frozen_keys_and_values_agree_with_frozen_streams(build):
    model = build()
    ids = zoo.prompt(model, N)
    embeddings = moved_window(model, ids)
    found = variants.frozen_window(model, ids, START, STOP, TAIL)(embeddings[START:STOP]).detach()
    frozen = torch.tensor([True, True, False, False, False, True, True, False])
    assert_close(found, with_frozen_streams(model, ids, embeddings, frozen), rtol=1e-9, atol=1e-9)
    # Everything live, the gap between window and tail passes the change on as well.
    assert not torch.allclose(found, with_embeddings(model, ids, embeddings), atol=1e-4)
    assert not torch.allclose(found, clean_log_probs(model, ids), atol=1e-4)


@pytest.mark.parametrize("build", zoo.models())
def test_without_a_gap_a_frozen_window_is_a_plain_run(build):
    model = build()
    ids = zoo.prompt(model, N)
    embeddings = moved_window(model, ids)
    expected = with_embeddings(model, ids, embeddings)
    for start, stop, tail in [(START, STOP, STOP), (START, N, N), (0, N, N), (START, TAIL, STOP)]:
        found = variants.frozen_window(model, ids, start, stop, tail)(embeddings[start:stop])
        assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_frozen_window_at_a_layer_is_the_stream_when_it_is_everything():
    model = zoo.bridge("llama")
    ids, other = zoo.prompt(model, N), other_ids(model, N)
    found = variants.frozen_window(model, ids, 0, N, N, layer=1)(variants.stream(model, other, 1))
    assert_close(found, clean_log_probs(model, other))


def test_a_frozen_window_at_a_layer_leaves_the_gap_frozen():
    # Behind the last block nobody reads what the gap made of the window, so freezing it changes nothing.
    for n_layers, same in [(2, True), (3, False)]:
        model = zoo.bridge("gpt2", n_layers=n_layers)
        ids = zoo.prompt(model, N)
        states = variants.stream(model, ids, 1)
        states[START:STOP] += normal(STOP - START, states.shape[1])
        found = variants.frozen_window(model, ids, START, STOP, TAIL, layer=1)(states[START:STOP])
        assert torch.allclose(found, variants.log_probs_of_stream(model, ids, 1)(states), atol=1e-9) == same


def test_without_a_tail_the_last_token_still_asks():
    # What it shows is frozen, its own queries are not; a window that it cannot see has no effect.
    for family, start, seen in [("gpt2", 0, True), ("mistral", 0, False), ("mistral", 5, True)]:
        model = zoo.bridge(family)
        ids = zoo.prompt(model, N)
        window = embeddings_of(model, ids)[start : start + 2]
        log_probs = variants.frozen_window(model, ids, start, start + 2, tail=N)
        assert (not torch.allclose(log_probs(window + 1 / window), log_probs(window))) == seen


@pytest.mark.slow
@pytest.mark.parametrize("build", zoo.models("native|gpt2|llama|gptoss"))
def test_curvature_of_a_window_and_of_a_stream_is_that_of_differences(build):
    model, step = build(), 1e-3
    ids = zoo.prompt(model, 5)
    window = (variants.frozen_window(model, ids, 1, 3, 4), embeddings_of(model, ids)[1:3])
    states = (variants.log_probs_of_stream(model, ids, 1), variants.stream(model, ids, 1))
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


@pytest.mark.parametrize("build", zoo.models("native|llama"))
def test_gauss_newton_of_a_stream_from_slopes(build):
    model, step = build(), 1e-3
    ids = zoo.prompt(model, 4)
    log_probs, states = variants.log_probs_of_stream(model, ids, 1), variants.stream(model, ids, 1)
    direction = normal(*states.shape)
    slope = (log_probs(states + step * direction) - log_probs(states - step * direction)).detach() / (2 * step)
    p = log_probs(states).detach().exp()
    expected = -((p * slope**2).sum() - (p * slope).sum() ** 2)  # minus the variance of the slope
    found = torch.einsum("ia,iajb,jb->", direction, variants.gauss_newton(log_probs, states), direction)
    assert_close(found, expected, rtol=1e-3, atol=1e-6)


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
    assert variants.windows(n, size, overlap) == expected


@pytest.mark.parametrize("n", range(1, 14))
@pytest.mark.parametrize("overlap", [0, 0.3, 0.5, 0.9])
def test_windows_cover_every_token_and_have_one_size(n, overlap):
    for size in range(1, 14):
        found = variants.windows(n, size, overlap)
        assert {i for window in found for i in range(*window)} == set(range(n))
        assert {stop - start for start, stop in found} == {min(size, n)}
        assert found[0][0] == 0 and found[-1][1] == n
        assert all(before < after for before, after in pairwise(found))


def test_window_mean_by_hand():
    # Token 1 is in the first two windows, token 2 in all three.
    values, where = [double([1, 2, 3]), double([4, 6]), double([9, 8])], [(0, 3), (1, 3), (2, 4)]
    assert_close(variants.window_mean(values, where, 4), double([1, 3, 6, 8]))


def test_window_mean_of_equal_values_is_the_value():
    value, where = normal(9), variants.windows(9, 4, 0.5)
    assert_close(variants.window_mean([value[start:stop] for start, stop in where], where, 9), value)


def test_window_gate_by_hand():
    # Of [1, 1, 3]: [1/2, 1/2] and [1/4, 3/4], so [1/2, 3/8, 3/4] of 13/8.
    where = [(0, 2), (1, 3)]
    assert_close(variants.window_gate(double([1, 1, 3]), where), double([4 / 13, 3 / 13, 6 / 13]))
    # A first window without mass is uniform: [1/2, 1/2] and [0, 1], so [1/2, 1/4, 1] of 7/4.
    assert_close(variants.window_gate(double([0, 0, 3]), where), double([2 / 7, 1 / 7, 4 / 7]))


def test_window_gate_of_one_window_is_the_normalised_mass():
    mass = normal(5).abs()
    assert_close(variants.window_gate(mass, [(0, 5)]), mass / mass.sum())


def test_window_gate_forgets_how_much_mass_a_window_has():
    mass, where = double([1, 3, 2, 2]), [(0, 2), (2, 4)]
    expected = double([1 / 8, 3 / 8, 1 / 4, 1 / 4])
    assert_close(variants.window_gate(mass, where), expected)
    assert_close(variants.window_gate(mass * double([1, 1, 50, 50]), where), expected)


# --- diagnostics -------------------------------------------------------------------------------------------------


def interacting(embeddings: Tensor) -> Tensor:
    """g = x + x y + 10 z for tokens x, y, z of width 1."""
    x, y, z = embeddings[:, 0]
    return x + x * y + 10 * z


def test_drop_by_hand():
    # At (2, 3, 1): g = 2 + 6 + 10 = 18. With 1 in the place of x: 14; of y: 14; of both: 12; of z: nothing changes.
    embeddings, mask = double([[2], [3], [1]]), double([1])
    for subset, expected in [([], 0), ([0], 4), ([1], 4), ([0, 1], 6), ([2], 0), ([0, 1, 2], 6)]:
        assert variants.drop(interacting, embeddings, mask, subset) == expected
    assert torch.equal(embeddings, double([[2], [3], [1]]))


def test_faithfulness_errors_by_hand():
    # g(X) = -1 and -3 without R, attributed 1.5: |2 - 1.5|.
    found = variants.faithfulness_errors(double([2, -1, 0]), double([1.5, 0.5, 0]))
    assert_close(found, double([0.5, 1.5, 0]))


def test_an_additive_model_has_no_error():
    slope, embeddings, mask = normal(4, 2), normal(4, 2, seed=1), normal(2, seed=2)
    scores = (slope * (embeddings - mask)).sum(dim=1)

    def additive(e: Tensor) -> Tensor:
        return (slope * e).sum() + 3

    subsets = [[0], [1, 3], [0, 1, 2, 3]]
    drops = torch.stack([variants.drop(additive, embeddings, mask, subset) for subset in subsets])
    sums = torch.stack([scores[subset].sum() for subset in subsets])
    assert drops.abs().min() > 0.01
    assert_close(variants.faithfulness_errors(drops, sums), torch.zeros(3, dtype=torch.float64))
    assert_close(variants.best_scale(drops, 4 * sums), double(0.25))
    assert_close(variants.additivity_gap(scores, additive, embeddings, mask), double(0))
    assert_close(variants.additivity_gap(scores - 1, additive, embeddings, mask), double(4))


def test_best_scale_by_hand():
    # (1 * 1 + 2 * 4) / (1 + 4) = 9/5; opposed, nothing helps; and nothing to scale.
    assert_close(variants.best_scale(double([1, 4]), double([1, 2])), double(9 / 5))
    assert variants.best_scale(double([-1, -4]), double([1, 2])) == 0
    assert variants.best_scale(double([1, 4]), double([0, 0])) == 0


@pytest.mark.parametrize("seed", range(6))
def test_no_scale_is_better_than_the_best(seed):
    drops, sums = normal(7, seed=seed), normal(7, seed=seed + 10)
    best = variants.best_scale(drops, sums)
    scales = torch.linspace(0, 5, 501, dtype=torch.float64)
    errors = (drops - scales[:, None] * sums).square().sum(dim=1)
    least = (drops - best * sums).square().sum()
    assert least <= errors.min() + 1e-12
    assert errors.min() - least < 0.01


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
    found = variants.nnls_by_enumeration(double(features), double(drops))
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_nnls_agrees_with_scipy(seed):
    features, drops = normal(6, 2, seed=seed), normal(6, seed=seed + 100)
    expected, _ = scipy.optimize.nnls(features.numpy(), drops.numpy())
    assert variants.nnls_by_enumeration(features, drops) == pytest.approx(expected.tolist(), abs=1e-10)


def test_additivity_gap_by_hand():
    # g falls from 18 to 1 + 1 + 10 = 12 when everything is masked with 1: |(1 + 2 + 0.5) - 6| and |8 - 6|.
    embeddings, mask = double([[2], [3], [1]]), double([1])
    assert_close(variants.additivity_gap(double([1, 2, 0.5]), interacting, embeddings, mask), double(2.5))
    assert_close(variants.additivity_gap(double([1, 5, 2]), interacting, embeddings, mask), double(2))


def test_envelope_by_hand():
    # 0.5 (2 * 2 + 3 * 1), and 0.25 (2 * 8): a negative drop counts nothing.
    found = variants.envelope(double([0.5, 0.25]), double([2, 8]), double([1, -4]), beta=2.0, gamma=3.0)
    assert_close(found, double([3.5, 4.0]))


def test_envelope_bounds_scores_exactly_where_its_condition_holds():
    # KL 0.5 <= 0.5; 0.2 > 0.1; 0.1 > max(0, -3); 0 <= max(0, -1).
    information, drops = double([0.5, 0.2, 0.1, 0]), double([0.5, 0.1, -3, -1])
    assert variants.envelope_share(information, drops) == 0.5
    gate, curvature = double([0.1, 0.2, 0.3, 0.4]), double([1, 2, 3, 4])
    scores = oracles.eq4(gate, curvature, information, 0.5, 0.5)
    bounded = scores <= variants.envelope(gate, curvature, drops, 0.5, 0.5)
    assert bounded.tolist() == [True, False, False, True]


def test_leakage_by_hand():
    # Differences 0.1, -0.3, 0.2: at most 0.3, and half of 0.6.
    found = variants.leakage(double([0.5, 0.2, 0.3]), double([0.4, 0.5, 0.1]))
    assert found == pytest.approx((0.3, 0.3))
    # 0.2, -0.1, -0.1, 0.2, -0.2: at most 0.2, half of 0.8.
    found = variants.leakage(double([0.4, 0.1, 0.1, 0.2, 0.2]), double([0.2, 0.2, 0.2, 0, 0.4]))
    assert found == pytest.approx((0.2, 0.4))
