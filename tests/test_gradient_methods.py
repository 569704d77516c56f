"""Methods that follow gradients or leave a token out: worked examples, plain loops and captum as oracles."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from asking import cache_of, plain_embeddings, plain_log_probs, predict, relative, start_together
from torch import Tensor

import heta_lens.prompt
import zoo
from heta_lens.baselines.baseline import Baseline
from heta_lens.baselines.discretized_integrated_gradients import (
    DiscretizedIntegratedGradients,
    Words,
    anchor_words,
    halved,
    monotone,
    neighbours,
    rises_at,
    word_path,
)
from heta_lens.baselines.grad_cam import GradCam, evidence
from heta_lens.baselines.gradient_norm import GradientNorm
from heta_lens.baselines.input_x_gradient import InputXGradient
from heta_lens.baselines.integrated_gradients import IntegratedGradients, quadrature
from heta_lens.baselines.leave_one_out import LeaveOneOut
from heta_lens.baselines.sequential_integrated_gradients import SequentialIntegratedGradients
from heta_lens.batches import Batches
from heta_lens.prediction import Prediction
from heta_lens.progress import Work

N, TARGET, OTHER = 7, 7, 20
RULES = ("gauss_legendre", "left", "right", "middle", "trapezoid")
CAPTUM = {
    "gauss_legendre": "gausslegendre",
    **{rule: f"riemann_{rule}" for rule in ("left", "right", "middle", "trapezoid")},
}

EVERY: list[Baseline] = [
    IntegratedGradients(steps=2),
    SequentialIntegratedGradients(steps=2),
    DiscretizedIntegratedGradients(steps=2, neighbours=20),
    InputXGradient(),
    GradientNorm(),
    GradCam(layer=0),
    LeaveOneOut(),
]
MODEL = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))
METHOD = pytest.mark.parametrize("method", EVERY, ids=lambda method: method.name)


# ----------------------------------------------------------------------------------------- what they are compared with
def plain(model: Any, ids: Tensor, target: int = TARGET, scale: str = "log_prob") -> Callable[[Tensor], Tensor]:
    """g as a function of the prompt's embeddings: one full run."""

    def g(embeddings: Tensor) -> Tensor:
        replace = [("hook_embed", lambda live, hook: embeddings[None].to(live.dtype))]  # noqa: ARG005
        return on(model.run_with_hooks(ids, fwd_hooks=replace)[0, -1], target, scale)

    return g


def on(logits: Tensor, target: int, scale: str) -> Tensor:
    p = logits.softmax(-1)[target]
    return {"log_prob": p.log(), "prob": p, "logit": logits[target], "log_odds": p.log() - (1 - p).log()}[scale]


