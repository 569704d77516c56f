"""Progressive inference against one run per prefix, and Shapley values."""

from typing import Any

import numpy as np
import pytest
import torch

from helpers import zoo
from helpers.ablations import N, close, found, read, worth
from helpers.asking import plain_embeddings
from heta_lens.methods.hidden_states import ProgressiveInference

NAMES = [param.id for param in zoo.models("-(gpt2|llama|gptj)$")]
MODEL = pytest.mark.parametrize("name", NAMES)
BUILD = dict(zoo.KINDS)


@MODEL
@pytest.mark.parametrize("scale", ["prob", "log_prob"])
def test_a_single_pass_tells_what_each_token_changed(name: str, scale: Any) -> None:
    model = BUILD[name]()
    ids = zoo.prompt(model, N)
    with torch.no_grad():
        p = [read(model(ids[:, :stop])[0, -1].log_softmax(-1), scale) for stop in range(1, N + 1)]
    some = found(model, ProgressiveInference(scale=scale))
    close(name, some.scores, np.diff([0.0, *p]))
    assert some.scores.sum() == pytest.approx(p[-1], abs=1e-6) and some.diagnostics["forwards"] == 1


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in NAMES),
        ("bridge-gpt2", {"keep_bos": False, "penalty": 0.5, "scale": "log_prob", "mask": "mean"}),
    ],
)
def test_many_passes_are_pooled_into_shapley_values(name: str, options: dict[str, Any]) -> None:
    """Every prefix a run of its own, and the sum a constraint with a multiplier."""
    model, samples, first = BUILD[name](), 6, int(options.get("keep_bos", True))
    ids, players, scale = zoo.prompt(model, N), N - int(options.get("keep_bos", True)), options.get("scale", "prob")
    mask = plain_embeddings(model, ids).mean(0) if "mask" in options else 0.0
    size = [1 / (k * (players - k)) for k in range(1, players)]
    until = [worth(model, ids[:, :stop], mask, scale) for stop in range(1, N + 1)]
    generator = np.random.default_rng([3, *ids[0].tolist()])
    sizes = generator.choice(np.arange(1, players), samples, p=np.array(size) / sum(size))
    order = generator.random((samples, players)).argsort(1).argsort(1)
    rows, values = [], []
    for chosen, rank in zip(sizes, order, strict=True):
        there = [bool(place < chosen) for place in rank]
        present = [*range(first), *[first + k for k in range(players) if there[k]]]
        for stop in range(first + 1, N + 1):
            rows.append([there[k] and first + k < stop for k in range(players)])
            values.append(until[stop - 1](k for k in present if k < stop))
    empty, full = until[-1](range(first)), until[-1](range(N))
    pooled = [(row, value) for row, value in zip(rows, values, strict=True) if 0 < sum(row) < players]
    count = {k: sum(sum(row) == k for row, _ in pooled) for k in range(1, players)}
    z = torch.tensor([row for row, _ in pooled], dtype=torch.float64)
    y = torch.tensor([value - empty for _, value in pooled], dtype=torch.float64)
    w = torch.tensor([size[sum(row) - 1] / sum(size) * len(pooled) / count[sum(row)] for row, _ in pooled]).double()
    saddle = torch.ones(players + 1, players + 1, dtype=torch.float64)
    saddle[-1, -1] = 0
    saddle[:-1, :-1] = z.T @ torch.diag(w) @ z + options.get("penalty", 1e-3) * torch.eye(players, dtype=torch.float64)
    right = torch.cat([z.T @ (w * y), torch.tensor([full - empty], dtype=torch.float64)])
    some = found(model, ProgressiveInference(passes="multi", samples=samples, seed=3, **options))
    close(name, some.scores, [0.0] * first + torch.linalg.solve(saddle, right)[:-1].tolist(), 100)
    assert some.diagnostics["forwards"] == samples + 2 and some.diagnostics["coalitions"] == len(pooled)
    assert some.diagnostics["completeness_gap"] < 1e-9
