"""A dry run answers what code asks of tensors without data, and counts what the code would hold."""

import pytest
import torch

from heta_lens._util.work import Allocations
from heta_lens.methods.memory import DryRun


def test_conditions_hold_and_numbers_are_zero() -> None:
    with DryRun():
        empty = torch.ones(3, device="meta")
        assert (empty > 5).all() and (empty != empty).any() and torch.equal(empty, empty + 1)
        assert float(empty.max()) == int(empty.sum()) == 0
        assert empty[empty > 5].shape == (3,)
        assert float(torch.tensor(2.5)) == 2.5 and not torch.equal(torch.zeros(1), torch.ones(1))  # what has data


def test_outside_of_it_tensors_without_data_still_say_nothing() -> None:
    with DryRun():
        pass
    with pytest.raises(RuntimeError, match="meta"):
        bool(torch.ones(1, device="meta"))


def test_it_holds_as_much_as_a_run_on_data() -> None:
    def run(device: str) -> None:
        x = torch.ones(4, 100, device=device, requires_grad=True)
        (gradient,) = torch.autograd.grad((x @ x.T).softmax(-1).exp().sum(), x, create_graph=True)
        torch.autograd.grad(gradient, x, torch.ones(2, 4, 100, device=device), is_grads_batched=True)

    with Allocations() as real:
        run("cpu")
    with DryRun() as dry:
        run("meta")
        assert dry.peak() == real.most
        assert dry.peak() == dry.now < real.most
