"""How far two runs of the same thing may be apart."""

import torch

from heta_lens._util.numerics import LEAST_TOLERANCE, differences, distance, tolerance


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
