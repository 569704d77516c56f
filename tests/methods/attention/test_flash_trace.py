"""FlashTrace: what is conserved, which tokens are masked, and hops done by hand."""

from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import predict, relative
from heta_lens.attribution import Attribution
from heta_lens.methods.information_flow import FlashTrace

N, REASONING, ANSWER = 9, (4, 6), (6, 8)
BUILD = pytest.mark.parametrize("build", zoo.models("-(gpt2|gptj|llama)$"))


def trace(model: Any, **options: Any) -> Attribution:
    return FlashTrace(**options)(predict(model, zoo.prompt(model, N), 7))


@BUILD
def test_tokens_and_residuals_share_out_one_a_layer(build: Any) -> None:
    model = build()
    found = trace(model)
    layers = len(model.blocks)
    assert float(found.scores.sum()) + found.diagnostics["residual"] == pytest.approx(layers, abs=1e-9)
    assert (found.scores >= 0).all() and not found.signed


@BUILD
def test_the_last_position_is_a_span_of_one(build: Any) -> None:
    alone, span = trace(build()).scores, trace(build(), answer=(N - 1, N)).scores
    assert torch.equal(alone[: N - 1], span[: N - 1]) and span[N - 1] == 0 < alone[N - 1]


@BUILD
def test_hops_by_hand(build: Any) -> None:
    """With one token of reasoning, a hop is the flow into that token, by the share that it had."""
    model, thought = build(), (5, 6)
    base, hop = trace(model, answer=ANSWER).scores, trace(model, answer=thought).scores
    everything = trace(model, answer=ANSWER, reasoning=thought, hops=0)
    masked = base.clone()
    masked[5:] = 0
    assert torch.equal(everything.scores, masked)
    one = trace(model, answer=ANSWER, reasoning=thought, hops=1)
    (share,) = one.diagnostics["handed_on"]
    wanted = masked + share * hop
    wanted[5:] = 0
    assert relative(one.scores, wanted) < 1e-9 and 0 < share < 1


def test_every_hop_hands_on_less_than_the_one_before() -> None:
    found = trace(zoo.bridge("llama"), answer=ANSWER, reasoning=REASONING, hops=4)
    shares = found.diagnostics["handed_on"]
    assert len(shares) == 4 and shares == sorted(shares, reverse=True)
    assert not found.scores[REASONING[0] :].any() and (found.scores[: REASONING[0]] > 0).all()


def test_proximities_below_a_threshold_are_left_out() -> None:
    model = zoo.bridge("llama")
    assert not trace(model, threshold=1e6).scores.any()
    assert 0 < int((trace(model, threshold=0.2).scores > 0).sum()) < int((trace(model).scores > 0).sum())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"answer": (3, 20)}, r"answer=\(3, 20\) reaches beyond the context, which ends at 9"),
        ({"reasoning": (3, 20)}, r"reasoning=\(3, 20\) reaches beyond the context"),
        ({"answer": (3, 6), "reasoning": (5, 7)}, r"reasoning=\(5, 7\) must end before answer=\(3, 6\) begins"),
    ],
)
def test_ranges_that_make_no_sense_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        trace(zoo.bridge("gpt2"), **options)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("given", "error"), [((4, 2), ValueError), ((1, 2, 3), TypeError), (3, TypeError)])
def test_what_is_no_range_is_refused(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="answer="):
        FlashTrace(answer=given)


def test_hops_without_reasoning_do_nothing() -> None:
    with pytest.warns(UserWarning, match="hops"):
        FlashTrace(hops=3)
