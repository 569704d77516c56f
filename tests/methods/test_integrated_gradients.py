"""Path methods and fAML against worked examples, plain loops, scikit-learn and captum."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import plain_embeddings, plain_log_probs, predict, relative
from helpers.gradients import TARGET, N, along, every, plain, scores, slope, value, with_row
from heta_lens.methods.integrated_gradients import (
    DiscretizedIntegratedGradients,
    Faml,
    IntegratedGradients,
    SequentialIntegratedGradients,
    anchor_words,
    neighbours,
    quadrature,
)
from heta_lens.methods.leave_one_out import LeaveOneOut

MODEL = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


def kept_first(start: Tensor, embeddings: Tensor) -> Tensor:
    """The prompts begin with a <bos>, which is to stay."""
    return torch.cat([embeddings[:1], start[1:]])


def points(steps: int) -> list[tuple[float, float]]:
    """Places on a path and their weights."""
    return [*zip(*(values.tolist() for values in quadrature(steps)), strict=True)]


@MODEL
def test_integrated_gradients_are_what_a_loop_finds(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    embeddings = plain_embeddings(model, ids)
    method = IntegratedGradients(steps=5, mask="zero", batch=2)
    found = method(predict(model, ids, TARGET))
    g, start = plain(model, ids), kept_first(torch.zeros_like(embeddings), embeddings)
    expected = along(g, start, embeddings, points(5))
    assert relative(found.scores, expected) < 1e-6
    gap = abs(value(g, embeddings) - value(g, start) - float(expected.sum()))
    assert found.diagnostics["completeness_gap"] == pytest.approx(gap, abs=1e-6)


@pytest.mark.slow
@ONE_EACH
def test_integrated_gradients_are_captums(build: Callable[..., Any]) -> None:
    captum = pytest.importorskip("captum.attr")
    model, steps = build(), 6
    ids = zoo.prompt(model, N)
    embeddings = plain_embeddings(model, ids)
    start = kept_first(embeddings.mean(0).expand(N, -1), embeddings)
    theirs = captum.IntegratedGradients(every(plain(model, ids))).attribute(
        embeddings[None].requires_grad_(), start[None], n_steps=steps
    )
    found = scores(IntegratedGradients(steps=steps, mask="mean"), model, ids)
    assert relative(found, theirs[0].sum(-1).detach()) < 1e-6  # captum weighs in float32


@ONE_EACH
def test_integrated_gradients_add_up_to_what_the_whole_context_does(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    embeddings = plain_embeddings(model, ids)
    g, pad = plain(model, ids, scale="log_odds"), model.tokenizer.pad_token_id
    start = kept_first(plain_embeddings(model, torch.full((1, N), pad)), embeddings)
    for mask in ("pad", pad, start[1]):
        found = IntegratedGradients(steps=100, mask=mask, scale="log_odds")(predict(model, ids, TARGET))
        assert float(found.scores.sum()) == pytest.approx(value(g, embeddings) - value(g, start), rel=1e-5)
        assert found.diagnostics["completeness_gap"] < 1e-4


@pytest.mark.parametrize("kind", [IntegratedGradients, SequentialIntegratedGradients])
@ONE_EACH
def test_paths_begin_at_zero_where_positions_are_added(kind: Any, build: Callable[..., Any]) -> None:
    found = kind(steps=2)(predict(build(), zoo.prompt(build(), N), TARGET))
    assert found.options["mask"] == found.diagnostics["chosen"]["mask"] == "zero"
    assert "mask='zero'" in repr(found)


@pytest.mark.parametrize("kind", [IntegratedGradients, SequentialIntegratedGradients])
@pytest.mark.parametrize("build", zoo.models("-(llama|gptj)$"))
def test_paths_begin_at_a_blank_where_a_norm_reads_the_embeddings_first(kind: Any, build: Callable[..., Any]) -> None:
    asked = predict(build(), zoo.prompt(build(), N), TARGET)
    found = kind(steps=2)(asked)
    assert found.options["mask"] == "space" and "mask='space'" in repr(found)
    assert torch.equal(found.scores, kind(steps=2, mask="space")(asked).scores)


@MODEL
def test_sequential_integrated_gradients_are_what_a_loop_finds(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    embeddings, g = plain_embeddings(model, ids), plain(model, ids, scale="logit")
    found = SequentialIntegratedGradients(steps=2, mask="zero", scale="logit", batch=4)(predict(model, ids, TARGET))
    expected, gaps = torch.zeros(N, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
    for place in range(1, N):
        without = with_row(embeddings, place, torch.zeros_like(embeddings[0]))
        expected[place] = along(g, without, embeddings, points(2))[place]
        gaps[place] = abs(value(g, embeddings) - value(g, without) - expected[place])
    assert relative(found.scores, expected) < 1e-6
    assert relative(found.diagnostics["completeness_gaps"], gaps) < 1e-4


@ONE_EACH
def test_sequential_integrated_gradients_come_to_what_leaving_a_token_out_costs(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    found = SequentialIntegratedGradients(steps=40, keep_bos=False)(predict(model, ids, TARGET))
    costs = scores(LeaveOneOut(), model, ids)
    assert relative(found.scores, costs) < 1e-5
    assert relative(found.scores + found.diagnostics["completeness_gaps"], costs) < 1e-4
    assert "completeness_gaps" not in found.without([2]).diagnostics


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


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


def slow_words(table: Tensor, word: int, baseline: Tensor, steps: int, count: int) -> tuple[list[Tensor], list[int]]:
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
                gaps = []
                for c, b, a in zip(rows[other], here, nothing, strict=True):
                    fits = min(a, b) <= c <= max(a, b)
                    gaps.append(0.0 if fits else c - (b - (b - a) / steps))
                badness = sum(gap**2 for gap in gaps) ** 0.5
                if best is None or badness < best[0] - 1e-12:
                    best = badness, other
        path.append(-1 if best is None else best[1])
        here = nothing if best is None else rows[best[1]]
        found.append(torch.tensor(here, dtype=torch.float64))
    return found, path[1:]


@pytest.mark.parametrize(("count", "steps"), [(1, 4), (5, 6), (39, 3), (39, 45)])
def test_anchors_are_what_a_loop_finds(count: int, steps: int) -> None:
    table = torch.randn(40, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    table[30:] = table[30:].round()  # where ties are
    tokens = torch.tensor([0, 7, 31, 12])
    for baseline in (table[12], torch.zeros(4, dtype=torch.float64)):
        found = anchor_words(table, baseline, steps, count, tokens)
        slow = [slow_words(table, token, baseline, steps, count)[0] for token in tokens.tolist()]
        assert torch.equal(found, torch.stack([torch.stack(path) for path in slow]))


@MODEL
@pytest.mark.parametrize("options", [{}, {"mask": "zero", "neighbours": 8}])
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
    count = options.get("neighbours", size - 1)
    paths = [[embeddings[0]] * (steps + 2)]
    for place in range(1, N):
        anchors, _ = slow_words(table, int(ids[0, place]), baseline, steps, count)
        backwards = [embeddings[place]]
        for anchor in anchors:
            b = backwards[-1]
            fits = ((anchor - baseline) * (b - anchor) >= 0) & ((b != baseline) | (anchor == b))
            backwards.append(torch.where(fits, anchor, b - (b - baseline) / steps))
        paths.append([baseline, *reversed(backwards)])
    path = [torch.stack(row) for row in zip(*paths, strict=True)]
    expected = sum(((b - a) * slope(g, a)).sum(-1) for a, b in pairwise(path))
    assert relative(found.scores, expected) < 1e-6
    gap = abs(value(g, embeddings) - value(g, path[0]) - float(expected.sum()))
    assert found.diagnostics["completeness_gap"] == pytest.approx(gap, abs=1e-6)


LENGTH = 6
QUICK: dict[str, Any] = {"steps": 5, "rate": 1.5, "mask": "zero"}


def slow(model: Any, ids: Tensor, method: Faml, reference: Tensor, target: int = TARGET) -> tuple[Tensor, list[float]]:
    """The masks by the formula, one run after the other, with torch's optimiser."""
    embeddings, log_probs = plain_embeddings(model, ids), plain_log_probs(model, ids)
    clean = log_probs(embeddings).detach().exp()
    theta = torch.full((len(embeddings),), 2.0, dtype=torch.float64, requires_grad=True)
    adam, losses = torch.optim.Adam([theta], lr=method.rate), []
    for _ in range(method.steps):
        m = theta.sigmoid()[:, None]
        like = log_probs(m * embeddings + (1 - m) * reference)
        unlike = log_probs((1 - m) * embeddings + m * reference)
        little = torch.nn.functional.binary_cross_entropy(m, torch.zeros_like(m))
        missed = -torch.log(1 - unlike[target].exp())
        loss = method.fidelity * -(clean * like).sum() + method.sparsity * little + method.complement * missed
        theta.grad = torch.autograd.grad(loss, theta)[0]
        adam.step()
        losses.append(float(loss.detach()))
    return theta.detach().sigmoid(), losses


