"""`causal.components` next to its definition, on every kind of model."""

from collections.abc import Callable
from math import nan
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import cache_of, relative
from helpers.oracle_components import Direction, Node, Number, Oracle, embeddings_of
from heta_lens.causal import Components, components

N, TARGET, OTHER, THIRD = 6, 7, 9, 11
CHANGED = [1, 3]
VERIFY = 8
EXACT = 1e-10
CLOSE = 1e-6  # some norms compute in float32 even inside a float64 model


EVERY_FAMILY = pytest.mark.parametrize(("name", "build"), zoo.named(""))


ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


BOTH_WAYS = pytest.mark.parametrize("direction", get_args(Direction))


def log_prob(logits: Tensor) -> Tensor:
    return logits.log_softmax(-1)[TARGET]


def asked(model: Any, target: Any = TARGET, **options: Any) -> Components:
    ids = zoo.prompt(model, N)
    options = {"verify": VERIFY, "progress": False, "positions": CHANGED, **options}
    return components(cache_of(model, ids), target=target, tokens=ids, **options)


def by_definition(model: Any, number: Number = log_prob, row: Any = 0, **options: Any) -> Oracle:
    """The same question, with this at the changed positions."""
    ids = zoo.prompt(model, N)
    other = embeddings_of(model, ids)
    other[CHANGED] = torch.as_tensor(row, dtype=other.dtype)
    return Oracle(model, ids, other, number, **options)


def error(found: Tensor, expected: Any) -> float:
    return relative(found, torch.as_tensor(expected, dtype=torch.float64))


def nodes(found: Components) -> list[Node]:
    return [(layer, position, column) for layer, position, column in found.found.tolist()]


def is_head(found: Components, node: Node) -> bool:
    return node[2] < found.heads_per_layer


def sources(found: Components, oracle: Oracle, **options: Any) -> Tensor:
    """By definition; nothing for MLPs."""
    parts = [oracle.sources(*node, **options) if is_head(found, node) else torch.zeros(N, 2) for node in nodes(found)]
    return torch.stack([part.double() for part in parts])


def most_promising(oracle: Oracle, k: int) -> list[float]:
    """The k highest estimates (where the number rises: the lowest) after the first change, beside the changed."""
    free = [node for node in oracle.all_nodes() if node[1] > CHANGED[0] and node[1] not in CHANGED]
    estimates = sorted(float(oracle.estimates[node]) for node in free)
    return estimates[: -k - 1 : -1] if oracle.clean.number > oracle.changed.number else estimates[:k]


@pytest.mark.slow
@BOTH_WAYS
@EVERY_FAMILY
def test_estimates_and_sources_are_those_of_the_definition(
    name: str, build: Callable[[], Any], direction: Direction
) -> None:
    model, exact = build(), min(zoo.tolerance(name), CLOSE)
    for steps in (1, 3):
        found = asked(model, direction=direction, steps=steps)
        oracle = by_definition(model, direction=direction, steps=steps)
        assert [found.clean, found.changed] == pytest.approx([oracle.clean.number, oracle.changed.number], abs=exact)
        assert found.estimates.shape == oracle.shape
        assert error(found.estimates, oracle.estimates) < exact
        patched = sorted((float(found.estimates[node]) for node in nodes(found)), reverse=found.clean > found.changed)
        assert patched == pytest.approx(most_promising(oracle, VERIFY), abs=exact)
        assert error(found.sources, sources(found, oracle)) < exact
        heads = [(row, node) for row, node in enumerate(nodes(found)) if is_head(found, node)]
        added_up = torch.stack([found.sources[row].sum() + oracle.sink(*node) for row, node in heads])
        assert error(added_up, [float(oracle.estimates[node]) for _, node in heads]) < exact


@pytest.mark.slow
@BOTH_WAYS
@EVERY_FAMILY
def test_effects_are_those_of_whole_runs(name: str, build: Callable[[], Any], direction: Direction) -> None:
    model, exact = build(), min(zoo.tolerance(name), CLOSE)
    found, oracle = asked(model, direction=direction, both=True), by_definition(model, direction=direction)
    effects = [oracle.effect(node) for node in nodes(found)]
    assert error(found.effects, effects) < exact
    (opposite,) = {*get_args(Direction)} - {direction}
    assert error(found.opposite, [oracle.effect(node, direction=opposite) for node in nodes(found)]) < exact
    change = found.clean - found.changed
    assert effects == sorted(effects, reverse=change > 0)
    together = [oracle.effect(*nodes(found)[:k]) / change for k in range(1, len(found.together) + 1)]
    assert list(found.together) == pytest.approx(together, abs=exact)
    route = [nodes(found)[place] for place in found.rows_of_route]
    assert found.route_share == pytest.approx(oracle.effect(*route) / change if route else nan, abs=exact, nan_ok=True)


