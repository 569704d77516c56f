"""Which options of HETA contradict each other, and which have no effect."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

import heta_lens
import heta_lens.prediction.prediction
from helpers import zoo
from helpers.asking import cache_of, predict
from helpers.heta import TARGET, N
from heta_lens import Heta
from heta_lens.methods.heta.options import VARIANTS

UNUSED = {
    "rank": (3, ["full", "ls", "win", "ls+win", "gs", "gn", "transition_only", "kl_only", "no_gate"]),
    "layers": (1, ["full", "lr", "win", "lr+win", "gs", "gn", "hessian_only", "uniform_gate"]),
    "window": (9, ["full", "lr", "ls", "gs", "gn", "kl_only"]),
    "overlap": (0.25, ["full", "lr", "ls", "gs", "gn", "no_gate"]),
    "window_mode": ("chunk", ["full", "lr", "ls", "gs", "gn"]),
    "window_gate": ("per_window", ["full", "lr", "ls", "gs", "gn"]),
    "probes": (3, ["gs", "transition_only", "kl_only"]),
    "support": ("row", ["gs", "transition_only", "kl_only"]),
    "norm": ("entrywise", ["gs", "transition_only", "kl_only"]),
    "flow": ("direct", ["no_gate", "uniform_gate"]),
    "value_norm": (2, ["no_gate", "uniform_gate"]),
    "kl": ("js", ["transition_only", "hessian_only"]),
    "gamma": (1.0, ["transition_only", "hessian_only", "kl_only"]),
    "gate": ("none", ["no_gate", "uniform_gate"]),
    "interactions": (True, ["gs", "transition_only", "kl_only"]),
}


@pytest.mark.parametrize(("option", "variant"), [(name, v) for name, (_, refuse) in UNUSED.items() for v in refuse])
def test_an_option_without_effect_on_a_variant_is_warned_of(option: str, variant: str) -> None:
    value = UNUSED[option][0]
    make: Any = Heta
    own = {"layers": 1} if variant.startswith("ls") else {}
    with pytest.warns(UserWarning, match=f"^{option}={value!r} has no effect with variant='.*'"):
        method = make(**{"variant": variant, option: value} | own)
    assert (method.unused_options, getattr(method, option)) == ((option,), value)
    others = [make(variant=name, layers=1 if "ls" in name else None) for name in VARIANTS]
    allowed = next(
        other for other in others if option not in other.without_effect and other.variant not in UNUSED[option][1]
    )
    assert getattr(replace(allowed, **{option: value}), option) == value


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"variant": "ls"}, ValueError, "variant='ls' needs layers="),
        ({"variant": "win", "overlap": 1}, ValueError, "overlap=1 must be below 1"),
        ({"variant": "win", "window_mode": "freeze"}, ValueError, "did you mean 'frozen'"),
        ({"interactions": True, "variant": "win"}, ValueError, "interactions=True does not go with variant='win'"),
        ({"beta": 0, "gamma": 0}, ValueError, "leave nothing to score"),
        ({"variant": "transition_only", "gate": "uniform"}, ValueError, "gate='uniform' gives every token the same sc"),
    ],
)
def test_wrong_options_are_refused_before_the_model_runs(
    options: dict[str, Any], error: type[Exception], message: str, forwards: Any
) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    cache = cache_of(model, ids)
    runs = forwards(model)
    with pytest.raises(error, match=message) as raised:
        heta_lens.attribute(cache, TARGET, tokens=ids, **options)
    assert len(str(raised.value).splitlines()) == 1
    assert not runs


@pytest.mark.parametrize(
    ("options", "target", "message"),
    [
        ({"variant": "ls", "layers": 3}, TARGET, "layers=3 is more than the 2 layers this model has"),
        ({"variant": "gn"}, (7, 9), r"variant='gn' gives every target the same scores, .* the contrast"),
        ({"variant": "gn", "information": "target"}, (7, 9), "variant='gn' is the curvature of log p of one token"),
        ({"variant": "win", "window_mode": "chunk"}, TARGET, "window_mode='chunk' .* hooks"),
    ],
)
def test_what_a_model_or_target_cannot_do_is_refused_before_any_work(
    options: dict[str, Any], target: Any, message: str, forwards: Any
) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    identity = [("unembed.hook_out", lambda live, hook: live)]  # noqa: ARG005
    with model.hooks(fwd_hooks=identity) if "chunk" in message else nullcontext():
        prediction = predict(model, ids, target)
        runs = forwards(model)
        with pytest.raises(ValueError, match=message) as raised:
            Heta(**options)(prediction)
        assert not runs
    assert len(str(raised.value).splitlines()) == 1