@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
def test_masks_are_what_the_formula_says(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, LENGTH)
    method = Faml(steps=3)
    found = method(predict(model, ids, TARGET))
    embeddings = plain_embeddings(model, ids)
    reference = plain_embeddings(model, torch.full((1, LENGTH), model.tokenizer.pad_token_id))
    reference[0] = embeddings[0]
    expected, losses = slow(model, ids, method, reference)
    expected[0] = 0
    assert relative(found.scores, expected) < 1e-6
    assert found.diagnostics["first_loss"] == pytest.approx(losses[0])
    assert found.diagnostics["last_loss"] == pytest.approx(losses[-1])
    assert not found.signed and (found.scores < 1).all() and "network" in found.diagnostics["adapted"]


@pytest.mark.sample(quick=2, test=4)
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"fidelity": 0},
        {"sparsity": 2.0},
        {"complement": 3.0},
        {"rate": 0.5, "steps": 4},
        {"mask": "mean"},
        {"keep_bos": False},
    ],
    ids=str,
)
def test_options_do_what_the_formula_says(options: dict[str, Any]) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, LENGTH)
    asked = predict(model, ids, TARGET)
    method = Faml(**QUICK | options)
    embeddings = plain_embeddings(model, ids)
    reference = embeddings.mean(0).expand(LENGTH, -1) if method.mask == "mean" else torch.zeros_like(embeddings)
    if method.keep_bos:
        reference = torch.cat([embeddings[:1], reference[1:]])
    expected = slow(model, ids, method, reference)[0]
    expected[: int(method.keep_bos)] = 0
    found = method(asked).scores
    assert relative(found, expected) < 1e-9
    assert relative(Faml(**QUICK)(asked).scores, found) > 1e-3