def slope(g: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    leaf = at.detach().clone().requires_grad_()
    return torch.autograd.grad(g(leaf), leaf)[0]


def value(g: Callable[[Tensor], Tensor], at: Tensor) -> float:
    return float(g(at).detach())


def along(g: Callable[[Tensor], Tensor], start: Tensor, stop: Tensor, nodes: Sequence[Any]) -> Tensor:
    """Integrated gradients, by definition: the mean gradient at some (place, weight) of a straight line."""
    mean = sum(weight * slope(g, start + place * (stop - start)) for place, weight in nodes)
    return (mean * (stop - start)).sum(-1)


def midpoints(steps: int) -> list[tuple[float, float]]:
    return [((step + 0.5) / steps, 1 / steps) for step in range(steps)]


def kept_first(start: Tensor, embeddings: Tensor) -> Tensor:
    """The prompts begin with a <bos>, which is to stay."""
    return torch.cat([embeddings[:1], start[1:]])


def with_row(embeddings: Tensor, place: int, row: Tensor) -> Tensor:
    return torch.cat([embeddings[:place], row[None], embeddings[place + 1 :]])


def every(g: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same of a batch, as captum asks for it."""
    return lambda batch: torch.stack([g(embeddings) for embeddings in batch])


def scores(method: Baseline, model: Any, ids: Tensor, target: Any = TARGET) -> Tensor:
    return method(predict(model, ids, target)).scores


class Toy(Prediction):
    """A prediction of no model: its only logit is any function of the embeddings."""

    def __init__(self, g: Callable[[Tensor], Tensor], rows: list[list[float]]) -> None:
        embeddings = torch.tensor(rows, dtype=torch.float64)
        prompt = SimpleNamespace(
            embeddings=embeddings,
            ids=torch.arange(len(rows)),
            batches=lambda *_, **__: Batches(3),
            groups=lambda positions, *_: [list(positions)],
        )
        for name, value in {"prompt": prompt, "length": len(rows), "target": 0, "g": g}.items():
            object.__setattr__(self, name, value)

    @property
    def lens(self) -> Any:
        return SimpleNamespace(embedding_table=list, vocabulary=0, speller=SimpleNamespace(bos=None, filler=None))

    def logits_from(self, start: int = 0, layer: int | None = None) -> Any:  # noqa: ARG002
        return lambda states: torch.stack([self.g(torch.cat([self.embeddings[:start], some])) for some in states])[
            :, None
        ]


def explain(method: Baseline, toy: Toy) -> tuple[list[float], dict[str, Any]]:
    found, facts = method.explain(toy, Work())
    return found.tolist(), facts


# ------------------------------------------------------------------------------------------------ integrated gradients
CROSS = Toy(lambda x: x[0, 0] ** 2 + x[0, 0] * x[1, 0], [[2.0], [3.0]])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("left", [5.25, 2.25]),
        ("right", [8.75, 3.75]),
        ("middle", [7.0, 3.0]),
        ("gauss_legendre", [7.0, 3.0]),
        ("trapezoid", [7.0, 3.0]),
    ],
)
def test_integrated_gradients_of_a_worked_example(rule: Any, expected: list[float]) -> None:
    found, facts = explain(IntegratedGradients(steps=4, rule=rule, scale="logit"), CROSS)
    assert found == pytest.approx(expected)
    assert facts["completeness_gap"] == pytest.approx(abs(10 - sum(expected)), abs=1e-12)


@pytest.mark.parametrize("rule", ["middle", "gauss_legendre"])
def test_one_point_is_enough_for_what_is_quadratic(rule: Any) -> None:
    assert explain(IntegratedGradients(steps=1, rule=rule, scale="logit"), CROSS)[0] == pytest.approx([7, 3])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("steps", [1, 2, 5, 50])
def test_weights_sum_to_one_and_points_lie_on_the_path(rule: Any, steps: int) -> None:
    nodes, weights = quadrature(rule, steps)
    assert nodes.shape == weights.shape == (steps,)
    assert float(weights.sum()) == pytest.approx(1)
    assert nodes.min() >= 0 and nodes.max() <= 1 and (weights > 0).all()


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_exact_for_the_polynomials_it_is_made_for(rule: Any) -> None:
    steps = 4
    exact = {"gauss_legendre": 2 * steps - 1, "middle": 1, "trapezoid": 1, "left": 0, "right": 0}[rule]
    nodes, weights = quadrature(rule, steps)
    for degree in range(exact + 2):
        error = abs(float((weights * nodes**degree).sum()) - 1 / (degree + 1))
        assert error < 1e-12 if degree <= exact else error > 1e-6


@pytest.mark.parametrize("rule", RULES)
def test_points_and_weights_are_captums_but_that_its_trapezoid_does_not_sum_to_one(rule: Any) -> None:
    pytest.importorskip("captum")
    from captum.attr._utils.approximation_methods import approximation_parameters

    steps = 5
    sizes, places = approximation_parameters(CAPTUM[rule])
    theirs = torch.tensor(sizes(steps), dtype=torch.float64)
    nodes, weights = quadrature(rule, steps)
    assert nodes.tolist() == pytest.approx([float(place) for place in places(steps)])
    whole = (steps - 1) / steps if rule == "trapezoid" else 1.0
    assert float(theirs.sum()) == pytest.approx(whole)
    assert (weights * whole).tolist() == pytest.approx(theirs.tolist())


@MODEL
def test_integrated_gradients_are_what_a_loop_finds(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    embeddings = plain_embeddings(model, ids)
    method = IntegratedGradients(steps=5, rule="middle", batch=2)
    found = method(predict(model, ids, TARGET))
    g, start = plain(model, ids), kept_first(torch.zeros_like(embeddings), embeddings)
    expected = along(g, start, embeddings, midpoints(5))
    assert relative(found.scores, expected) < 1e-6
    gap = abs(value(g, embeddings) - value(g, start) - float(expected.sum()))
    assert found.diagnostics["completeness_gap"] == pytest.approx(gap, abs=1e-6)


@ONE_EACH
@pytest.mark.parametrize("rule", RULES)
def test_integrated_gradients_are_captums(build: Callable[..., Any], rule: Any) -> None:
    captum = pytest.importorskip("captum.attr")
    model, steps = build(), 6
    ids = zoo.prompt(model, N)
    embeddings = plain_embeddings(model, ids)
    start = kept_first(embeddings.mean(0).expand(N, -1), embeddings)
    theirs = captum.IntegratedGradients(every(plain(model, ids))).attribute(
        embeddings[None].requires_grad_(), start[None], n_steps=steps, method=CAPTUM[rule]
    )
    whole = (steps - 1) / steps if rule == "trapezoid" else 1.0
    found = scores(IntegratedGradients(steps=steps, rule=rule, mask="mean"), model, ids)
    assert relative(found, theirs[0].sum(-1).detach() / whole) < 1e-6  # captum weighs in float32


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


@ONE_EACH
def test_a_begin_of_text_gets_nothing_unless_it_moves_too(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    whole, rest = (predict(model, some, TARGET) for some in (ids, ids[:, 1:]))
    for kind in (IntegratedGradients, SequentialIntegratedGradients, DiscretizedIntegratedGradients):
        assert kind(steps=1)(whole).scores[0] == 0
        assert kind(steps=1, keep_bos=False)(whole).scores[0].abs() > 1e-6
        assert kind(steps=1)(rest).scores[0].abs() > 1e-6


# --------------------------------------------------------------------------------------- one gradient, leaving one out
@MODEL
def test_one_gradient_is_what_autograd_says(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    asked = predict(model, ids, TARGET)
    for scale in ("log_prob", "prob", "logit", "log_odds"):
        check_one_gradient(model, ids, asked, scale)


def check_one_gradient(model: Any, ids: Tensor, asked: Prediction, scale: Any) -> None:
    embeddings = plain_embeddings(model, ids)
    gradient = slope(plain(model, ids, scale=scale), embeddings)
    assert relative(InputXGradient(scale=scale)(asked).scores, (gradient * embeddings).sum(-1)) < 1e-6
    assert relative(GradientNorm(scale=scale)(asked).scores, gradient.square().sum(-1).sqrt()) < 1e-6
    assert relative(GradientNorm(scale=scale, order=1)(asked).scores, gradient.abs().sum(-1)) < 1e-6


@ONE_EACH
def test_input_x_gradient_is_captums_and_one_point_of_integrated_gradients(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    found = scores(InputXGradient(), model, ids)
    right = IntegratedGradients(steps=1, rule="right", keep_bos=False)
    assert relative(scores(right, model, ids), found) < 1e-9
    captum = pytest.importorskip("captum.attr")
    embeddings = plain_embeddings(model, ids)[None].requires_grad_()
    theirs = captum.InputXGradient(every(plain(model, ids))).attribute(embeddings)
    assert relative(found, theirs[0].sum(-1).detach()) < 1e-9


@MODEL
def test_leaving_one_out_is_one_plain_run_each(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    embeddings, log_probs = plain_embeddings(model, ids), plain_log_probs(model, ids)
    clean = log_probs(embeddings).detach()
    asked = predict(model, ids, TARGET)
    kl, drop = (LeaveOneOut(effect=effect, mask="mean")(asked).scores for effect in ("kl", "log_prob"))
    left = [log_probs(with_row(embeddings, place, embeddings.mean(0))).detach() for place in range(N)]
    assert relative(kl, torch.stack([(clean.exp() * (clean - one)).sum() for one in left])) < 1e-6
    assert relative(drop, torch.stack([(clean - one)[TARGET] for one in left])) < 1e-6


@ONE_EACH
def test_leaving_one_out_is_captums_ablation(build: Callable[..., Any]) -> None:
    captum = pytest.importorskip("captum.attr")
    model = build()
    ids = zoo.prompt(model, N)
    embeddings = plain_embeddings(model, ids)
    tokens = torch.arange(N)[None, :, None].expand(1, -1, embeddings.shape[1])
    theirs = captum.FeatureAblation(every(plain(model, ids))).attribute(embeddings[None], feature_mask=tokens)
    assert relative(scores(LeaveOneOut(effect="log_prob"), model, ids), theirs[0, :, 0]) < 1e-9


def test_leaving_one_out_has_a_direction_only_where_it_looks_at_the_target() -> None:
    asked = predict(zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), N), TARGET)
    assert LeaveOneOut(effect="log_prob")(asked).signed and not LeaveOneOut()(asked).signed


# ------------------------------------------------------------------------------------- sequential integrated gradients
@pytest.mark.parametrize(
    ("rule", "expected", "gaps"), [("gauss_legendre", [10.0, 6.0], [0, 0]), ("left", [9.0, 6.0], [1, 0])]
)
def test_sequential_integrated_gradients_of_a_worked_example(
    rule: Any, expected: list[float], gaps: list[float]
) -> None:
    """``x1² + 3 x1`` up to 2, then ``2 x2`` up to 3: the other stays where it is."""
    found, facts = explain(SequentialIntegratedGradients(steps=4, rule=rule, scale="logit"), CROSS)
    assert found == pytest.approx(expected)
    assert facts["completeness_gaps"].tolist() == pytest.approx(gaps, abs=1e-12)
    assert facts["completeness_gap"] == pytest.approx(max(gaps), abs=1e-12)


@MODEL
def test_sequential_integrated_gradients_are_what_a_loop_finds(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    embeddings, g = plain_embeddings(model, ids), plain(model, ids, scale="logit")
    found = SequentialIntegratedGradients(steps=2, rule="middle", scale="logit", batch=4)(predict(model, ids, TARGET))
    expected, gaps = torch.zeros(N, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
    for place in range(1, N):
        without = with_row(embeddings, place, torch.zeros_like(embeddings[0]))
        expected[place] = along(g, without, embeddings, midpoints(2))[place]
        gaps[place] = abs(value(g, embeddings) - value(g, without) - expected[place])
    assert relative(found.scores, expected) < 1e-6
    assert relative(found.diagnostics["completeness_gaps"], gaps) < 1e-4


@ONE_EACH
def test_sequential_integrated_gradients_are_captums_of_one_token_at_a_time(build: Callable[..., Any]) -> None:
    captum = pytest.importorskip("captum.attr")
    model = build()
    ids = zoo.prompt(model, N)
    embeddings = plain_embeddings(model, ids)
    theirs = captum.IntegratedGradients(every(plain(model, ids)))
    found = scores(SequentialIntegratedGradients(steps=4, mask="mean", keep_bos=False), model, ids)
    for place in range(N):
        without = with_row(embeddings, place, embeddings.mean(0))[None]
        one = theirs.attribute(embeddings[None].requires_grad_(), without, n_steps=4)[0, place].sum().detach()
        assert float(found[place]) == pytest.approx(float(one), rel=1e-5)


@ONE_EACH
def test_sequential_integrated_gradients_come_to_what_leaving_a_token_out_costs(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    found = SequentialIntegratedGradients(steps=40, keep_bos=False)(predict(model, ids, TARGET))
    costs = scores(LeaveOneOut(effect="log_prob"), model, ids)
    assert relative(found.scores, costs) < 1e-5
    assert relative(found.scores + found.diagnostics["completeness_gaps"], costs) < 1e-4
    assert len(found.without([2]).diagnostics["completeness_gaps"]) == N - 1


@pytest.mark.parametrize("size", [1, 3, N])
def test_where_runs_start_does_not_matter(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    method = SequentialIntegratedGradients(steps=3)
    before = scores(method, model, ids)
    start_together(monkeypatch, size)
    assert relative(scores(method, model, ids), before) < 1e-9


def test_runs_start_at_the_token_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("gpt2")
    asked = predict(model, zoo.prompt(model, N), TARGET)
    starts: list[int] = []
    run = heta_lens.prompt.Prompt._suffix_run
    monkeypatch.setattr(
        heta_lens.prompt.Prompt,
        "_suffix_run",
        lambda self, part, *rest: starts.append(part.start) or run(self, part, *rest),
    )
    start_together(monkeypatch, 1)
    SequentialIntegratedGradients(steps=2)(asked)
    assert set(starts) == set(range(1, N))


# ------------------------------------------------------------------------------------ discretized integrated gradients
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
    monkeypatch.setattr("heta_lens.baselines.discretized_integrated_gradients.AT_ONCE", 1)
    assert torch.equal(scores(method, model, ids), before)


# ------------------------------------------------------------------------------------------------------------ Grad-CAM
def test_grad_cam_of_a_worked_example() -> None:
    """The mean gradient is (1, 1); its own gradient is what tells the second token's two features apart."""
    states = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
    gradient = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    assert evidence(states, gradient, elementwise=False).tolist() == [3, -1]
    assert evidence(states, gradient, elementwise=True).tolist() == [2, -8]


@MODEL
@pytest.mark.parametrize("layer", [None, 0, 1])
def test_grad_cam_is_what_hooks_find(build: Callable[..., Any], layer: int | None) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    name = f"blocks.{1 if layer is None else layer}.hook_resid_post"
    clean = model.run_with_cache(ids, names_filter=[name])[1][name][0]

    def g(states: Tensor) -> Tensor:
        replace = [(name, lambda live, hook: states[None].to(live.dtype))]  # noqa: ARG005
        return on(model.run_with_hooks(ids, fwd_hooks=replace)[0, -1], TARGET, "prob")

    gradient = slope(g, clean)
    asked = predict(model, ids, TARGET)
    found = GradCam(layer=layer, scale="prob")(asked)
    assert relative(found.scores, (clean @ gradient.mean(0)).relu()) < 1e-6
    assert found.diagnostics["layer"] == (1 if layer is None else layer)
    own = GradCam(layer=layer, scale="prob", elementwise=True)(asked)
    expected = (clean * gradient).sum(-1).relu()
    assert torch.allclose(own.scores, expected, rtol=1e-6, atol=1e-9)


def test_what_leaves_the_last_block_matters_at_the_last_token_only() -> None:
    model = zoo.bridge("gpt2", n_layers=3)
    asked = predict(model, zoo.prompt(model, N), None)
    last = GradCam(layer=2, elementwise=True, scale="logit")(asked).scores
    assert (last[:-1] == 0).all()
    middle = GradCam(elementwise=True, scale="logit")(asked)
    assert middle.diagnostics["layer"] == 1 and (middle.scores[:-1] > 0).any()


# ----------------------------------------------------------------------------------------------------- all of them
@METHOD
def test_kinds_of_model_agree(method: Baseline) -> None:
    if not zoo.HAS_HOOKED:
        pytest.skip("there is one kind of model")
    one, other = (scores(method, model, zoo.prompt(model, N)) for model in (zoo.hooked("gpt2"), zoo.bridge("gpt2")))
    assert relative(one, other) < 1e-9


@METHOD
def test_a_contrast_is_the_difference_where_scores_are_linear_in_g(method: Baseline) -> None:
    if method.name in ("gradient_norm", "grad_cam"):
        pytest.skip("not linear in g")
    if isinstance(method, LeaveOneOut):
        method = LeaveOneOut(effect="log_prob")
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    both, first, second = (scores(method, model, ids, target) for target in ((TARGET, OTHER), TARGET, OTHER))
    assert relative(both, first - second) < 1e-9


def test_a_contrast_of_what_is_not_linear_follows_the_difference_of_gradients() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    embeddings = plain_embeddings(model, ids)
    gradient = slope(plain(model, ids), embeddings) - slope(plain(model, ids, OTHER), embeddings)
    assert relative(scores(GradientNorm(), model, ids, (TARGET, OTHER)), gradient.norm(dim=-1)) < 1e-9
    sides = [scores(GradCam(layer=0), model, ids, target) for target in ((TARGET, OTHER), (OTHER, TARGET))]
    assert (sides[0] * sides[1] == 0).all() and (sides[0] + sides[1] > 0).all()


def test_hooks_of_the_users_stay_active() -> None:
    model = zoo.bridge("gpt2")
    ids, name = zoo.prompt(model, N), "blocks.0.hook_resid_post"
    model.hook_dict[name].add_hook(lambda live, hook: 0.5 * live)  # noqa: ARG005
    try:
        embeddings, g, asked = plain_embeddings(model, ids), plain(model, ids), predict(model, ids, TARGET)
        gradient = slope(g, embeddings)
        one = scores(SequentialIntegratedGradients(steps=1, rule="middle"), model, ids)
        without = with_row(embeddings, 3, torch.zeros_like(embeddings[0]))
        expected = along(g, without, embeddings, midpoints(1))[3]
        mapped = GradCam(layer=0)(asked).scores
        halved_states = model.run_with_cache(ids, names_filter=[name])[1][name][0]
    finally:
        model.reset_hooks(including_permanent=True)
    assert relative(scores(InputXGradient(), model, ids), (gradient * embeddings).sum(-1)) > 1e-3
    assert relative(one[3:4], expected[None]) < 1e-9

    def rest(states: Tensor) -> Tensor:
        replace = [(name, lambda live, hook: states[None])]  # noqa: ARG005
        return on(model.run_with_hooks(ids, fwd_hooks=replace)[0, -1], TARGET, "log_prob")

    assert relative(mapped, (halved_states @ slope(rest, halved_states).mean(0)).relu()) < 1e-9


@pytest.mark.parametrize(
    "method",
    [SequentialIntegratedGradients(steps=2), DiscretizedIntegratedGradients(steps=2), IntegratedGradients(steps=2)],
    ids=lambda method: method.name,
)
def test_hooks_see_one_prompt_and_change_nothing_else(method: Baseline) -> None:
    """A hook that does nothing takes prefix reuse and batches away: every run is whole and on its own."""
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    before = scores(method, model, ids)
    seen: set[tuple[int, ...]] = set()
    model.hook_dict["blocks.0.hook_resid_pre"].add_hook(lambda live, hook: seen.add(tuple(live.shape[:2])))  # noqa: ARG005
    try:
        under = scores(method, model, ids)
    finally:
        model.reset_hooks(including_permanent=True)
    assert relative(under, before) < 1e-9 and seen == {(1, N)}


def test_what_it_costs_is_foreseen() -> None:
    model = zoo.bridge("gpt2")
    asked = predict(model, zoo.prompt(model, N), TARGET)
    for method in (*EVERY, SequentialIntegratedGradients(steps=2, keep_bos=False)):
        work, found = method.work(asked), method(asked).diagnostics
        assert 0 < found["forwards"] <= work["forwards"]
        assert found["backwards"] <= work.get("backwards", 0)
    assert found["forwards"] == work["forwards"] == 2 * N + N + 1 and found["backwards"] == work["backwards"] == 2 * N


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GradCam(layer=-1), "layer=-1 must be at least 0"),
        (lambda: GradCam(layer=1.5), "layer=1.5 must be a whole number"),
        (lambda: GradCam(elementwise=1), "elementwise=1 must be True or False"),
        (lambda: SequentialIntegratedGradients(steps=0), "steps=0 must be at least 1"),
        (lambda: SequentialIntegratedGradients(rule="simpson"), "rule='simpson' is not one of 'gauss_legendre'"),
        (lambda: DiscretizedIntegratedGradients(neighbours=0), "neighbours=0 must be at least 1"),
        (lambda: DiscretizedIntegratedGradients(factor=-1), "factor=-1 must be at least 0"),
        (lambda: DiscretizedIntegratedGradients(strategy="best"), "strategy='best' is not one of 'greedy', 'maxcount'"),
    ],
)
def test_wrong_options_are_refused(make: Callable[[], Baseline], message: str, unchecked: None) -> None:  # noqa: ARG001
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_what_this_model_has_not_is_refused_before_any_work() -> None:
    model = zoo.bridge("gpt2")
    asked = predict(model, zoo.prompt(model, N), TARGET)
    with pytest.raises(ValueError, match="layer=2 is none of the layers 0 to 1 this model has"):
        GradCam(layer=2)(asked)
    for kind in (IntegratedGradients, SequentialIntegratedGradients, DiscretizedIntegratedGradients):
        with pytest.raises(ValueError, match="mask=1000 is no token id of this model"):
            kind(mask=1000)(asked)


def test_a_model_without_a_tokenizer_is_told_how_to_name_a_baseline() -> None:
    model = zoo.bridge.__wrapped__("gpt2")
    ids = zoo.prompt(model, N)
    model.tokenizer = None
    asked = heta_lens.Prediction.from_cache(cache_of(model, ids), TARGET, tokens=ids)
    with pytest.raises(ValueError, match="needs a tokenizer with a padding, end or unknown token: give a token id"):
        DiscretizedIntegratedGradients()(asked)
    assert DiscretizedIntegratedGradients(mask="zero", steps=2)(asked).scores[0] != 0  # nothing says that it begins
