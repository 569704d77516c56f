"""Spans that are refused before long work, and what stays as it was."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens.model.batching
import heta_lens.prediction.prediction
from helpers import zoo
from helpers.asking import busy, cache_of
from helpers.faults import differences, fail_from, state
from helpers.spans import START, N
from heta_lens import Heta, attribute, attribute_span

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*has no effect with:UserWarning"),
]
PAIR = (7, 9)


# ------------------------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"start": 4, "stop": 4}, ValueError, ["span 4:4", "empty"]),
        ({"start": 5, "stop": 3}, ValueError, ["span 5:3", "empty"]),
        ({"start": -3, "stop": -3}, ValueError, ["span -3:-3", "empty"]),
        ({"start": 4, "stop": 0}, ValueError, ["span 4:0", "empty"]),
        ({"start": N}, ValueError, [f"span {N}:", "empty"]),
        ({"start": N + 1}, ValueError, ["beyond", f"{N} tokens"]),
        ({"start": 4, "stop": N + 1}, ValueError, [f"4:{N + 1}", "beyond", f"{N} tokens"]),
        ({"start": -N - 1}, ValueError, ["beyond", f"{N} tokens"]),
        ({"start": 4, "stop": -N - 1}, ValueError, ["beyond", f"{N} tokens"]),
        ({"start": 0}, ValueError, ["first token", "nothing comes before"]),
        ({"start": -N, "stop": 4}, ValueError, ["first token", "nothing comes before"]),
        ({"start": True}, TypeError, ["start=True", "whole number"]),
        ({"start": 1.0}, TypeError, ["start=1.0", "whole number"]),
        ({"start": "4"}, TypeError, ["start='4'", "whole number"]),
        ({"start": None}, TypeError, ["start=None", "whole number"]),
        ({"start": 4, "stop": False}, TypeError, ["stop=False", "whole number"]),
        ({"start": 4, "stop": "7"}, TypeError, ["stop='7'", "whole number"]),
        ({"start": 4, "targets": [7]}, ValueError, ["targets=", "1 entries", f"{N - 4} positions"]),
        ({"start": 9, "targets": []}, ValueError, ["targets=", "0 entries", "2 positions"]),
        ({"start": 9, "targets": torch.tensor([5, 6, 7])}, ValueError, ["targets=", "3 entries", "2 positions"]),
        ({"start": 4, "method": "hetta"}, ValueError, ["method='hetta'", "did you mean 'heta'"]),
        ({"start": 4, "method": Heta}, TypeError, ["method=", "'heta'"]),
        ({"start": 4, "end": 6}, TypeError, ["end= is not an option of heta: did you mean start and stop"]),
        ({"start": 4, "method": "IG"}, ValueError, ["method='IG'", "did you mean 'ig'"]),
        ({"start": 4, "prob": 3}, TypeError, ["no option 'prob'", "did you mean 'probes'", "window_gate"]),
        ({"start": 4, "probes": 0}, ValueError, ["probes=0", "at least 1"]),
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


@pytest.mark.usefixtures("unchecked")
def test_a_cache_of_several_prompts_is_sent_to_where_it_can_be_explained(
    model: Any, ids: Tensor, forwards: Any
) -> None:
    cache = cache_of(model, ids.repeat(3, 1))
    runs = forwards(model)
    for explain in (partial(attribute, target=7), partial(attribute_span, start=4)):
        with pytest.raises(ValueError, match=r"3 prompts .*attribute_batch"):
            explain(cache)
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


def test_a_run_that_ends_in_nothing_is_told_where(cache: Any, ids: Tensor) -> None:
    with pytest.raises(ValueError, match=r"information is nan at position 0, token '<bos>'"):
        attribute_span(cache, START, tokens=ids, variant="kl_only", mask=torch.full((8,), torch.nan))


# ----------------------------------------------------------------------------------------------- everything as it was
OWN_KINDS: dict[str, Callable[[], Any]] = {
    "bridge": lambda: zoo.bridge.__wrapped__("gpt2"),
    **({"hooked": lambda: zoo.hooked.__wrapped__("llama")} if zoo.HAS_HOOKED else {}),
}


@pytest.mark.sample(quick=3)
@pytest.mark.parametrize("kind", OWN_KINDS)
@pytest.mark.parametrize("wrong", [None, {"targets": 10**6}, {"start": 99}, {"mask": 10**6}], ids=str)
@pytest.mark.usefixtures("unchecked")
def test_nothing_of_the_callers_changes(kind: str, wrong: dict[str, Any] | None) -> None:
    model = busy(OWN_KINDS[kind]())
    ids = zoo.prompt(model, 6)
    _, cache = model.run_with_cache(ids)
    before = state(model, cache, ids)
    asked = {"start": 3, "tokens": ids, "probes": 2} | (wrong or {})
    if wrong is None:
        span = attribute_span(cache, **asked)
        assert not any(step.scores.requires_grad for step in span.steps)
    else:
        with pytest.raises(ValueError, match=r"\w"):
            attribute_span(cache, **asked)
    assert differences(before, state(model, cache, ids)) == []


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
