"""Scores that are passed on, against every path listed one by one."""

from collections.abc import Sequence
from itertools import combinations

import pytest
import torch
from torch import Tensor

from heta_lens.span_attribution import hops

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_keep_their_dtype(dtype: torch.dtype) -> None:
    scores, rows = drawn(1, True)
    found = hops(scores.to(dtype), [row.to(dtype) for row in rows])
    assert found.values.dtype == found.sizes.dtype == dtype


def test_long_chains_end() -> None:
    """Every written token gives all to the one before it: as many hops as there are tokens."""
    rows = [torch.zeros(1 + at).index_fill(0, torch.tensor([at]), 1.0) for at in range(50)]
    found = hops(torch.zeros(51).index_fill(0, torch.tensor([50]), 1.0), rows)
    assert found.values.shape == (51, 51)
    assert found.values[50].tolist() == [1.0, *[0.0] * 50] and found.values.sum() == 1


def test_a_set_explained_as_a_whole_hands_on_the_same_where_scores_are_linear() -> None:
    """FlashTrace's recursion: the reasoning is one weighted set, and the share that came to it is what a hop counts."""
    scores, rows = drawn(7, signed=False)
    scores = scores[: PROMPT + WRITTEN] / scores[: PROMPT + WRITTEN].sum()
    each = torch.stack([torch.nn.functional.pad(row / row.sum(), (0, len(scores) - len(row))) for row in rows])
    observed, reached = scores[:PROMPT].clone(), scores[PROMPT:].sum()
    last = scores
    for _ in range(WRITTEN):
        weights = last[PROMPT:] / last[PROMPT:].sum()
        last = weights @ each
        observed += reached * last[:PROMPT]
        reached = reached * last[PROMPT:].sum()
        if not reached:
            break
    torch.testing.assert_close(hops(scores, rows).values.sum(0)[:PROMPT], observed)


def test_scores_that_are_no_number_end_too() -> None:
    assert hops(torch.tensor([0.0, torch.nan]), [torch.tensor([1.0])]).values.isnan().any()