@BOTH_WAYS
@ONE_EACH
def test_a_table_of_sources_is_of_the_component_that_was_asked_for(
    build: Callable[[], Any], direction: Direction
) -> None:
    model = build()
    found, oracle = asked(model, direction=direction), by_definition(model, direction=direction)
    heads = [(component, component.head) for component in found.top(VERIFY) if component.head is not None]
    assert heads
    for component, head in heads:
        table = found.taken_from(component)
        assert list(table.index) == list(range(N)) and list(table.columns) == ["token", "values", "pattern"]
        expected = oracle.sources(component.layer, component.position, head)
        assert error(torch.tensor(table[["values", "pattern"]].to_numpy()), expected) < EXACT


def by_target(kind: str) -> tuple[Any, Number]:
    """A target, and its number, written out."""
    both = [TARGET, OTHER]
    return {
        "set": ({TARGET, OTHER}, lambda logits: logits.softmax(-1)[both].sum().log()),
        "contrast": ((TARGET, OTHER), lambda logits: logits[TARGET] - logits[OTHER]),
        "contrast with a set": (
            (THIRD, {TARGET, OTHER}),
            lambda logits: logits.log_softmax(-1)[THIRD] - logits.softmax(-1)[both].sum().log(),
        ),
    }[kind]


SCALES: dict[str, Number] = {
    "prob": lambda logits: logits.softmax(-1)[TARGET],
    "logit": lambda logits: logits[TARGET],
    "log_odds": lambda logits: log_prob(logits) - (1 - log_prob(logits).exp()).log(),
}


def compare(found: Components, oracle: Oracle) -> None:
    assert error(found.estimates, oracle.estimates) < EXACT
    assert error(found.sources, sources(found, oracle)) < EXACT
    assert error(found.effects, [oracle.effect(node) for node in nodes(found)]) < EXACT


@BOTH_WAYS
@pytest.mark.parametrize("kind", ["set", "contrast", "contrast with a set"])
@ONE_EACH
def test_other_targets(build: Callable[[], Any], kind: str, direction: Direction) -> None:
    model, (target, number) = build(), by_target(kind)
    compare(asked(model, target, direction=direction), by_definition(model, number, direction=direction))


@BOTH_WAYS
@pytest.mark.parametrize("scale", SCALES)
@ONE_EACH
def test_other_scales(build: Callable[[], Any], scale: str, direction: Direction) -> None:
    model = build()
    compare(asked(model, scale=scale, direction=direction), by_definition(model, SCALES[scale], direction=direction))


@pytest.mark.parametrize("change", ["mean", "a token", "a vector", "ids", "a prompt"])
@ONE_EACH
def test_other_changes(build: Callable[[], Any], change: str) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    swapped = ids.clone()
    swapped[0, CHANGED] = torch.tensor([OTHER, THIRD])
    vector = torch.linspace(-1, 1, model.cfg.d_model, dtype=torch.float64)
    shown = embeddings_of(model, swapped)[CHANGED]
    given, row = {
        "mean": ("mean", embeddings_of(model, ids).mean(0)),
        "a token": (OTHER, shown[0]),
        "a vector": (vector, vector),
        "ids": ([OTHER, THIRD], shown),
        "a prompt": (swapped, shown),
    }[change]
    options = {"positions": None} if change == "a prompt" else {}
    compare(asked(model, change=given, steps=3, **options), by_definition(model, row=row, steps=3))


@BOTH_WAYS
@pytest.mark.parametrize("size", [1.0, 10.0])
def test_a_constant_in_all_values_is_in_no_source(
    monkeypatch: pytest.MonkeyPatch, size: float, direction: Direction
) -> None:
    """The same function, written with other biases: every value has a constant more, which the output takes away."""
    model = zoo.bridge("gpt2")
    weights: Any = zoo.huggingface("gpt2")
    for block in weights.transformer.h:
        constant = size * torch.linspace(-1, 2, model.cfg.d_model, dtype=torch.float64)
        block.attn.c_attn.bias.data[-model.cfg.d_model :] += constant
        block.attn.c_proj.bias.data -= constant @ block.attn.c_proj.weight
    monkeypatch.setattr(zoo, "huggingface", lambda *_: weights)
    shifted = zoo.bridge.__wrapped__("gpt2")
    found, after = asked(model, direction=direction), asked(shifted, direction=direction)
    assert nodes(after) == nodes(found)
    assert error(after.estimates, found.estimates) < EXACT
    assert error(after.sources, found.sources) < EXACT

    before, behind = by_definition(model, direction=direction), by_definition(shifted, direction=direction)
    assert error(after.sources, sources(found, behind)) < EXACT
    plain, plain_after = sources(found, before, relative=False), sources(found, behind, relative=False)
    for split in (plain, plain_after):  # without a reference the sum is the same, and the split is another one
        assert error(split.sum((1, 2)), found.sources.sum((1, 2))) < EXACT
    assert error(plain, found.sources) > 0.01 and error(plain_after, plain) > 0.1 * size
    assert error(plain_after[..., 0], plain[..., 0]) < EXACT
