"""KernelSHAP against Shapley values over all coalitions."""

from collections.abc import Callable, Sequence
from itertools import combinations
from math import factorial

import pytest
import torch

from helpers import zoo
from helpers.ablations import TARGET, close, found, worth
from helpers.asking import plain_embeddings, predict, relative
from heta_lens.methods.surrogates import KernelShap

NAMES = [param.id for param in zoo.models("-(gpt2|llama|gptj)$")]
MODEL = pytest.mark.parametrize("name", NAMES)
KINDS = pytest.mark.parametrize("name", [param.id for param in zoo.models("-gpt2$")])
BUILD = dict(zoo.KINDS)


def shapley(of: Callable[[list[int]], float], players: Sequence[int], always: Sequence[int]) -> list[float]:
    """What each adds to every set of the others, weighed by how many orders have just these before it."""
    scores, many = [0.0] * (len(players) + len(always)), len(players)
    for player in players:
        others = [other for other in players if other != player]
        for size in range(many):
            share = factorial(size) * factorial(many - size - 1) / factorial(many)
            for some in combinations(others, size):
                scores[player] += share * (of([*always, *some, player]) - of([*always, *some]))
    return scores


@MODEL
@pytest.mark.parametrize("keep_bos", [True, False])
def test_kernel_shap_finds_shapley_values(name: str, keep_bos: bool) -> None:
    model = BUILD[name]()
    ids = zoo.prompt(model, 5)
    mask = plain_embeddings(model, ids).mean(0)
    of = worth(model, ids, mask, "prob")
    expected = shapley(of, range(int(keep_bos), 5), [0] * keep_bos)
    some = found(model, KernelShap(keep_bos=keep_bos, mask="mean", scale="prob"), ids)
    close(name, some.scores, expected)
    assert some.diagnostics["exact"] and some.diagnostics["forwards"] == 2 ** (5 - keep_bos)
    assert (some.scores[0] == 0) == keep_bos


@KINDS
@pytest.mark.parametrize("samples", [16, 24])
@pytest.mark.parametrize("paired", [True, False])
def test_kernel_shap_shares_out_all_there_is(name: str, samples: int, paired: bool) -> None:
    model = BUILD[name]()
    ids = zoo.prompt(model, 9)
    some = found(model, KernelShap(samples=samples, paired=paired, scale="log_odds"), ids)
    of = worth(model, ids, scale="log_odds")
    assert not some.diagnostics["exact"] and some.diagnostics["completeness_gap"] < 1e-12
    close(name, some.scores.sum(), of(range(9)) - of([0]))


def test_as_many_samples_as_there_are_coalitions_are_all_of_them() -> None:
    model = zoo.bridge("gpt2")
    exact, given, fewer = (found(model, KernelShap(samples=samples)) for samples in (None, 30, 29))
    assert torch.equal(given.scores, exact.scores) and given.diagnostics["exact"]
    assert 1e-6 < relative(fewer.scores, exact.scores) < 1 and not fewer.diagnostics["exact"]


@pytest.mark.parametrize(("samples", "least"), [(15, 16), (1, 16)])
def test_too_few_coalitions_are_refused(samples: int, least: int) -> None:
    with pytest.raises(ValueError, match=f"samples={samples} are too few for 8 tokens: give at least {least}, or None"):
        found(zoo.bridge("gpt2"), KernelShap(samples=samples), zoo.prompt(zoo.bridge("gpt2"), 9))


def test_many_tokens_take_random_coalitions() -> None:
    prediction = predict(zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), 12), TARGET)
    assert KernelShap().work(prediction) == {"forwards": 514}
    assert KernelShap(samples=2046).work(prediction) == {"forwards": 2048}
    assert KernelShap(samples=2045).work(prediction) == {"forwards": 2047}
