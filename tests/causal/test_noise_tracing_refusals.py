"""What layer tracing refuses, and that it leaves the model as it was."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import busy, cache_of
from helpers.tracing import TARGET, WAYS, N, traced
from heta_lens.causal import trace
from heta_lens.model.adapter import ModelAdapter

ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


@ONE_EACH
def test_a_model_in_somebodys_work_is_left_as_it_was(build: Callable[..., Any]) -> None:
    model = busy(getattr(build, "func", build).__wrapped__(*getattr(build, "args", ())))
    flags = [parameter.requires_grad for parameter in model.parameters()]
    ids = zoo.prompt(model, N)
    cache = cache_of(model, ids)
    for way in WAYS:
        assert not trace(cache, TARGET, tokens=ids, samples=1, **way).values.requires_grad
        with torch.inference_mode():
            assert not trace(cache, TARGET, tokens=ids, samples=1, **way).values.is_inference()
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert len(ModelAdapter(model).user_hooks()) == 1


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"what": "mlp_outs"},
            ValueError,
            r"what='mlp_outs' is not one of 'resid_post', 'mlp_out', 'attn_out' \(did you mean 'mlp_out'\?\)",
        ),
        ({"what": "resid_pre"}, ValueError, r"\(a layer's is the resid_post of the one before\)"),
        ({"scale": "nats"}, ValueError, "scale='nats' is not one of 'log_prob'"),
        ({"batch": 0}, ValueError, "batch=0 must be at least 1"),
        ({"samples": 0}, ValueError, "samples=0 must be at least 1"),
        ({"samples": 2.5}, TypeError, "samples=2.5 must be a whole number"),
        ({"noise": -1}, ValueError, "noise=-1 must be at least 0"),
        ({"noise": float("nan")}, ValueError, "noise=nan must be at least 0"),
        ({"seed": -1}, ValueError, "seed=-1 must be at least 0"),
        ({"window": 0}, ValueError, "window=0 must be at least 1"),
        (
            {"window": 3},
            ValueError,
            "window=3 with what='resid_post': the stream after a layer holds what all",
        ),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_options_that_make_no_sense_are_refused_before_any_run(
    options: dict[str, Any], kind: type[Exception], message: str, forwards: Any
) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    cache = cache_of(model, ids)
    ran = forwards(model)
    with pytest.raises(kind, match=message):
        trace(cache, TARGET, tokens=ids, **options)
    assert not ran


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ([], "subject is empty: name a position"),
        (2, r"subject=2 is not a list of positions: write \[3\] for one"),
        (True, "subject=True is not a list of positions"),
        (torch.tensor(2), r"subject=tensor\(2\) is not a list of positions"),
        (torch.tensor([N]), r"position tensor\(4\) is none of the"),
        ([0, N], f"position {N} is none of the {N} positions of the context"),
        ([-1], f"position -1 is none of the {N} positions of the context"),
        (["cat"], f"position 'cat' is none of the {N} positions of the context"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_a_subject_that_is_not_there_is_refused(subject: Any, message: str) -> None:
    model = zoo.bridge("gpt2")
    with pytest.raises((ValueError, TypeError), match=message):
        traced(model, zoo.prompt(model, N + 1), position=N, subject=subject)


def test_a_model_without_the_place_is_refused_before_any_run(monkeypatch: pytest.MonkeyPatch, forwards: Any) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    cache, gone = cache_of(model, ids), "blocks.1.hook_mlp_out"
    points = {name: point for name, point in model.hook_dict.items() if name != gone}
    monkeypatch.setattr(ModelAdapter, "points", points)
    ran = forwards(model)
    with pytest.raises(ValueError, match=rf"this TransformerBridge has no {gone}, where this would be put in"):
        trace(cache, TARGET, tokens=ids, what="mlp_out")
    assert not ran
    assert trace(cache, TARGET, tokens=ids, what="attn_out", samples=1).values.shape == (2, N)


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="TransformerLens 4 has no such model")
def test_layers_without_an_mlp_are_refused() -> None:
    model = zoo.hooked_config("attn_only")
    with pytest.raises(ValueError, match=r"this HookedTransformer has no blocks\.0\.hook_mlp_out, where this would be"):
        traced(model, zoo.prompt(model, N), what="mlp_out")
    assert ModelAdapter(model).user_hooks() == []


def test_noise_that_breaks_the_model_is_named() -> None:
    model = zoo.bridge("gpt2")
    with pytest.raises(ValueError, match="likelihood with mlp_out of layer 0 put back is nan at position 0"):
        traced(model, zoo.prompt(model, N), what="mlp_out", noise=1.7e308)
