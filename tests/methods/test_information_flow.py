"""IFR and FlashTrace against plain loops, and conservation."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import predict, relative
from heta_lens.attribution import Attribution
from heta_lens.methods.information_flow import FlashTrace, Ifr, layers_of, parts

N = 6
BUILD = pytest.mark.parametrize("build", zoo.models("-(gpt2|gptj|llama)$"))


@BUILD
def test_heads_write_what_is_between_before_and_after(build: Any) -> None:
    """Up to the bias that attention adds at every position alike."""
    prediction = predict(build(), zoo.prompt(build(), N), 7)
    with prediction.running():
        for layer in layers_of(prediction):
            assert not parts(layer.pattern, layer.read, layer.after).triu(1).any()  # nothing comes from later tokens
            written = torch.einsum("hqk,hkd->qd", layer.pattern, layer.read)
            bias = layer.after - layer.before - written
            assert relative(bias, bias.mean(0).expand(N, -1)) < 1e-4 or bias.abs().max() < 1e-6


def plain(prediction: Any, threshold: float = 0) -> Tensor:
    """The definition, one position, head and token at a time."""
    with prediction.running():
        flow = layers_of(prediction)
    weights = [0.0] * (N - 1) + [1.0]
    for number in reversed(range(prediction.adapter.layers)):
        layer, below = flow[number], [0.0] * N
        for i in range(N):
            norm = float(layer.after[i].abs().sum())
            stayed = max(0.0, norm - float((layer.after[i] - layer.before[i]).abs().sum()))
            supplied = [(i, stayed)]
            for h in range(len(layer.pattern)):
                for j in range(i + 1):
                    part = layer.pattern[h, i, j] * layer.read[h, j]
                    supplied.append((j, max(0.0, norm - float((layer.after[i] - part).abs().sum()))))
            whole = sum(amount for _, amount in supplied)
            kept = [(j, amount / whole) for j, amount in supplied if amount / whole > threshold]
            for j, share in kept:
                below[j] += weights[i] * share / sum(share for _, share in kept)
        weights = below
    return torch.tensor(weights, dtype=torch.float64)


@pytest.mark.parametrize("threshold", [0, 0.05])
@BUILD
def test_scores_are_those_of_the_definition(build: Any, threshold: float) -> None:
    prediction = predict(build(), zoo.prompt(build(), N), 7)
    found = Ifr(threshold=threshold)(prediction).scores
    assert relative(found, plain(prediction, threshold)) < 1e-9
    assert float(found.sum()) == pytest.approx(1, abs=1e-9)


LENGTH, ANSWER = 9, (6, 8)


def trace(model: Any, **options: Any) -> Attribution:
    return FlashTrace(**options)(predict(model, zoo.prompt(model, LENGTH), 7))


@BUILD
def test_tokens_and_residuals_share_out_one_a_layer(build: Any) -> None:
    model = build()
    found = trace(model)
    layers = len(model.blocks)
    assert float(found.scores.sum()) + found.diagnostics["residual"] == pytest.approx(layers, abs=1e-9)
    assert (found.scores >= 0).all() and not found.signed


@BUILD
def test_the_last_position_is_a_span_of_one(build: Any) -> None:
    alone, span = trace(build()).scores, trace(build(), answer=(LENGTH - 1, LENGTH)).scores
    assert torch.equal(alone[: LENGTH - 1], span[: LENGTH - 1]) and span[LENGTH - 1] == 0 < alone[LENGTH - 1]


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


@BUILD
def test_all_that_was_written_may_be_traced_at_once(build: Any) -> None:
    """With one token, a hop repeats its scores, by the share that this token had of them."""
    model, alone = build(), (5, 6)
    base, found = trace(model, answer=alone), trace(model, answer=alone, reasoning=alone)
    (share,) = found.diagnostics["handed_on"]
    assert share == pytest.approx(1 - float(base.scores.sum()) / (len(model.blocks) - base.diagnostics["residual"]))
    assert relative(found.scores, (1 + share) * base.scores) < 1e-9 and 0 < share < 1


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
