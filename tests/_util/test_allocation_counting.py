"""How many bytes tensors hold."""

import torch
from torch import Tensor

from heta_lens._util.work import Allocations

KIB = 2**10


def test_what_is_freed_does_not_count_and_the_most_is_kept() -> None:
    with Allocations() as held:
        first = torch.zeros(2, KIB)
        assert (held.now, held.most) == (8 * KIB, 8 * KIB)
        del first
        assert (held.now, held.most) == (0, 8 * KIB)
        second = torch.zeros(KIB)
        assert (held.now, held.most) == (4 * KIB, 8 * KIB)
        del second


def test_views_and_what_was_there_before_do_not_count() -> None:
    before = torch.zeros(2, KIB)
    with Allocations() as held:
        views = before[0], before.T, before.add_(1)
        assert held.now == 0
        copy = before.clone()
        several = copy[0], copy[1], copy.flatten()
        del copy
        assert held.now == 8 * KIB, "held by its views"
        del several
        assert held.now == 0
    del views


def test_what_a_graph_keeps_counts() -> None:
    leaf = torch.ones(KIB, requires_grad=True)
    with Allocations() as held:
        value = leaf.exp().exp()
        assert held.now == 8 * KIB
        del value
        assert held.now == 0


def test_tensors_without_values_count_as_if_they_had_some() -> None:
    with Allocations() as held:
        product: Tensor = torch.ones(KIB, KIB, device="meta", dtype=torch.bfloat16) * 2
        assert (held.now, held.most) == (2 * KIB * KIB, 4 * KIB * KIB)
        del product
