"""Discretized integrated gradients against worked examples, scikit-learn and plain loops."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens.prediction.prediction
from helpers import zoo
from helpers.asking import cache_of, plain_embeddings, predict, relative
from helpers.gradients import TARGET, N, Toy, plain, scores, slope, value
from heta_lens._util.work import Work
from heta_lens.methods.integrated_gradients import (
    DiscretizedIntegratedGradients,
    IntegratedGradients,
    SequentialIntegratedGradients,
    Words,
    anchor_words,
    halved,
    monotone,
    neighbours,
    rises_at,
    word_path,
)

MODEL = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_discretized_integrated_gradients_of_a_worked_example() -> None:
    """The left rule along 0, 1, 2, 3 of x²: 1·0 + 1·2 + 1·4."""
    path = vector(0, 1, 2, 3)[:, None, None]
    toy = Toy(lambda x: x[0, 0] ** 2, [[3.0]])
    assert rises_at(toy, path, "logit", Work(), torch.arange(3)).flatten().tolist() == [0, 2, 4]
    # two halves of each step: 1/2 · (0 + 1 + 2 + 3 + 4 + 5)
    assert float(rises_at(toy, halved(path), "logit", Work(), torch.arange(6)).sum()) == 7.5


def test_an_anchor_that_lies_elsewhere_gives_way_to_a_step() -> None:
    here, baseline = vector(3, 3, 3, 0, 0), vector(0, 0, 0, 3, 0)
    found = monotone(vector(5, 2, -1, 1, 1), here, baseline, 2)
    assert found.tolist() == [1.5, 2, 1.5, 1, 0]  # up, between, beyond, upwards between, and no way at all


def near(table: Tensor, tokens: Tensor, count: int) -> list[list[int]]:
    return neighbours(table, table.square().sum(-1), tokens, count).tolist()


def test_neighbours_are_those_of_scikit_learn_and_ties_go_to_the_first() -> None:
    sklearn = pytest.importorskip("sklearn.neighbors")
    table = torch.randn(60, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens = torch.tensor([5, 0, 59])
    graph = sklearn.kneighbors_graph(table.numpy(), 7).toarray()
    assert near(table, tokens, 7) == [graph[token].nonzero()[0].tolist() for token in tokens.tolist()]
    line = vector(0, 1, -1, 0, 2, -2, 1)[:, None]
    assert near(line, torch.tensor([0]), 2) == [[1, 3]]
    assert near(line, torch.tensor([3, 1]), 4) == [[0, 1, 2, 6], [0, 3, 4, 6]]


def slow_words(
    table: Tensor, word: int, baseline: Tensor, steps: int, count: int, strategy: str
) -> tuple[list[Tensor], list[int]]:
    """The words on the way from one to the baseline: their embeddings and ids, -1 for the baseline."""
    rows, nothing = table.tolist(), baseline.tolist()
    path, here = [word], rows[word]
    found: list[Tensor] = []
    for _ in range(steps):
        last = path[-1]
        best: tuple[float, int] | None = None
        if last != -1 and rows[last] != nothing:
            far = sorted(
                (float((table[last] - table[other]).norm()), other) for other in range(len(rows)) if other != last
            )
            for other in sorted(other for _, other in far[:count]):
                if other in path or rows[other] == nothing:
                    continue
                gaps, inside = [], 0
                for c, b, a in zip(rows[other], here, nothing, strict=True):
                    fits = min(a, b) <= c <= max(a, b)
                    inside += fits
                    gaps.append(0.0 if fits else c - (b - (b - a) / steps))
                badness = sum(gap**2 for gap in gaps) ** 0.5 if strategy == "greedy" else -inside
                if best is None or badness < best[0] - 1e-12:
                    best = badness, other
        path.append(-1 if best is None else best[1])
        here = nothing if best is None else rows[best[1]]
        found.append(torch.tensor(here, dtype=torch.float64))
    return found, path[1:]


@pytest.mark.parametrize("strategy", ["greedy", "maxcount"])
@pytest.mark.parametrize(("count", "steps"), [(1, 4), (5, 6), (39, 3), (39, 45)])
def test_anchors_are_what_a_loop_finds(strategy: Any, count: int, steps: int) -> None:
    table = torch.randn(40, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    table[30:] = table[30:].round()  # where ties are
    tokens = torch.tensor([0, 7, 31, 12])
    for baseline in (table[12], torch.zeros(4, dtype=torch.float64)):
        found = anchor_words(Words.of(table, baseline), steps, strategy, count, tokens)
        slow = [slow_words(table, token, baseline, steps, count, strategy)[0] for token in tokens.tolist()]
        assert torch.equal(found, torch.stack([torch.stack(path) for path in slow]))


def test_a_path_ends_at_the_baseline_when_no_word_is_left_and_stays_there() -> None:
    """The nearest of 3 is 2, of which the nearest is 3 again; the baseline is no anchor."""
    line = vector(0, 2, 3)[:, None]
    found = anchor_words(Words.of(line, vector(0)), 3, "greedy", 1, torch.tensor([2, 0]))
    assert found[..., 0].tolist() == [[2, 0, 0], [0, 0, 0]]


def test_the_two_strategies_choose_by_distance_and_by_dimensions() -> None:
    """One anchor lies between in no dimension, but almost; the other in one of two, and far away in the second."""
    table = torch.tensor([[0.0, 0.0], [4.0, 4.0], [4.1, 4.1], [3.0, 9.0]], dtype=torch.float64)
    greedy, most = (
        anchor_words(Words.of(table, table[0]), 1, strategy, 3, torch.tensor([1]))
        for strategy in ("greedy", "maxcount")
    )
    assert greedy[0, 0].tolist() != most[0, 0].tolist() == [3, 9]


def test_paths_go_one_way_in_every_dimension() -> None:
    generator = torch.Generator().manual_seed(2)
    embeddings, start = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    start[1] = embeddings[1]
    anchors = torch.randn(6, 3, 4, generator=generator, dtype=torch.float64)
    path = word_path(embeddings, start, anchors)
    assert torch.equal(path[0], start) and torch.equal(path[-1], embeddings) and len(path) == 8
    way = (embeddings - start).sign()
    assert ((path[1:] - path[:-1]) * way >= -1e-15).all() and (path[:, 1] == embeddings[1]).all()
    finer = halved(halved(path))
    assert len(finer) == 4 * 7 + 1 and torch.equal(finer[::4], path)
    assert torch.allclose(finer[1], 0.75 * path[0] + 0.25 * path[1])


@MODEL
@pytest.mark.parametrize("options", [{}, {"strategy": "maxcount", "mask": "zero", "neighbours": 8, "factor": 1}])
def test_discretized_integrated_gradients_are_what_a_loop_finds(
    build: Callable[..., Any], options: dict[str, Any]
) -> None:
    model, steps = build(), 3
    ids = zoo.prompt(model, N)
    found = DiscretizedIntegratedGradients(steps=steps, batch=2, **options)(predict(model, ids, TARGET))
    embeddings, g = plain_embeddings(model, ids), plain(model, ids)
    size = model.cfg.d_vocab
    table = torch.cat([plain_embeddings(model, some[None]) for some in torch.arange(size).split(50)])
    baseline = torch.zeros_like(table[0]) if "mask" in options else table[model.tokenizer.pad_token_id]
    count, strategy = options.get("neighbours", size - 1), options.get("strategy", "greedy")
    paths = [[embeddings[0]] * (steps + 2)]
    for place in range(1, N):
        anchors, _ = slow_words(table, int(ids[0, place]), baseline, steps, count, strategy)
        backwards = [embeddings[place]]
        for anchor in anchors:
            b = backwards[-1]
            fits = ((anchor - baseline) * (b - anchor) >= 0) & ((b != baseline) | (anchor == b))
            backwards.append(torch.where(fits, anchor, b - (b - baseline) / steps))
        paths.append([baseline, *reversed(backwards)])
    points = [torch.stack(row) for row in zip(*paths, strict=True)]
    if "factor" in options:
        points = [point for a, b in pairwise(points) for point in (a, (a + b) / 2)] + points[-1:]
    expected = sum(((b - a) * slope(g, a)).sum(-1) for a, b in pairwise(points))
    assert relative(found.scores, expected) < 1e-6
    gap = abs(value(g, embeddings) - value(g, points[0]) - float(expected.sum()))
    assert found.diagnostics["completeness_gap"] == pytest.approx(gap, abs=1e-6)


def test_finer_paths_add_up_better_and_cost_as_much_as_they_say() -> None:
    model = zoo.bridge("gpt2")
    asked = predict(model, zoo.prompt(model, N), TARGET)
    gaps = []
    for factor in (0, 2, 5):
        found = DiscretizedIntegratedGradients(steps=4, factor=factor)(asked).diagnostics
        assert (found["forwards"], found["backwards"]) == (5 * 2**factor + 2, 5 * 2**factor)
        gaps.append(found["completeness_gap"])
    assert gaps[2] < gaps[1] / 4 < gaps[0] / 8


def test_a_word_that_is_the_baseline_gets_nothing() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    for kind in (IntegratedGradients, SequentialIntegratedGradients, DiscretizedIntegratedGradients):
        found = scores(kind(steps=3, mask=int(ids[0, 3])), model, ids)
        assert found[3] == 0 and (found[[1, 2, 4, 5, 6]] != 0).all()


def test_the_search_is_the_same_for_few_words_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    method = DiscretizedIntegratedGradients(steps=3)
    before = scores(method, model, ids)
    monkeypatch.setattr("heta_lens.methods.integrated_gradients.AT_ONCE", 1)
    assert torch.equal(scores(method, model, ids), before)


def test_a_model_without_a_tokenizer_is_told_how_to_name_a_baseline() -> None:
    model = zoo.bridge.__wrapped__("gpt2")
    ids = zoo.prompt(model, N)
    model.tokenizer = None
    asked = heta_lens.Prediction.from_cache(cache_of(model, ids), TARGET, tokens=ids)
    with pytest.raises(ValueError, match="needs a tokenizer with a padding, end or unknown token: give a token id"):
        DiscretizedIntegratedGradients()(asked)
    assert DiscretizedIntegratedGradients(mask="zero", steps=2)(asked).scores[0] != 0  # nothing says that it begins
