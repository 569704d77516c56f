"""What flows through a prompt, and how close parts are to a whole."""

from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import cache_of, predict, relative
from heta_lens.methods.information_flow import Flow, flow_runs, parts, proximity, summed
from heta_lens.prediction.prediction import Prediction

N = 6
BUILD = pytest.mark.parametrize("build", zoo.models("-(gpt2|gptj|llama)$"))


def test_a_part_is_as_close_as_what_it_takes_away() -> None:
    whole = torch.tensor([3.0, -1.0])
    assert proximity(whole, whole) == 4 and proximity(torch.zeros(2), whole) == 0
    assert proximity(torch.tensor([1.0, -0.5]), whole) == 1.5
    assert proximity(torch.tensor([-1.0, 1.0]), whole) == 0  # further away than nothing is
    assert proximity(torch.tensor([5.0, -1.0]), whole) == 2  # beyond the whole counts against it


@BUILD
def test_heads_write_what_is_between_before_and_after(build: Any) -> None:
    """Up to the bias that attention adds at every position alike."""
    prediction = predict(build(), zoo.prompt(build(), N), 7)
    with prediction.running():
        flow = Flow.of(prediction)
        for layer in map(flow.__getitem__, range(prediction.adapter.layers)):
            written = torch.einsum("hqk,hkd->qd", layer.pattern, layer.read)
            bias = layer.after - layer.before - written
            assert relative(bias, bias.mean(0).expand(N, -1)) < 1e-4 or bias.abs().max() < 1e-6


@BUILD
def test_a_sum_of_positions_is_one_row(build: Any) -> None:
    prediction = predict(build(), zoo.prompt(build(), N), 7)
    with prediction.running():
        layer = Flow.of(prediction)[1]
    alone = summed(torch.eye(N, dtype=layer.before.dtype)[2], layer)
    assert torch.equal(alone.before[0], layer.before[2]) and torch.equal(alone.after[0], layer.after[2])
    every = parts(layer.pattern, layer.read, layer.after)
    assert relative(parts(alone.pattern, alone.read, alone.after)[:, 0], every[:, 2]) < 1e-12
    assert not every.triu(1).any()  # nothing comes from later tokens


@BUILD
@pytest.mark.usefixtures("unchecked")  # to be checked, a pattern is read once more
def test_runs_are_as_many_as_there_are_said_to_be(build: Any, forwards: Any) -> None:
    model, ids = build(), zoo.prompt(build(), N)
    lean = model.run_with_cache(ids, names_filter=["hook_embed"])[1]
    for cache in (cache_of(model, ids), lean):
        prediction = Prediction.from_cache(cache, 7, tokens=ids)
        with prediction.running():
            flow_runs(prediction)
            runs = forwards(model)
            flow, due = Flow.of(prediction), flow_runs(prediction)
            for layer in range(prediction.adapter.layers):
                flow[layer]
            assert len(runs) <= due + 1  # a pattern's block alone is a part of one
