"""Spans: every target gets the answer it would get alone, from one set of masked forwards; or is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens.model.batching
import heta_lens.prediction.prediction
import heta_lens.prediction.rerun
from helpers import zoo
from helpers.asking import busy, cache_of, relative
from helpers.attributions import START, N, alone
from helpers.faults import differences, fail_from, state
from heta_lens import Heta, attribute, attribute_span
from heta_lens.model.adapter import ModelAdapter

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*has no effect with:UserWarning"),
]

PAIR = (7, 9)

PER_TOKEN = ("drop", "envelope", "balanced")  # among the diagnostics

SHARED: dict[str, dict[str, Any]] = {
    "default": {},
    "seed": {"support": "row", "probes": 12, "seed": 3},
    "lr": {"variant": "lr", "rank": 3},
    "ls": {"variant": "ls", "layers": 1},
    "gn": {"variant": "gn"},
    "gs": {"variant": "gs", "probes": 10},
    "kl_only": {"variant": "kl_only", "probes": 10},
    "hessian_only": {"variant": "hessian_only"},
    "no_gate": {"variant": "no_gate", "kl": "js"},
    "interactions": {"interactions": True},
    "entrywise": {"norm": "entrywise", "interactions": True, "probes": 10},
    "sum": {"balance": "sum", "support": "row"},
    "max": {"balance": "max", "flow": "direct", "value_norm": 2},
    "token": {"mask": 5, "support": "row"},
    "small batch": {"batch": 3},
}

ALONE: dict[str, dict[str, Any]] = {
    "mean": {"mask": "mean"},
    "frozen": {"variant": "win", "window": 3},
    "chunk": {"variant": "win", "window": 3, "window_mode": "chunk", "window_gate": "per_window"},
    "restrict": {"variant": "ls+win", "layers": 1, "window": 3, "window_mode": "restrict"},
    "low rank in windows": {"variant": "lr+win", "rank": 2, "window": 4},
}


def alike(found: Any, expected: Any, tolerance: float = 1e-6) -> None:
    """Two answers to one question."""
    assert (found.target, found.target_text, found.tokens) == (expected.target, expected.target_text, expected.tokens)
    assert torch.equal(found.ids, expected.ids)
    assert found.parts.keys() == expected.parts.keys()
    assert relative(found.scores, expected.scores) < tolerance
    for name, part in expected.parts.items():
        assert relative(found.parts[name], part) < tolerance, name
    for name in PER_TOKEN:
        assert (name in found.diagnostics) == (name in expected.diagnostics)
        if name in expected.diagnostics:
            assert relative(found.diagnostics[name], expected.diagnostics[name]) < tolerance, name
    for name, error in expected.standard_errors.items():
        if error is None:
            assert found.standard_errors[name] is None
        else:
            assert relative(found.standard_errors[name], error) < 100 * tolerance, name
    for name in ("additivity_gap", "target_log_prob", "target_rank"):
        assert found.diagnostics[name] == pytest.approx(expected.diagnostics[name], rel=100 * tolerance)
    assert (found.interactions is None) == (expected.interactions is None)
    if expected.interactions is not None:
        assert relative(found.interactions, expected.interactions) < tolerance


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many copies each run of a model is of."""
    run, seen = ModelAdapter.run, []

    def watched(adapter: Any, ids: Any, *args: Any, **options: Any) -> Any:
        seen.append(len(ids))
        return run(adapter, ids, *args, **options)

    monkeypatch.setattr(ModelAdapter, "run", watched)
    return seen


@pytest.mark.parametrize("build", zoo.models())
@pytest.mark.usefixtures("unchecked")
def test_every_step_is_what_attribute_says_of_that_token(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    cache = cache_of(model, ids)
    options: dict[str, Any] = {"tokens": ids, "support": "row", "probes": 1}
    span = attribute_span(cache, START, **options)
    assert len(span) == N - START
    for step in span.steps[1::2]:
        alike(step, attribute(cache, position=len(step), **options))


@pytest.mark.sample(quick=3, test=6)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("bridge-gpt2", name) for name in SHARED | ALONE),
        *(("bridge-gemma2", name) for name in ("lr", "interactions", "frozen")),
        *(("hooked-rotary_gqa", name) for name in ("seed", "ls", "mean", "chunk") if zoo.HAS_HOOKED),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_so_it_is_with_every_option(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heta_lens.prediction.rerun, "TAIL", 2)
    options: dict[str, Any] = {"probes": 2} | (SHARED | ALONE)[name]
    model = dict(zoo.KINDS)[kind]()
    ids = zoo.prompt(model, 9)
    cache = cache_of(model, ids)
    span = attribute_span(cache, 7, tokens=ids, **options)
    for step, expected in zip(span.steps, alone(cache, ids, (7, 8), **options), strict=True):
        alike(step, expected)
        assert step.options == expected.options


