"""Which options of HETA contradict each other, and which have no effect."""

import re
from contextlib import nullcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import heta_lens
import heta_lens.prediction.prediction
from helpers import zoo
from helpers.asking import (
    cache_of,
    explain,
    predict,
)
from helpers.heta import TARGET, N, found
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
    "norm": ("exact", ["gs", "transition_only", "kl_only"]),
    "flow": ("direct", ["no_gate", "uniform_gate"]),
    "value_norm": (2, ["no_gate", "uniform_gate"]),
    "kl": ("js", ["transition_only", "hessian_only"]),
}


@pytest.mark.parametrize(("option", "variant"), [(name, v) for name, (_, refuse) in UNUSED.items() for v in refuse])
def test_an_option_without_effect_on_a_variant_is_warned_of(option: str, variant: str) -> None:
    value = UNUSED[option][0]
    make: Any = Heta
    own = {"layers": 1} if variant.startswith("ls") else {}
    with pytest.warns(UserWarning, match=f"^{option}={value!r} has no effect with variant='.*'"):
        method = make(**{"variant": variant, option: value} | own)
    assert (method.unused_options, getattr(method, option)) == ((option,), value)
    accepting = (
        name for name, recipe in VARIANTS.items() if option not in Heta().unused_with(recipe, recipe.weights or (1, 1))
    )
    allowed = next(name for name in accepting if name not in UNUSED[option][1])
    assert getattr(make(**{"variant": allowed, option: value} | ({"layers": 1} if "ls" in allowed else {})), option)


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [("probes", 3, " (which has no curvature)"), ("window", 9, "")],
    ids=["probes", "window"],
)
def test_only_options_of_the_curvature_have_no_effect_for_its_sake(option: str, value: int, reason: str) -> None:
    said = f"{option}={value} has no effect with variant='kl_only'{reason}"
    with pytest.warns(UserWarning, match=f"^{re.escape(said)}$"):
        Heta(variant="kl_only", **{option: value})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"variant": "ls"}, ValueError, "variant='ls' needs layers="),
        ({"variant": "ls+win"}, ValueError, r"variant='ls\+win' needs layers="),
        ({"variant": "ls", "layers": 0}, ValueError, "layers=0 must be at least 1"),
        ({"variant": "ls", "layers": 1.5}, TypeError, "layers=1.5 must be a whole number"),
        ({"variant": "ls", "layers": True}, TypeError, "layers=True must be a whole number"),
        ({"variant": "lr", "rank": 0}, ValueError, "rank=0 must be at least 1"),
        ({"variant": "lr", "rank": -3}, ValueError, "rank=-3 must be at least 1"),
        ({"variant": "lr", "rank": "all"}, TypeError, "rank='all' must be a whole number"),
        ({"variant": "win", "overlap": 1}, ValueError, "overlap=1 must be below 1"),
        ({"variant": "win", "overlap": 1.5}, ValueError, "overlap=1.5 must be below 1"),
        ({"variant": "win", "overlap": -0.1}, ValueError, "overlap=-0.1 must be at least 0"),
        ({"variant": "win", "overlap": float("nan")}, ValueError, "overlap=nan must be at least 0"),
        ({"variant": "win", "overlap": "half"}, TypeError, "overlap='half' must be a number"),
        ({"variant": "win", "window": 1}, ValueError, "window=1 must be at least 2"),
        ({"variant": "win", "window": 4.0}, TypeError, "window=4.0 must be a whole number"),
        ({"variant": "win", "window_mode": "freeze"}, ValueError, "did you mean 'frozen'"),
        ({"variant": "win", "window_gate": "local"}, ValueError, "window_gate='local' is not one of"),
        ({"variant": "l"}, ValueError, "variant='l' is not one of 'full', 'lr'"),
        ({"interactions": True, "variant": "win"}, ValueError, "interactions=True does not go with variant='win'"),
        ({"interactions": True, "support": "row"}, ValueError, "interactions=True does not go with support='row'"),
        (
            {"interactions": True, "variant": "kl_only"},
            ValueError,
            "does not go with variant='kl_only'",
        ),
        (
            {"interactions": True, "beta": 0},
            ValueError,
            "interactions=True does not go with variant='full' and beta=0",
        ),
        ({"variant": "gs", "beta": 0}, ValueError, "is about the curvature, which beta=0 leaves out"),
        ({"interactions": "yes"}, TypeError, "interactions='yes' must be True or False"),
        ({"audit": 2}, TypeError, "audit=2 must be True or False"),
        ({"interactions": 1}, TypeError, "interactions=1 must be True or False"),
        ({"variant": "hessian_only", "gamma": 1.0}, ValueError, "fixes beta and gamma"),
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
        ({"variant": "ls+win", "layers": 99}, TARGET, "layers=99 is more than the 2 layers this model has"),
        ({"variant": "gn"}, (7, 9), r"variant='gn' gives every target the same scores, .* the contrast"),
        ({"variant": "gn", "information": "target"}, (7, 9), "variant='gn' is the curvature of log p of one token"),
        ({"variant": "win", "window_mode": "chunk"}, TARGET, "window_mode='chunk' .* hooks"),
        ({"variant": "lr", "norm": "exact", "support": "row"}, TARGET, "norm='exact' visits all 2\\^32 sign vectors"),
        (
            {"variant": "win", "norm": "exact", "support": "row", "window": 3},
            TARGET,
            "norm='exact' visits all 2\\^24 sign vectors",
        ),
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


def test_the_exact_norm_of_rows_is_possible_in_windows_that_are_small_enough() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    exact = explain(model, ids, TARGET, variant="win", window=2, norm="exact", support="row", gamma=0)
    assert exact.scores.isfinite().all()
    with pytest.raises(ValueError, match="sign vectors"):
        explain(model, ids, TARGET, variant="win", window=2, norm="exact", support="row", window_mode="restrict")


def test_hooks_do_not_forbid_chunks_to_a_variant_without_windows() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    with model.hooks(fwd_hooks=[("unembed.hook_out", lambda live, hook: live)]):  # noqa: ARG005
        for mode in ("frozen", "restrict"):
            assert found(model, ids, "win", window_mode=mode).scores.isfinite().all()


@pytest.mark.usefixtures("unchecked")
def test_presets_can_be_changed_and_are_checked_like_other_options() -> None:
    changed = Heta.preset("released", window=8, window_gate="global", beta=0.1)
    assert (changed.window, changed.window_gate, changed.beta, changed.flow) == (8, "global", 0.1, "prefix_head")
    assert Heta.preset("paper", variant="lr", rank=2).rank == 2
    assert Heta.preset("released").window_gate == "per_window"  # as before
    with pytest.raises(ValueError, match=r"preset='relased' is not one of 'paper', 'released' \(did you mean"):
        Heta.preset("relased")
    with pytest.warns(UserWarning, match="rank=2 has no effect with variant='win'"):
        Heta.preset("released", rank=2)
    with pytest.raises(TypeError, match="colour"):
        Heta.preset("paper", colour="red")


@pytest.mark.usefixtures("unchecked")
def test_numbers_of_any_kind_become_plain_ones() -> None:
    made = Heta(seed=torch.tensor(3), probes=np.int64(2), beta=Fraction(1, 2), variant="win", window=torch.tensor(4))
    assert (made.seed, made.probes, made.beta, made.window) == (3, 2, 0.5, 4)
    assert {type(value) for value in (made.seed, made.probes, made.window)} == {int}
    assert type(made.beta) is float
