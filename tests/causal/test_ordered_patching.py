"""Patching tokens in the order of their scores, against a plain loop."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import cache_of, explain
from helpers.patching import OTHER, TARGET, N, copies, note, one_run, prompts, run, searched
from heta_lens.causal import patch_in_order

ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))
BY_POSITION = {"resid_pre": "hook_resid_pre", "attn_out": "hook_attn_out", "mlp_out": "hook_mlp_out"}
BY_HEAD = {"head_out": "attn.hook_z", "head_q": "attn.hook_q", "head_k": "attn.hook_k", "head_v": "attn.hook_v"}
PLACES = BY_POSITION | BY_HEAD


def shares(model: Any, order: Sequence[int], what: str, layer: int) -> list[float]:
    clean, corrupted = (run(model, ids) for ids in prompts(model))
    name = f"blocks.{layer}.{PLACES[what]}"
    handed = note(model, prompts(model)[0], name)
    found = [one_run(model, name, handed, order[:count]) for count in range(1, len(order) + 1)]
    return [float((one - corrupted) / (clean - corrupted)) for one in found]


def scored(model: Any, scores: Sequence[float]) -> Any:
    attribution = explain(model, zoo.prompt(model, N), TARGET, method="recency")
    return replace(attribution, scores=torch.tensor(scores, dtype=torch.float64))


SCORES = [0.1, 0.5, 0.9, 0.5, 0.7]
ORDER = [2, 4, 1, 3, 0]


def needed(expected: Sequence[float], restore: float) -> int | None:
    """How many positions a plain loop patches until enough is back."""
    for count, share in enumerate(expected, 1):
        if share >= restore:
            return count
    return None


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("what", BY_POSITION)
@pytest.mark.parametrize("build", zoo.models("-(gptj|llama)$"))
def test_the_search_stops_where_a_plain_loop_does(build: Callable[..., Any], what: str) -> None:
    model = build()
    expected, attribution = shares(model, ORDER, what, layer=1), scored(model, SCORES)
    nothing = 0.0 if abs(expected[0]) > 1e-9 else 1e-6  # in the last layer, other positions do nothing but by rounding
    for restore, batch in ((nothing, 1), (abs(max(expected) - 1e-4), 1), (abs(max(expected) - 1e-4), 3), (9.0, 3)):
        count = needed(expected, restore)
        found = searched(model, attribution, restore=restore, what=what, layer=1, batch=batch)
        assert found.positions == tuple(ORDER[:count])
        assert found.restored == pytest.approx(expected[:count], abs=1e-5)
        assert found.sufficient == (None if count is None else found.positions)
        assert found.exhaustive == N and found.saved == N - found.forwards


@pytest.mark.slow
@pytest.mark.parametrize("build", zoo.models("-llama$"))
def test_the_search_counts_its_runs(build: Callable[..., Any], forwards: Any) -> None:
    """One position at a time, then twice as many, then what is left, but never more at once than ``batch``."""
    model = build()
    caches, attribution = [cache_of(model, ids) for ids in prompts(model)], scored(model, SCORES)
    expected, tried = shares(model, ORDER, "resid_pre", layer=1), set()
    ran = forwards(model)
    for batch, sums in ((1, [1, 2, 3, 4, 5]), (2, [1, 3, 5]), ("auto", [1, 3, 5])):
        for restore in {share - 1e-4 for share in expected if share > 1e-4}:
            ran.clear()
            found = patch_in_order(*caches, attribution, restore=restore, layer=1, batch=batch)
            assert len(found.positions) == needed(expected, restore)
            assert found.forwards == next(total for total in sums if total >= len(found.positions))
            other = 2 + 2 + 2  # the check of each cache, the runs compared with, and whether runs can begin later
            assert sum(count for count, _ in copies(ran)) == found.forwards + other
            tried.add(len(found.positions))
    assert len(tried) > 2


@ONE_EACH
def test_tokens_left_out_of_the_attribution_are_not_patched(build: Callable[..., Any]) -> None:
    model = build()
    left = scored(model, SCORES).without([1, 3])
    found = searched(model, left, restore=1e9)
    assert found.positions == (2, 4, 0) and found.forwards == 3 and found.exhaustive == N
    assert found.restored == pytest.approx(shares(model, [2, 4, 0], "resid_pre", 0), abs=1e-5)


@ONE_EACH
def test_the_attribution_says_what_was_asked_and_may_be_of_either_prompt(build: Callable[..., Any]) -> None:
    model = build()
    clean, corrupted = prompts(model)
    orders = [explain(model, ids, TARGET, method="recency") for ids in (clean, corrupted)]
    first, second = (searched(model, one, restore=1e9) for one in orders)
    assert first == second
    assert searched(model, orders[0], target=OTHER, restore=1e9).restored != first.restored
    assert first.restored == pytest.approx(shares(model, first.positions, "resid_pre", 0), abs=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": "head_out"}, "what='head_out' is not one of 'resid_pre', 'attn_out', 'mlp_out'"),
        ({"layer": 2}, "layer=2 is none of the layers 0 to 1"),
        ({"restore": -0.1}, "restore=-0.1 must be at least 0"),
        ({"scale": "nats"}, "scale='nats' is not one of"),
        ({"batch": 0}, "batch=0 must be at least 1"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_a_search_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    model = zoo.bridge("gpt2")
    with pytest.raises(ValueError, match=message):
        searched(model, scored(model, SCORES), **options)


def test_a_search_where_nothing_was_lost_is_refused() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    with pytest.raises(ValueError, match="nothing was lost"):
        patch_in_order(
            cache_of(model, ids), cache_of(model, ids), scored(model, SCORES), tokens=ids, corrupted_tokens=ids
        )
