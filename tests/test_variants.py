"""Cheaper variants against the oracles of what they stand for, and all variants against what must not matter."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import variant_oracles as variants
from asking import (
    cache_of,
    doubts_allowed,
    explain,
    plain_embeddings,
    plain_log_probs,
    predict,
    relative,
    signs,
    start_together,
)
from test_curvature import named
from test_families import tolerance
from torch import Tensor

import heta_lens
import heta_lens.prompt
import oracles
import zoo
from heta_lens import Heta
from heta_lens.batches import Batches
from heta_lens.cached import Activations
from heta_lens.hessian import Columns, gauss_newton, hessian
from heta_lens.lens import Lens
from heta_lens.prediction import predictions
from heta_lens.variants import VARIANTS, Variant

TARGET, N, PROBES, D = 7, 4, 3, 8
OWN: dict[str, dict[str, Any]] = {  # what each variant needs or should be given on a short prompt
    "full": {"probes": 2},
    "lr": {"rank": 3, "probes": 2},
    "ls": {"layers": 1, "probes": 2},
    "win": {"window": 3, "window_gate": "per_window", "probes": 2},
    "lr+win": {"window": 3, "rank": 3, "probes": 2},
    "ls+win": {"window": 3, "layers": 1, "probes": 2, "window_mode": "chunk", "window_gate": "per_window"},
    "gs": {},
    "gn": {"probes": 2},
    "transition_only": {},
    "hessian_only": {"probes": 2},
    "kl_only": {},
    "no_gate": {"probes": 2},
    "uniform_gate": {"probes": 2},
}
CHEAPER = [name for name, terms in VARIANTS.items() if terms.cheaper]
SEVERAL = "bridge-(gpt2|llama|native)|hooked-(rotary_gqa|parallel)"


def found(model: Any, ids: Tensor, variant: str, target: Any = TARGET, **options: Any) -> Any:
    return explain(model, ids, target, variant=variant, **OWN[variant] | options)


def dense(log_probs: Callable[[Tensor], Tensor], at: Tensor) -> oracles.Hessian:
    return oracles.dense_hessian(lambda e: log_probs(e)[TARGET], at, functional=True)


def check_norms(bent: Tensor, close: float, curvature: Callable[..., Tensor]) -> None:
    """``curvature`` by every norm and support, against the dense matrix it should be of."""
    probes = signs(0, PROBES, *bent.shape[:2])
    for options, expected in (
        ({"probes": PROBES}, oracles.block_l1(bent, probes).mean(0)),
        ({"probes": PROBES, "support": "row"}, oracles.row_l1(bent, probes).mean(0)),
        ({"norm": "entrywise"}, oracles.entrywise_block(bent)),
        ({"norm": "entrywise", "support": "row"}, oracles.entrywise_row(bent)),
    ):
        assert relative(curvature(**options), expected) < close, options


@contextmanager
def forbidding(model: Any, token: int) -> Iterator[None]:
    """A hook that makes one token impossible."""

    def forbid(live: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        return live.index_fill(-1, torch.tensor([token]), -torch.inf)

    with model.hooks(fwd_hooks=[("unembed.hook_out", forbid)]):
        yield


def test_every_variant_is_tested_here() -> None:
    assert OWN.keys() == VARIANTS.keys()
    assert CHEAPER == ["lr", "ls", "win", "lr+win", "ls+win", "gs", "gn"]


# -------------------------------------------------------------------------------------------------- the last layers
@pytest.mark.parametrize(("name", "build"), named(""))
def test_the_last_layers_equal_the_hessian_of_the_stream_that_enters_them(name: str, build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    log_probs, at = variants.log_probs_of_stream(model, ids, 1), variants.stream(model, ids, 1)
    direction = signs(0, 1, N, D)[0]
    product = torch.as_tensor(torch.autograd.functional.hvp(lambda e: log_probs(e)[TARGET], at, direction)[1])
    how = {"gamma": 0, "support": "row", "probes": 1}
    last = explain(model, ids, TARGET, variant="ls", layers=1, **how)
    assert relative(last.parts["curvature"], product.abs().sum(1)) < tolerance(name)
    full, every = (explain(model, ids, TARGET, **how, **own) for own in ({}, {"variant": "ls", "layers": 2}))
    assert relative(every.scores, full.scores) < 1e-9
    assert relative(last.scores, full.scores) > 1e-3


@pytest.mark.parametrize(("name", "build"), named("bridge-(gpt2|llama)|hooked-rotary_gqa"))
def test_any_of_the_last_layers_and_any_norm_equal_the_oracle(name: str, build: Any) -> None:
    model = build(n_layers=3)
    ids = zoo.prompt(model, N)
    for layers in (1, 2):
        stream = 3 - layers
        bent = dense(variants.log_probs_of_stream(model, ids, stream), variants.stream(model, ids, stream))
        last = partial(explain, model, ids, TARGET, variant="ls", gamma=0, layers=layers)
        check_norms(bent, tolerance(name), lambda last=last, **how: last(**how).parts["curvature"])


def test_information_and_gate_know_nothing_of_the_last_layers() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    full, last = found(model, ids, "full"), found(model, ids, "ls")
    for name in ("gate", "information"):
        assert torch.equal(last.parts[name], full.parts[name])


@pytest.mark.parametrize("build", zoo.models("bridge-gpt2|hooked-rotary_gqa"))
@pytest.mark.parametrize("variant", ["ls", "ls+win"])
@pytest.mark.parametrize("hooked", [False, True])
def test_no_graph_is_built_below_the_last_layers(
    build: Any, variant: str, hooked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, layers = build(n_layers=3), 2
    ids = zoo.prompt(model, 6)
    run, graphs = Lens.run, {layer: set() for layer in range(3)}
    monkeypatch.setattr(heta_lens.prompt, "TAIL", 1)

    def watched(lens: Lens, given: Any, hooks: Any = None, **how: Any) -> Any:
        hooks = dict(hooks or {})
        for layer in graphs:
            if lens.stream_name(layer) not in hooks:
                hooks[lens.stream_name(layer)] = lambda live, layer=layer: graphs[layer].add(live.requires_grad)
        return run(lens, given, hooks, **how)

    monkeypatch.setattr(Lens, "run", watched)
    identity = [("unembed.hook_out", lambda live, hook: live)]  # noqa: ARG005
    with model.hooks(fwd_hooks=identity) if hooked else nullcontext():
        for mode in ("frozen", "chunk") if variant == "ls+win" and not hooked else ("frozen",):
            own = {"layers": layers} | ({"window": 3, "window_mode": mode} if "win" in variant else {})
            explain(model, ids, TARGET, variant=variant, probes=2, **own)
    assert graphs[0] == graphs[1] == {False}
    assert True in graphs[2]


# ------------------------------------------------------------------------------------ Gauss–Newton, squared gradient
@pytest.mark.parametrize(("name", "build"), named(SEVERAL))
def test_gauss_newton_equals_the_oracle(name: str, build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    bent = variants.gauss_newton(plain_log_probs(model, ids), plain_embeddings(model, ids))
    asked = partial(explain, model, ids, TARGET, variant="gn", gamma=0)
    check_norms(bent, tolerance(name), lambda **how: asked(**how).parts["curvature"])
    assert relative(bent, dense(plain_log_probs(model, ids), plain_embeddings(model, ids))) > 1e-2


def test_gauss_newton_does_not_know_the_target() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    one, other = (found(model, ids, "gn", target).parts for target in (7, 9))
    torch.testing.assert_close(one["curvature"], other["curvature"], rtol=1e-12, atol=0)


def test_an_impossible_token_does_not_bend_anything() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    with forbidding(model, 11):
        newton = explain(model, ids, TARGET, variant="gn", norm="entrywise")
        bent = variants.gauss_newton(plain_log_probs(model, ids), plain_embeddings(model, ids))
        assert relative(newton.parts["curvature"], oracles.entrywise_block(bent)) < 1e-8
        for variant in VARIANTS:
            own = {"window_mode": "frozen"} if "win" in variant else {}
            scores = found(model, ids, variant, **own).scores
            assert scores.isfinite().all() and scores.any(), variant
        for variant in CHEAPER:
            own = {"window_mode": "frozen"} if "win" in variant else {}
            for target in (11, (7, 11))[: 1 if variant == "gn" else 2]:
                with pytest.raises(ValueError, match=r"log p of the target .* is -inf"):
                    found(model, ids, variant, target, **own)


def columns(kind: Any, log_probs: Any, at: Tensor, start: int = 0, batch: int = 4) -> Columns:
    if kind is hessian:
        return hessian(lambda e: log_probs(e)[2], at[start:], Batches(batch), lambda _: None)
    return gauss_newton(log_probs, at[start:], Batches(batch), lambda _: None)


@pytest.mark.parametrize("batch", [1, 2, 99])
def test_gauss_newton_is_the_hessian_of_affine_logits(batch: int) -> None:
    generator = torch.Generator().manual_seed(0)
    slope, at = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((12, 5), (3, 4)))
    every = torch.eye(12, dtype=torch.float64).reshape(12, 3, 4)

    def affine(e: Tensor) -> Tensor:
        return (e.flatten() @ slope + torch.arange(5)).log_softmax(-1)

    def bent(e: Tensor) -> Tensor:
        return ((e.flatten() @ slope).tanh() + torch.arange(5)).log_softmax(-1)

    newton, exact = (columns(kind, affine, at, batch=batch)(slice(None), every) for kind in (gauss_newton, hessian))
    torch.testing.assert_close(newton, exact, rtol=1e-10, atol=1e-13)
    newton, exact = (columns(kind, bent, at, batch=batch)(slice(None), every) for kind in (gauss_newton, hessian))
    assert relative(newton, exact) > 0.1
    torch.testing.assert_close(newton.reshape(12, 3, 4), variants.gauss_newton(bent, at).reshape(12, 3, 4))
    assert torch.linalg.eigvalsh(newton.reshape(12, 12)).max() < 1e-12  # a maximum wherever it is one
    one = columns(gauss_newton, bent, at, batch=batch)(1, every[4:8, 1])
    torch.testing.assert_close(one, newton[4:8])


def test_gauss_newton_counts_each_product_once_and_no_more_than_a_batch_at_a_time() -> None:
    counted: list[int] = []
    at = torch.ones(2, 3, dtype=torch.float64)
    products = gauss_newton(lambda e: e.flatten().sin().log_softmax(-1), at, Batches(2), counted.append)
    products(0, torch.eye(3, dtype=torch.float64))
    assert counted == [2, 1]
    constant = gauss_newton(lambda e: (0 * e.flatten()).log_softmax(-1), at, Batches(2), counted.append)
    assert not constant(slice(None), torch.ones(1, 2, 3, dtype=torch.float64)).any()


@pytest.mark.parametrize(("name", "build"), named(""))
def test_the_squared_gradient_equals_the_oracle(name: str, build: Any) -> None:
    model = build()
    ids, log_probs = zoo.prompt(model, 6), plain_log_probs(build(), zoo.prompt(build(), 6))
    expected = variants.squared_gradient(lambda e: log_probs(e)[TARGET], plain_embeddings(model, ids))
    squared = found(model, ids, "gs", gamma=0)
    assert relative(squared.parts["curvature"], expected) < (1e-10 if tolerance(name) < 1e-6 else tolerance(name))
    assert set(squared.standard_errors.values()) == {None}


def test_the_squared_gradient_of_a_contrast_and_a_position() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 7)
    log_probs, at = plain_log_probs(model, ids[:, :5]), plain_embeddings(model, ids[:, :5])
    expected = variants.squared_gradient(lambda e: log_probs(e)[7] - log_probs(e)[9], at)
    assert relative(found(model, ids, "gs", (7, 9), position=5).parts["curvature"], expected) < 1e-10


# ---------------------------------------------------------------------------------------------- identities of Eq. 4
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama|native)|hooked-rotary_gqa"))
def test_without_a_gate_and_with_a_uniform_one_everything_ranks_alike(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 6)
    free, uniform = (found(model, ids, variant).scores for variant in ("no_gate", "uniform_gate"))
    assert torch.equal(free.argsort(), uniform.argsort())
    torch.testing.assert_close(free / free.sum(), uniform / uniform.sum(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("variant", [name for name, terms in VARIANTS.items() if terms.weights is None])
def test_scaling_both_weights_scales_the_score_of_every_variant(variant: str) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)
    once, thrice = found(model, ids, variant, beta=0.2, gamma=0.6), found(model, ids, variant, beta=0.6, gamma=1.8)
    torch.testing.assert_close(3 * once.scores, thrice.scores, rtol=1e-12, atol=0)
    gate, curvature, information = (once.parts[part] for part in ("gate", "curvature", "information"))
    torch.testing.assert_close(once.scores, gate * (0.2 * curvature + 0.6 * information), rtol=1e-12, atol=0)


# ------------------------------------------------------------------------------------------- what must not matter
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|native)"))
@pytest.mark.parametrize("variant", CHEAPER)
@pytest.mark.usefixtures("unchecked")
def test_neither_batch_nor_chunk_nor_reuse_matters_to_any_variant(
    build: Any, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build()
    ids = zoo.prompt(model, 7)
    monkeypatch.setattr(heta_lens.prompt, "TAIL", 2)
    own = {"window_mode": "frozen"} if "win" in variant else {}
    expected = found(model, ids, variant, **own)
    identity = [("unembed.hook_out", lambda live, hook: live)]  # noqa: ARG005
    with model.hooks(fwd_hooks=identity):
        whole = found(model, ids, variant, **own)
    assert whole.diagnostics["prefix_reuse"].startswith("off")
    assert relative(whole.scores, expected.scores) < 1e-5
    for batch, chunk in ((1, 1000), (1000, 2)):
        start_together(monkeypatch, chunk)
        assert relative(found(model, ids, variant, batch=batch, **own).scores, expected.scores) < 1e-5


@pytest.mark.parametrize("variant", CHEAPER)
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama)"))
def test_coarser_weights_give_finite_scores_near_those_of_finer_ones(build: Any, variant: str) -> None:
    ids = zoo.prompt(build(), 6)
    exact = found(build(), ids, variant)
    for dtype, close in ((torch.float32, 1e-3), (torch.bfloat16, 0.5)):
        coarse = found(build(dtype), ids, variant)
        assert coarse.scores.dtype == torch.float32
        assert coarse.scores.isfinite().all() and (coarse.scores >= 0).all() and coarse.scores.any()
        assert relative(coarse.scores, exact.scores) < close


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_single_token_can_be_explained_by_every_variant(variant: Variant) -> None:
    model = zoo.bridge("gpt2")
    one = found(model, zoo.prompt(model, 1), variant)
    assert one.scores.shape == (1,) and one.scores.isfinite().all() and one.scores.all()
    if not VARIANTS[variant].cheaper or "lr" in variant or variant == "win":
        rank = {"rank": 8} if "lr" in variant else {}
        whole = found(model, zoo.prompt(model, 1), "full").parts
        for name, part in found(model, zoo.prompt(model, 1), variant, **rank).parts.items():
            assert relative(part, whole[name]) < 1e-9, name


@pytest.mark.parametrize("variant", CHEAPER)
def test_what_comes_after_the_position_does_not_matter_to_any_variant(variant: str) -> None:
    model = zoo.bridge("gpt2")
    ids, other = zoo.prompt(model, 8), zoo.prompt(model, 8, seed=1)
    other[0, :5] = ids[0, :5]
    target = TARGET if variant == "gn" else (7, 9)
    alone = found(model, ids[:, :5], variant, target)
    for prompt in (ids, other):
        assert relative(found(model, prompt, variant, target, position=5).scores, alone.scores) < 1e-9


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_target_of_a_prompt_is_explained_as_if_it_were_alone(variant: Variant) -> None:
    model = zoo.hooked("gpt2") if zoo.HAS_HOOKED else zoo.bridge("gpt2")
    ids = zoo.prompt(model, 7)
    cache = model.run_with_cache(ids)[1]
    lens = Lens.of(cache)
    with lens.undisturbed():
        cached = Activations.of(cache)
        asked = predictions(lens, cached, {3: 7, 6: 9}, tokens=ids, follow=True)
    with doubts_allowed():
        results = Heta(variant=variant, **OWN[variant]).each(asked)
    for result, n, target in zip(results, (3, 6), (7, 9), strict=True):
        alone = found(model, ids[:, :n], variant, target)
        assert relative(result.scores, alone.scores) < 1e-9
        assert result.parts.keys() == alone.parts.keys()


# ---------------------------------------------------------------------------------------------- what is refused
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
    accepting = (name for name, recipe in VARIANTS.items() if option not in recipe.unused(*(recipe.weights or (1, 1))))
    allowed = next(name for name in accepting if name not in UNUSED[option][1])
    assert getattr(make(**{"variant": allowed, option: value} | ({"layers": 1} if "ls" in allowed else {})), option)


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
        ({"variant": "hessian_only", "gamma": 0.5}, ValueError, "fixes beta and gamma"),  # which is the default
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
        ({"variant": "gn"}, (7, 9), r"variant='gn' cannot contrast: .*; use 'full'"),
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


# ------------------------------------------------------------------------------------------------------- presets
def test_the_papers_preset_is_what_is_done_without_one() -> None:
    paper, plain = Heta.preset("paper"), Heta()
    for field in fields(Heta):
        assert getattr(paper, field.name) == getattr(plain, field.name), field.name


def test_the_released_preset_is_the_released_code() -> None:
    released, plain = Heta.preset("released"), Heta()
    expected = {"variant": "win", "flow": "prefix_head", "window_mode": "chunk", "window_gate": "per_window"}
    for field in fields(Heta):
        assert getattr(released, field.name) == expected.get(field.name, getattr(plain, field.name)), field.name


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


def test_a_preset_explains_as_its_options_do() -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, 6), TARGET)
    with doubts_allowed():
        preset = Heta.preset("released", window=4, probes=2)(prediction)
        spelled = Heta(
            variant="win", flow="prefix_head", window_mode="chunk", window_gate="per_window", window=4, probes=2
        )(prediction)
    assert torch.equal(preset.scores, spelled.scores)
    assert preset.options["window_mode"] == "chunk"


@pytest.mark.usefixtures("unchecked")
def test_numbers_of_any_kind_become_plain_ones() -> None:
    made = Heta(seed=torch.tensor(3), probes=np.int64(2), beta=Fraction(1, 2), variant="win", window=torch.tensor(4))
    assert (made.seed, made.probes, made.beta, made.window) == (3, 2, 0.5, 4)
    assert {type(value) for value in (made.seed, made.probes, made.window)} == {int}
    assert type(made.beta) is float
