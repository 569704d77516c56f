"""Hooks that replace activations, and hooks that are added for a while."""

import pytest
import torch

from helpers import zoo
from heta_lens.model.hooks import check_points, hooked, note, put, put_at, put_positions, put_where, user_hooks

LIVE = torch.arange(24.0).reshape(2, 4, 3)


def test_states_are_replaced_in_a_copy_and_only_where_they_should_be() -> None:
    places = torch.tensor([[True, False, False], [False, True, True]])
    rows, clean = -torch.ones(3, 3), -torch.ones(4, 3)
    expected = LIVE.clone()
    expected[0, 0] = expected[1, 1] = expected[1, 2] = -1
    assert torch.equal(put_where(places, rows)(LIVE), expected)
    expected = LIVE.clone()
    expected[:, 1:3] = -1
    assert torch.equal(put_positions(clean, 1, 3)(LIVE), expected)
    expected = LIVE.clone()
    expected[1, 2] = -1
    assert torch.equal(put_at(torch.tensor([False, True]), 2, clean[0])(LIVE), expected)
    assert torch.equal(put(expected)(LIVE), expected)
    assert torch.equal(LIVE, torch.arange(24.0).reshape(2, 4, 3))


def test_hooks_fire_are_noted_and_are_gone_afterwards() -> None:
    model = zoo.bridge("gpt2")
    activations: dict[str, torch.Tensor] = {}
    with hooked(model, model.hook_dict, [("hook_embed", note(activations, "hook_embed"))]):
        model(zoo.prompt(model, 4))
        assert len(user_hooks(model, model.hook_dict)) == 1
    assert activations["hook_embed"].shape[1] == 4
    assert user_hooks(model, model.hook_dict) == []


def test_a_hook_that_does_not_fire_is_an_error() -> None:
    model = zoo.bridge("gpt2")
    hooks = [("hook_embed", lambda _: None)]
    with (
        pytest.raises(RuntimeError, match="ran without passing through hook_embed"),
        hooked(model, model.hook_dict, hooks),
    ):
        pass
    with hooked(model, model.hook_dict, hooks, every=False):
        pass


def test_a_hook_point_that_is_missing_is_named() -> None:
    model = zoo.bridge("gpt2")
    check_points(model, model.hook_dict, ["hook_embed"])
    with pytest.raises(ValueError, match=r"has no blocks\.9\.hook_out, where this would be put in"):
        check_points(model, model.hook_dict, ["blocks.9.hook_out"])
