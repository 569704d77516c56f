"""Which kind a target is of, and how it is named."""

from functools import partial

import pytest
import torch
from torch import Tensor

from heta_lens._util.target_kinds import (
    SavedFunction,
    Target,
    any_of,
    described,
    function_name,
    kind_of,
    members,
    sides,
)


def margin(logits: Tensor, *, first: int = 3) -> Tensor:
    return logits[first] - logits[4]


class Probe(torch.nn.Module):
    def forward(self, logits: Tensor) -> Tensor:
        return logits.sum()

    def score(self, logits: Tensor) -> Tensor:
        return logits.sum()


ANY = frozenset((7, 5))


@pytest.mark.parametrize(
    ("target", "kind", "two"),
    [
        (5, "token", (5,)),
        (ANY, "set", (ANY,)),
        ((5, 7), "contrast", (5, 7)),
        ((ANY, 3), "contrast", (ANY, 3)),
        (margin, "function", ()),
        (SavedFunction("margin"), "function", ()),
    ],
)
def test_every_target_has_one_kind(target: Target, kind: str, two: tuple[object, ...]) -> None:
    assert (kind_of(target), sides(target)) == (kind, two)


def test_members_are_in_order() -> None:
    assert (members(5), members(frozenset((7, 3, 5)))) == ([5], [3, 5, 7])


def test_a_function_is_called_by_its_own_name() -> None:
    def inner(logits: Tensor) -> Tensor:
        return logits.sum()

    named = {
        "margin": margin,
        "inner": inner,
        "<lambda>": lambda logits: logits.sum(),
        "Probe": Probe(),
        "Probe.score": Probe().score,
        "kept": SavedFunction("kept"),
    }
    assert {name: function_name(function) for name, function in named.items()} == {name: name for name in named}
    assert function_name(partial(partial(margin, first=1))) == "margin"


@pytest.mark.parametrize(
    ("target", "text", "words"),
    [
        (5, " Paris", "' Paris'"),
        ((5, 7), (" Paris", " Rome"), "' Paris' rather than ' Rome'"),
        (ANY, any_of([" Paris", "Paris"]), "any of ' Paris', 'Paris'"),
        ((ANY, 3), (any_of([" Paris", "Paris"]), " Rome"), "any of ' Paris', 'Paris' rather than ' Rome'"),
        (margin, "margin", "margin(logits)"),
    ],
)
def test_a_target_in_words(target: Target, text: str | tuple[str, ...], words: str) -> None:
    assert described(target, text) == words


def test_a_large_set_is_named_by_some_of_it() -> None:
    assert any_of([*"abcdefg"]) == "any of 'a', 'b', 'c', 'd', 'e', 'f', … (7 tokens)"
    assert any_of([*"abcdef"]) == "any of 'a', 'b', 'c', 'd', 'e', 'f'"


def test_a_function_from_a_file_is_not_called_and_says_how_to_go_on() -> None:
    with pytest.raises(ValueError, match=r"the function margin, of which a file holds only the name: .*replace\("):
        SavedFunction("margin")(torch.zeros(3))
