"""shapiq over our coalitions: values and interactions by their definitions, and estimates near them."""

from itertools import combinations
from math import factorial
from typing import Any

import numpy as np
import pytest
import torch

from helpers import zoo
from helpers.ablations import TARGET, N, close, found, ids_of, worth
from helpers.asking import predict, relative
from heta_lens._util import python
from heta_lens.methods.base import Work
from heta_lens.methods.shapiq import Shapiq
from heta_lens.methods.surrogates import KernelShap

NAMES = [param.id for param in zoo.models("-(gpt2|llama|gptj)$")]
BUILD = dict(zoo.KINDS)


def subsets(players: list[int]) -> list[tuple[int, ...]]:
    return [chosen for size in range(len(players) + 1) for chosen in combinations(players, size)]


def by_definition(v: Any, players: list[int], group: tuple[int, ...]) -> float:
    """The Shapley interaction index of a group: its discrete derivative, averaged over what else is there."""
    rest, n, k = [player for player in players if player not in group], len(players), len(group)
    return sum(
        factorial(n - k - len(there)) * factorial(len(there)) / factorial(n - k + 1)
        * sum((-1) ** (k - len(some)) * v([*there, *some]) for some in subsets([*group]))
        for there in subsets(rest)
    )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_values_and_interactions_are_those_of_the_definition(name: str) -> None:
    model = BUILD[name]()
    ids = zoo.prompt(model, N)
    of, players = worth(model, ids), [*range(1, N)]
    some = found(model, Shapiq(source="token", ablate="mask", order=2))
    value = lambda there: of([0, *there])  # noqa: E731
    close(name, some.scores, [0.0, *(by_definition(value, players, (player,)) for player in players)], 20)
    expected = np.zeros((N, N))
    for first, second in combinations(players, 2):
        expected[first, second] = expected[second, first] = by_definition(value, players, (first, second))
    close(name, some.interactions, expected, 100)
    assert some.diagnostics["exact"] and some.diagnostics["completeness_gap"] < 1e-4
    assert some.diagnostics["forwards"] == 2 ** (N - 1)


def test_of_tokens_that_are_masked_they_are_kernel_shaps() -> None:
    model = zoo.bridge("gpt2")
    own, theirs = (found(model, method) for method in (Shapiq(source="token", ablate="mask"), KernelShap()))
    assert relative(own.scores, theirs.scores) < 1e-6


@pytest.mark.thorough
def test_estimates_come_near() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 12)
    exact, near = (
        found(model, Shapiq(source="token", ablate="mask", order=2, samples=samples), ids) for samples in (2**11, 1200)
    )
    assert exact.diagnostics["exact"] and not near.diagnostics["exact"]
    assert near.diagnostics["forwards"] == 1200
    assert float(torch.corrcoef(torch.stack([near.scores, exact.scores]))[0, 1]) > 0.95
    assert near.diagnostics["completeness_gap"] < 1e-4
    again = found(model, Shapiq(source="token", ablate="mask", order=2, samples=1200), ids)
    assert torch.equal(again.scores, near.scores)


def test_sentences_are_removed_from_the_ids() -> None:
    model, ids = zoo.bridge("gpt2"), ids_of()
    some = found(model, Shapiq(order=2), ids)
    places = some.diagnostics["source_positions"]

    def v(there: list[int]) -> float:
        left = sorted([0, *(place for player in there for place in places[player])])
        with torch.no_grad():
            return float(model(ids[:, left])[0, -1].double().log_softmax(-1)[TARGET])

    players = [*range(len(places))]
    values = [by_definition(v, players, (player,)) for player in players]
    close("bridge-gpt2", some.diagnostics["source_scores"], values, 20)
    pair = by_definition(v, players, (0, 2)) / (len(places[0]) * len(places[2]))
    assert some.interactions is not None
    assert float(some.interactions[places[0][0], places[2][1]]) == pytest.approx(pair, rel=1e-3)
    assert float(some.interactions[places[2][1], places[0][0]]) == pytest.approx(pair, rel=1e-3)
    assert some.interactions[0].abs().max() == 0


def test_a_game_that_nothing_changes_has_values_of_0() -> None:
    model = zoo.bridge("gpt2")
    for value in (0.0, 1.5):
        asked = predict(model, zoo.prompt(model, 12), lambda logits, value=value: 0 * logits[..., 0] + value)
        found = Shapiq(source="token", samples=60)(asked)
        assert not found.scores.any() and not found.diagnostics["exact"]


@pytest.mark.parametrize(("options", "least"), [({}, 22), ({"order": 2}, 68)], ids=str)
def test_too_few_samples_are_refused(options: Any, least: int) -> None:
    model = zoo.bridge("gpt2")
    asked = predict(model, zoo.prompt(model, 12), TARGET)
    with pytest.raises(ValueError, match=rf"samples=20 are too few for 11 sources: give at least {least}, or None"):
        Shapiq(source="token", samples=20, **options).check(asked)
    assert Shapiq(source="token", samples=least, **options).work(asked) == Work(least)
    assert Shapiq(source="token").work(asked) == Work(512)
    long = predict(model, zoo.prompt(model, 60), TARGET)
    assert Shapiq(source="token", order=2).work(long) == Work(2 + 59 + 59 * 58 // 2)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"method='shapiq' needs shapiq, .*: pip install '\.\[shapiq\]'"):
        found(zoo.bridge("gpt2"), Shapiq())
