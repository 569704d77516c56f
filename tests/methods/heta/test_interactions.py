"""How strongly pairs of tokens bend the prediction together, against every block of dense Hessians."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from einops import rearrange
from torch import Tensor

import heta_lens
import heta_lens.prediction.prediction
from helpers import oracles, zoo
from helpers import variant_oracles as variants
from helpers.asking import chunks, explain, plain_embeddings, plain_log_probs, predict, relative, signs, start_together
from helpers.hessians import hessian_from, random_hessian
from heta_lens._util.work import counting
from heta_lens.methods.heta.curvature import curvature
from heta_lens.methods.heta.hessian import hessian
from heta_lens.methods.heta.probes import Pairs, gaussian, rademacher
from heta_lens.model.batching import Batches

TARGET, N = 7, 5
SEVERAL = "bridge-(gpt2|llama|native)|hooked-(rotary_gqa|parallel)"


def asked(model: Any, ids: Tensor, target: Any = TARGET, **options: Any) -> Any:
    return explain(model, ids, target, interactions=True, gamma=0, **options)


def dense(model: Any, ids: Tensor) -> oracles.Hessian:
    log_probs = plain_log_probs(model, ids)
    return oracles.dense_hessian(lambda e: log_probs(e)[TARGET], plain_embeddings(model, ids), functional=True)


def of_quadratic(matrix: Tensor, probes: Any, **options: Any) -> Pairs:
    n, _, _, d = matrix.shape
    at = torch.ones(n, d, dtype=torch.float64)

    def objective_from(start: int) -> Callable[[Tensor], Tensor]:
        return lambda embeddings: oracles.quadratic(matrix)(torch.cat([at[:start], embeddings]))

    def own(tokens: Sequence[int]) -> list[Tensor]:
        return [probes(token) for token in tokens]

    products = hessian_from(objective_from, at, batch=options.pop("batch", 64))
    found = curvature(
        products,
        at,
        own,
        by_start=chunks(range(n), options.pop("chunk", 2)),
        pairs=True,
        **options,
    ).pairs
    assert found is not None
    return found


# ---------------------------------------------------------------------------------------------------- real models
@pytest.mark.parametrize(("name", "build"), zoo.named(SEVERAL))
def test_exact_norms_give_every_block_of_the_dense_hessian(name: str, build: Any) -> None:
    model = build()
    ids, close = zoo.prompt(model, N), zoo.tolerance(name)
    expected = dense(model, ids)
    for support in ("block", "row"):
        found = asked(model, ids, norm="entrywise", support=support)
        assert relative(found.interactions, variants.entrywise_pairs(expected)) < close, support
    exact = asked(model, ids, norm="exact")
    assert relative(exact.interactions, variants.frobenius_pairs(expected)) < close
    assert torch.equal(exact.interactions, exact.interactions.T)
    assert exact.diagnostics["standard_errors"]["interactions"] is None
    # They come with the curvature, and leave it as it is.
    assert torch.equal(exact.scores, explain(model, ids, TARGET, gamma=0, norm="exact").scores)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "build"), zoo.named("bridge-(gpt2|native)|hooked-rotary_gqa"))
def test_many_probes_come_near_the_frobenius_norm_of_every_block(name: str, build: Any) -> None:  # noqa: ARG001
    model = build()
    ids = zoo.prompt(model, N)
    found = asked(model, ids, probes=400, batch=100)
    exact, error = variants.frobenius_pairs(dense(model, ids)), found.diagnostics["standard_errors"]["interactions"]
    assert torch.equal(found.interactions, found.interactions.T) and torch.equal(error, error.T)
    assert ((found.interactions - exact).abs() < 4.5 * error).all()
    assert ((found.interactions - exact).abs() > error).double().mean() < 0.6
    assert (error < 0.1 * exact).all()


def test_the_probes_are_those_of_the_curvature() -> None:
    model = zoo.bridge("gpt2")
    ids, probes = zoo.prompt(model, N), signs(2, 3, N, 8)
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
    ids = zoo.prompt(model, N)
    row = asked(model, ids, norm="entrywise", support="row")
    assert relative(row.interactions.sum(1), row.parts["curvature"]) < zoo.tolerance(name)
    block = asked(model, ids, norm="entrywise")
    assert relative(block.interactions.sum(1), row.parts["curvature"]) < zoo.tolerance(name)
    assert relative(block.interactions.diagonal(), block.parts["curvature"]) < zoo.tolerance(name)


def test_squares_sum_to_what_rows_of_probes_find() -> None:
    """``Σ_j ‖H_ij‖_F² = E‖Π_i H r‖₂²``, of which the L1 norm of the row support is never far."""
    model, d, probes = zoo.bridge("gpt2"), 8, 2000
    ids = zoo.prompt(model, N)
    squares = asked(model, ids, norm="exact").interactions.square().sum(1)
    prediction = predict(model, ids, TARGET)
    with prediction.running():
        operator = hessian(prediction.objective_from(0), prediction.embeddings, Batches(200), lambda _: None)
        samples = operator.matmat(signs(9, probes, N, d)).square().sum(-1)
    error = samples.std(0) / probes**0.5
    assert ((samples.mean(0) - squares).abs() < 4 * error).all() and (error < 0.1 * squares).all()
    two = ids[:, :2]  # few enough for every sign
    exact = asked(model, two, norm="exact", support="row")
    size = exact.interactions.square().sum(1).sqrt()
    assert (exact.parts["curvature"] >= size / 2**0.5).all()
    assert (exact.parts["curvature"] <= size * d**0.5).all()


@pytest.mark.slow
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|native)|hooked-alibi"))
def test_neither_batch_nor_chunk_changes_a_pair(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    expected = asked(model, ids, probes=3)
    for batch in (1, 2, 1000):
        assert relative(asked(model, ids, probes=3, batch=batch).interactions, expected.interactions) < 1e-6
    for chunk in (1, 2, 1000):
        start_together(monkeypatch, chunk)
        assert relative(asked(model, ids, probes=3).interactions, expected.interactions) < 1e-6


@pytest.mark.slow
def test_every_kind_of_hessian_has_its_pairs() -> None:
    model, rank = zoo.bridge("gpt2"), 3
    ids = zoo.prompt(model, N)
    log_probs, at = plain_log_probs(model, ids), plain_embeddings(model, ids)
    stream = variants.log_probs_of_stream(model, ids, 1)
    tests = rearrange(gaussian(0, 0, rank + 8, N, 8), "k n d -> n d k")
    cases: list[tuple[dict[str, Any], Tensor]] = [
        ({"variant": "gn"}, variants.gauss_newton(log_probs, at)),
        ({"variant": "lr", "rank": rank, "probes": 2}, variants.range_finder(dense(model, ids), tests, rank)[0]),
        (
            {"variant": "ls", "layers": 1},
            oracles.dense_hessian(lambda e: stream(e)[TARGET], variants.stream(model, ids, 1), functional=True),
        ),
    ]
    for options, expected in cases:
        for norm, oracle in (("exact", variants.frobenius_pairs), ("entrywise", variants.entrywise_pairs)):
            found = asked(model, ids, norm=norm, **options)
            assert relative(found.interactions, oracle(expected)) < 1e-7, (options, norm)
        found = asked(model, ids, norm="entrywise", support="row", **options)
        assert relative(found.interactions, variants.entrywise_pairs(expected)) < 1e-7, options


@pytest.mark.slow
@pytest.mark.parametrize(("name", "build"), zoo.named("bridge-(gpt2|llama)|hooked-rotary_gqa"))
def test_tokens_that_share_products_have_their_pairs_too(name: str, build: Any) -> None:  # noqa: ARG001
    model = build()
    ids = zoo.prompt(model, 9)
    exact = variants.frobenius_pairs(dense(model, ids))
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
    ids = zoo.prompt(model, N + 2)
    log_probs = plain_log_probs(model, ids[:, :N])
    bent = oracles.dense_hessian(
        lambda e: log_probs(e)[7] - log_probs(e)[9], plain_embeddings(model, ids[:, :N]), functional=True
    )
    found = asked(model, ids, pair, position=N, norm="exact")
    assert relative(found.interactions, variants.frobenius_pairs(bent)) < 1e-8
    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_post", lambda live, hook: live * 1.0)]):  # noqa: ARG005
        again = asked(model, ids, pair, position=N, norm="exact")
    assert relative(again.interactions, found.interactions) < 1e-9


def test_a_single_token_acts_with_itself() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 1)
    found = asked(model, ids, norm="exact")
    assert found.interactions.shape == (1, 1)
    assert relative(found.interactions, variants.frobenius_pairs(dense(model, ids))) < 1e-8


def test_nothing_is_kept_that_was_not_asked_for() -> None:
    model = zoo.bridge("gpt2")
    found = explain(model, zoo.prompt(model, 3), TARGET, probes=2)
    assert found.interactions is None
    assert "interactions" not in found.standard_errors
    assert not found.options["interactions"]


# --------------------------------------------------------------------------------------------- in a user's hands
def test_leaving_tokens_out_leaves_their_rows_and_columns_out() -> None:
    model = zoo.bridge("gpt2")
    whole = asked(model, zoo.prompt(model, N), probes=3)
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
    saved = asked(model, zoo.prompt(model, N), norm=norm)
    saved.save(tmp_path / "pairs")
    loaded = heta_lens.Attribution.load(tmp_path / "pairs")
    assert torch.equal(torch.as_tensor(loaded.interactions), saved.interactions)
    error = saved.diagnostics["standard_errors"]["interactions"]
    kept = loaded.diagnostics["standard_errors"]["interactions"]
    assert kept is None if norm == "entrywise" else torch.equal(kept, error)


# --------------------------------------------------------------------------------------------------- of the core
@pytest.mark.parametrize("chunk", [1, 2, 3, 99])
def test_pairs_of_a_quadratic_are_its_blocks(chunk: int) -> None:
    matrix = random_hessian(5, 3)
    for norm, oracle in (("exact", variants.frobenius_pairs), ("entrywise", variants.entrywise_pairs)):
        found = of_quadratic(matrix, partial(rademacher, 0, probes=1, d=3), norm=norm, chunk=chunk)
        torch.testing.assert_close(found.sizes, oracle(matrix), rtol=1e-10, atol=0)
        assert found.standard_errors is None


def test_tokens_that_do_not_meet_have_no_pair_and_no_error() -> None:
    matrix = random_hessian(3, 2)
    matrix[0, :, 2] = matrix[2, :, 0] = 0
    found = of_quadratic(matrix, partial(rademacher, 0, probes=4, d=2))
    assert found.standard_errors is not None
    assert found.sizes[0, 2] == found.sizes[2, 0] == found.standard_errors[0, 2] == found.standard_errors[2, 0] == 0
    assert found.sizes[0, 1] > 0 and found.standard_errors.isfinite().all()


@pytest.mark.slow
def test_standard_errors_of_pairs_equal_the_spread_over_repeats() -> None:
    matrix, repeats, probes = random_hessian(3, 4), 400, 30
    found = [of_quadratic(matrix, partial(rademacher, seed, probes=probes, d=4)) for seed in range(repeats)]
    spread = torch.stack([one.sizes for one in found]).std(0)
    claimed = torch.stack([one.standard_errors for one in found if one.standard_errors is not None])
    ratio = claimed.square().mean(0).sqrt() / spread
    assert len(claimed) == repeats
    assert ((ratio > 0.85) & (ratio < 1.15)).all(), ratio
    exact = variants.frobenius_pairs(matrix)
    bias = torch.stack([one.sizes for one in found]).mean(0) - exact
    assert (bias.abs() < 0.02 * exact).all()


def test_the_table_has_a_row_a_token_and_no_map_in_it() -> None:
    model = zoo.bridge("gpt2")
    attribution = explain(model, zoo.prompt(model, 4), 7, probes=3, interactions=True)
    assert attribution.standard_errors["interactions"] is not None
    assert "interactions_se" not in attribution.to_frame().columns
