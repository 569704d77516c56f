"""Numbers: divergences, samples, tolerances, shares of tokens, and scores that are passed on."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any, get_args

import pytest
import torch
from scipy.stats import t as student
from torch import Tensor

from helpers import oracles
from helpers.asking import relative
from heta_lens._util.numerics import (
    DIVERGENCES,
    LEAST_TOLERANCE,
    Direction,
    Samples,
    check_finite,
    differences,
    distance,
    js,
    kl,
    student_t,
    token_count,
    tolerance,
)
from heta_lens.span_attribution import hops


def random_log_probs(rows: int, vocab: int, *, spread: float = 1.0, seed: int = 0) -> Tensor:
    logits = torch.randn(rows, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (spread * logits).log_softmax(-1)


DIRECTIONS = get_args(Direction)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_divergences_equal_their_definitions(direction: Direction) -> None:
    p, q = random_log_probs(5, 40), random_log_probs(5, 40, spread=3, seed=1)
    slow = torch.stack([oracles.divergence(one, other, direction) for one, other in zip(p, q, strict=True)])
    torch.testing.assert_close(DIVERGENCES[direction](p, q), slow, rtol=1e-12, atol=0)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_coin_by_hand(direction: Direction) -> None:
    before, after = (oracles.coin_log_probs(torch.tensor([[bias]], dtype=torch.float64)) for bias in (1.0, 0.0))
    assert float(DIVERGENCES[direction](before, after)) == pytest.approx(oracles.COIN_INFORMATION[direction])


@pytest.mark.parametrize("divergence", DIVERGENCES.values())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_divergence_is_never_negative_and_zero_only_where_nothing_moved(divergence: Any, dtype: torch.dtype) -> None:
    p = random_log_probs(50, 500, spread=4).to(dtype)
    nearly = (p + 1e-6 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1), dtype=dtype)).log_softmax(-1)
    assert (divergence(p, p) == 0).all()
    assert (divergence(p, nearly) >= 0).all()


def test_small_divergences_keep_their_digits_in_float32() -> None:
    p = random_log_probs(20, 300)
    q = (p + 1e-3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2), dtype=p.dtype)).log_softmax(-1)
    assert relative(kl(p.float(), q.float()), kl(p, q)) < 1e-3


def test_impossible_tokens_are_no_trouble_until_they_are_needed() -> None:
    never = torch.tensor([[0.0, -torch.inf]])
    maybe = torch.tensor([[0.5, 0.5]]).log()
    assert float(kl(never, maybe)) == pytest.approx(float(torch.tensor(2.0).log()))
    assert float(kl(never, never)) == 0
    assert float(kl(maybe, never)) == torch.inf
    assert 0 < float(js(never, maybe)) < float(torch.tensor(2.0).log())
    assert float(js(never, never)) == 0


def test_samples_may_be_more_for_some_tokens() -> None:
    drawn = [torch.tensor([1.0, 3.0, 8.0]), torch.tensor([]), torch.tensor([5.0, 7.0])]
    samples = Samples.uneven(drawn)
    assert samples.counts.tolist() == [3, 0, 2]
    assert samples.mean.tolist() == [4, 0, 6]
    expected = [float(torch.tensor([1.0, 3.0, 8.0]).std()) / 3**0.5, 0, float(torch.tensor([5.0, 7.0]).std()) / 2**0.5]
    assert samples.deviations.square().sum(0).sqrt().tolist() == pytest.approx(expected)


def test_students_quantile_is_scipys_and_0_where_there_is_no_spread() -> None:
    assert student_t(torch.tensor([3, 10])).tolist() == pytest.approx([student.ppf(0.975, 2), student.ppf(0.975, 9)])
    assert student_t(torch.tensor([0, 1]), 0.5).tolist() == [0, 0]


def test_the_least_precise_tensor_decides() -> None:
    assert tolerance(torch.float64) == LEAST_TOLERANCE
    assert tolerance(torch.float64, torch.float32) == 2**-11.5
    assert tolerance(torch.float32, torch.bfloat16) == 2**-3.5


def test_differences_are_taken_in_the_more_precise_type() -> None:
    now, then = torch.tensor([1.0 + 2**-40], dtype=torch.float64), torch.tensor([1.0])
    assert differences(now, then).item() == 2**-40


def test_a_distance_is_relative_to_the_largest_entry() -> None:
    now, then = torch.tensor([1.0, 8.0, -torch.inf]), torch.tensor([3.0, 8.0, -torch.inf])
    assert distance(now, then) == (0.25, tolerance(torch.float32))
    assert distance(now, then, least=0.1) == (0.25, 0.1)
    assert distance(torch.zeros(2), torch.zeros(2)).relative == 0


def test_minus_infinity_only_equals_itself() -> None:
    now, then = torch.tensor([1.0, 8.0]), torch.tensor([1.0, -torch.inf])
    assert distance(now, then).relative == torch.inf


@pytest.mark.parametrize(
    ("rounding", "counts"), [("down", [3, 2, 2, 0]), ("nearest", [3, 2, 2, 0]), ("up", [3, 3, 3, 1])]
)
def test_a_share_is_rounded_as_a_metric_defines_it(rounding: Any, counts: list[int]) -> None:
    shares = [(0.3, 10), (0.5, 5), (0.24, 10), (0.01, 10)]  # 0.3 of 10 is 3, however floats are rounded
    assert [token_count(share, tokens, rounding) for share, tokens in shares] == counts
    assert [token_count(share, 7, rounding) for share in (0.0, 1.0)] == [0, 7]
    assert token_count(0.29, 100, rounding) == 29


def test_the_first_bad_value_is_named() -> None:
    check_finite(torch.ones(3), "row {} is {}".format)
    with pytest.raises(ValueError, match=r"^row 1 is nan$"):
        check_finite(torch.tensor([1.0, torch.nan, torch.inf]), "row {} is {}".format)
    with pytest.raises(ValueError, match=r"^column 2 is -inf$"):
        check_finite(torch.tensor([[1.0, 2, -torch.inf]]), "column {} is {}".format, axis=1)


PROMPT, WRITTEN, AFTER = 4, 4, 2

LENGTH = PROMPT + WRITTEN + AFTER


def drawn(seed: int, signed: bool) -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn if signed else torch.rand
    rows = [draw(PROMPT + at, generator=generator, dtype=torch.float64) for at in range(WRITTEN)]
    return draw(LENGTH, generator=generator, dtype=torch.float64), rows


def by_paths(scores: Tensor, rows: Sequence[Tensor]) -> list[list[float]]:
    """For each number of written tokens on the way, the sum over all ways to each token before them."""
    share = [[float(value) / float(row.abs().sum()) for value in row] for row in rows]
    result = [[0.0] * LENGTH for _ in range(WRITTEN + 1)]
    for at in [*range(PROMPT), *range(PROMPT + WRITTEN, LENGTH)]:
        result[0][at] = float(scores[at])
    for count in range(1, WRITTEN + 1):
        for way in combinations(reversed(range(WRITTEN)), count):  # from the last to the first
            for end in range(PROMPT):
                value = float(scores[PROMPT + way[0]])
                for here, there in zip(way, [*(PROMPT + one for one in way[1:]), end], strict=True):
                    value *= share[here][there]
                result[count][end] += value
    return result


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_every_way_is_counted_once(seed: int, signed: bool) -> None:
    scores, rows = drawn(seed, signed)
    found = hops(scores, rows)
    torch.testing.assert_close(found.values, torch.tensor(by_paths(scores, rows), dtype=torch.float64))
    sizes = by_paths(scores.abs(), [row.abs() for row in rows])
    torch.testing.assert_close(found.sizes, torch.tensor(sizes, dtype=torch.float64))


@pytest.mark.parametrize("signed", [False, True])
def test_nothing_is_lost_and_nothing_stays_with_what_was_written(signed: bool) -> None:
    scores, rows = drawn(5, signed)
    found = hops(scores, rows)
    torch.testing.assert_close(found.sizes.sum(), scores.abs().sum(), rtol=1e-14, atol=0)
    assert (found.sizes[:, PROMPT : PROMPT + WRITTEN] == 0).all()
    assert torch.equal(found.values[:, -AFTER:].sum(0), scores[-AFTER:])  # between reasoning and answer: as it was
    if not signed:
        assert torch.equal(found.values, found.sizes)
        torch.testing.assert_close(found.values.sum(), scores.sum(), rtol=1e-14, atol=0)


def test_by_hand() -> None:
    """Two of four go to the first written token, one to the second; that gives three quarters to the first."""
    found = hops(torch.tensor([1.0, 0, 2, 1]), [torch.tensor([1.0, 3]), torch.tensor([2.0, 0, 6])])
    assert found.values.tolist() == [[1, 0, 0, 0], [0.75, 1.5, 0, 0], [0.1875, 0.5625, 0, 0]]


def test_signs_multiply_and_do_not_divide_by_almost_nothing() -> None:
    """What speaks against a token that speaks for the target speaks against the target, and the other way round."""
    row = torch.tensor([1.0, -1.0 + 1e-9])  # whose sum is nearly 0
    for_it, against = (hops(torch.tensor([0.0, 0, score]), [row]).values.sum(0) for score in (1.0, -1.0))
    torch.testing.assert_close(for_it, torch.tensor([0.5, -0.5, 0]))
    torch.testing.assert_close(against, torch.tensor([-0.5, 0.5, 0]))
    cancelled = hops(torch.tensor([0.0, 0, 1, -1]), [torch.tensor([1.0, 0]), torch.tensor([1.0, 0, 0])])
    assert cancelled.values.sum(0).tolist() == [0, 0, 0, 0]
    assert cancelled.sizes.sum(0).tolist() == [2, 0, 0, 0]


def test_a_token_without_scores_of_its_own_keeps_what_it_has() -> None:
    rows = [torch.zeros(2), torch.tensor([1.0, 1, 2])]
    found = hops(torch.tensor([1.0, 0, 3, 4]), rows)
    assert found.values.tolist() == [[1, 0, 3, 0], [1, 1, 2, 0]]
    nothing = hops(torch.zeros(4), rows)
    assert nothing.values.tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize("size", [1e-300, 1e300, 5e-324])
def test_scores_of_any_size_have_shares(size: float) -> None:
    row = torch.tensor([3.0, 1.0], dtype=torch.float64) * size
    found = hops(torch.tensor([0.0, 0, 1], dtype=torch.float64), [row])
    torch.testing.assert_close(found.values[1], torch.tensor([0.75, 0.25, 0], dtype=torch.float64))