@pytest.mark.parametrize("build", zoo.models("bridge-gpt2|hooked-rotary_gqa"))
@pytest.mark.parametrize("options", [{"support": "row"}, {"mask": "mean", "variant": "kl_only"}], ids=str)
def test_hooks_on_the_model_stay_at_work(build: Any, options: dict[str, Any]) -> None:
    model = build()
    ids = zoo.prompt(model, 9)
    bare = attribute_span(cache_of(model, ids), 7, tokens=ids, **options)

    def steer(live: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        assert live.shape[:2] == (1, 9)  # one prompt, and the whole of it
        return torch.cat([live[:, :3], live[:, 3:4].roll(1, -1), live[:, 4:]], 1)

    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_post", steer)]):
        cache = cache_of(model, ids)
        span = attribute_span(cache, 7, tokens=ids, **options)
        singles = alone(cache, ids, (7, 8), **options)
    for step, expected in zip(span.steps, singles, strict=True):
        alike(step, expected)
    assert relative(span.matrix, bare.matrix) > 1e-3


@pytest.mark.slow
def test_forwards_are_shared(cache: Any, ids: Tensor) -> None:
    shared, apart = (attribute_span(cache, START, tokens=ids, probes=2, **more) for more in ({}, {"mask": "mean"}))
    for span, together in ((shared, N - START), (apart, None)):
        assert {step.diagnostics.cost.forwards_shared_by for step in span.steps} == {together}
        assert {step.diagnostics.cost.forwards_shared is None for step in span.steps} == {together is None}


def test_the_tokens_that_stand_there_are_the_targets(model: Any, cache: Any, ids: Tensor) -> None:
    span = attribute_span(cache, START, 10, tokens=ids, variant="gs")
    assert [step.target for step in span.steps] == ids[0, START:10].tolist()
    assert list(span.targets) == [model.tokenizer.decode([token]) for token in ids[0, START:10]]
    assert list(span.tokens) == [model.tokenizer.decode([token]) for token in ids[0, :10]]
    assert (span.start, len(span)) == (START, 3)


@pytest.mark.slow
def test_other_targets_may_be_asked_for(model: Any, cache: Any, ids: Tensor) -> None:
    text = model.tokenizer.decode([40])
    targets = [text, PAIR, None, 7]
    span = attribute_span(cache, START, tokens=ids, targets=targets, probes=2)
    assert [step.target for step in span.steps] == [40, PAIR, int(ids[0, 9]), 7]
    for step, expected in zip(span.steps, alone(cache, ids, range(START, N), targets, probes=2), strict=True):
        alike(step, expected)
    assert "not about the contrast" in span.steps[1].diagnostics["note"]
    assert span.tokens == attribute_span(cache, START, tokens=ids, variant="transition_only").tokens
    assert span.targets[:2] == (
        text,
        " rather than ".join(model.tokenizer.decode([token]).strip(" ") for token in PAIR),
    )


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"start": 4, "stop": 4}, ValueError, ["span 4:4", "empty"]),
        ({"start": 4, "stop": N + 1}, ValueError, [f"4:{N + 1}", "beyond", f"{N} tokens"]),
        ({"start": 0}, ValueError, ["first token", "nothing comes before"]),
        ({"start": 4, "targets": [7]}, ValueError, ["targets=", "1 entries", f"{N - 4} positions"]),
        ({"start": 4, "end": 6}, TypeError, ["no option 'end'"]),
        ({"start": 4, "method": Heta(), "probes": 3}, TypeError, ["probes", "options go with a method's name"]),
        ({"start": 4, "method": Heta.preset("released"), "beta": 1.0, "seed": 2}, TypeError, ["beta, seed"]),
    ],
    ids=lambda given: (
        " ".join(f"{name}={value}" for name, value in given.items())[:30] if isinstance(given, dict) else ""
    ),
)
@pytest.mark.usefixtures("unchecked")
def test_a_wrong_span_is_refused_before_the_model_is_run(
    model: Any, cache: Any, asked: dict[str, Any], error: Any, words: list[str], forwards: Any
) -> None:
    runs = forwards(model)
    with pytest.raises(error) as refused:
        attribute_span(cache, **asked)
    assert [word for word in words if word not in str(refused.value)] == []
    assert "\n" not in str(refused.value)
    assert Path(heta_lens.__file__).parent in Path(refused.traceback[-1].path).parents
    assert runs == []


@pytest.mark.parametrize(
    ("last", "words"),
    [(121, "target=121"), ("Paris!", "not a single token"), ((5, 5), "itself"), (1.5, "token id"), ([1], "token id")],
)
@pytest.mark.usefixtures("unchecked")
def test_a_bad_target_at_the_end_is_found_before_long_work(
    model: Any, cache: Any, last: Any, words: str, forwards: Any
) -> None:
    runs = forwards(model)
    targets: list[Any] = [None] * (N - 5)
    with pytest.raises((ValueError, TypeError), match=words):
        attribute_span(cache, 4, targets=[*targets, last])
    assert len(runs) <= 2


@pytest.mark.parametrize("options", [{"variant": "gn"}, {"variant": "ls", "layers": 3}, {"mask": torch.zeros(3)}])
@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_done_for_the_last_target_is_refused_before_long_work(
    model: Any, cache: Any, options: dict[str, Any], forwards: Any
) -> None:
    runs = forwards(model)
    targets: list[Any] = [None] * (N - 5)
    with pytest.raises(ValueError, match=r"contrast|layers=3|3 entries"):
        attribute_span(cache, 4, targets=[*targets, PAIR], **options)
    assert len(runs) <= 2


OWN_KINDS: dict[str, Callable[[], Any]] = {
    "bridge": lambda: zoo.bridge.__wrapped__("gpt2"),
    **({"hooked": lambda: zoo.hooked.__wrapped__("llama")} if zoo.HAS_HOOKED else {}),
}


@pytest.mark.parametrize("call", [1, 4, 8])
@pytest.mark.parametrize("kind", OWN_KINDS)
@pytest.mark.usefixtures("unchecked")
def test_nothing_of_the_callers_changes_when_it_is_broken_off(
    kind: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = busy(OWN_KINDS[kind]())
    ids = zoo.prompt(model, 6)
    _, cache = model.run_with_cache(ids)
    fail_from(monkeypatch, model.blocks[1].ln1, call, KeyboardInterrupt())
    before = state(model, cache, ids)
    with pytest.raises(KeyboardInterrupt):
        attribute_span(cache, 3, tokens=ids, probes=2)
    assert differences(before, state(model, cache, ids)) == []
