"""Targets: tokens, texts, contrasts, sets and functions of the logits, and the refusals of all others."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import TARGET, N, cache_of, missing, predict, refusal
from helpers.odd_models import hooked
from heta_lens import METHODS, attribute, attribute_batch, attribute_span

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("Paris!", ["'Paris!'", "not a single token", "'Par', 'is', '!'"]),
        ("", ["empty"]),
        (121, ["target=121", "not a token id", "0 to 120"]),
        (3.0, ["target=3.0", "token id", "text", "pair"]),
        ((1, 2, 3), ["(1, 2, 3)", "pair (a, b)"]),
        ((5, 5), ["(5, 5)", "itself"]),
        (set(), ["an empty set"]),
        ({5, 121}, ["target=121", "0 to 120"]),
        ({5, frozenset((6, 7))}, ["frozenset", "token id"]),
        ([5, 6], ["[5, 6]", "set {a, b}", "targets="]),
        (({5, 6}, {6, 7}), ["itself"]),
        ((len, 5), ["a function in a pair", "return the difference"]),
    ],
    ids=repr,
)
def test_a_target_that_is_no_token_is_named(cache: Any, target: Any, words: list[str]) -> None:
    assert missing(words, refusal(cache, target)) == ""


def test_a_set_holds_each_token_once_however_it_is_given(cache: Any) -> None:
    """As an id or as text, and as another spelling where it is the only one that there is."""
    cat = attribute(cache, " cat", variant="gs").target
    for given in ({" cat"}, {" cat", cat}, frozenset((cat,)), {torch.tensor(cat), " cat"}):
        assert attribute(cache, given, variant="gs").target == cat
    several = attribute(cache, {" cat", 7, 9}, variant="gs")
    assert several.target == frozenset((cat, 7, 9))
    assert attribute(cache, ({" cat"}, {7, 9}), variant="gs").target == (cat, frozenset((7, 9)))
    assert several.target_text == "any of " + ", ".join(
        repr(cache.model.tokenizer.decode([token])) for token in sorted((cat, 7, 9))
    )


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("names_filter", [None, heta_lens.names_filter], ids=["full", "filtered"])
def test_a_target_the_model_makes_impossible_is_named_and_all_others_can_be_explained(
    ids: Tensor, names_filter: Any
) -> None:
    model = zoo.bridge("gpt2")

    def forbid(logits: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        return logits.index_fill(-1, torch.tensor([TARGET]), -torch.inf)

    with model.hooks(fwd_hooks=[("unembed.hook_out", forbid)]):
        taken = model.run_with_cache(ids, names_filter=names_filter)[1]
        assert missing([repr(model.tokenizer.decode([TARGET])), "log p", "-inf"], refusal(taken)) == ""
        assert attribute(taken, TARGET + 1).scores.isfinite().all()


@pytest.mark.parametrize(
    ("position", "words"),
    [
        (N, [f"position={N}", "outside", f"{N} tokens"]),
        (-N - 1, [f"position={-N - 1}", "outside", f"{N} tokens"]),
        (0, ["position=0", "first token", "nothing comes before"]),
        (-N, [f"position={-N}", "first token", "nothing comes before"]),
    ],
)
def test_a_position_without_context_is_named(cache: Any, position: Any, words: list[str]) -> None:
    assert missing(words, refusal(cache, None, position=position)) == ""


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
@pytest.mark.parametrize(("read", "written", "outside"), [(121, 10, 50), (121, 200, 200)], ids=["fewer", "more"])
def test_targets_are_what_a_model_writes_which_may_not_be_what_it_reads(
    read: int, written: int, outside: int, ids: Tensor
) -> None:
    model = hooked("HookedTransformer", d_vocab=read, d_vocab_out=written)
    taken = cache_of(model, ids)
    assert missing([f"target={outside}", "not a token id", f"0 to {written - 1}"], refusal(taken, outside)) == ""
    assert attribute(taken, written - 1, variant="kl_only").target == written - 1


def margin(logits: Tensor) -> Tensor:
    return logits[7] - logits[9]


class Square(torch.autograd.Function):
    """A function that autograd differentiates once, and wrongly a second time: its derivative looks constant."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        ctx.save_for_backward(logits)
        return logits.square().sum()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        (logits,) = ctx.saved_tensors
        return g * 2 * logits.detach()


class Once(Square):
    """One whose second derivative raises an error."""

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        (logits,) = ctx.saved_tensors
        return g * 2 * logits


WRONG: dict[str, tuple[Callable[[Tensor], Any], list[str]]] = {
    "float": (lambda logits: float(logits[7]), ["return a tensor"]),
    "int": (lambda logits: int(logits.argmax()), ["must return a tensor"]),
    "nothing": (lambda logits: None, ["gave None", "must return a tensor"]),  # noqa: ARG005
    "a vector": (lambda logits: logits, ["shape (100,)", "one real number"]),
    "one in a list": (lambda logits: logits[7:8], ["shape (1,)", "one real number"]),
    "whole": (lambda logits: logits.argmax(), ["torch.int64", "real number"]),
    "complex": (lambda logits: logits[7] + 1j, ["torch.complex128", "real number"]),
    "nan": (lambda logits: logits[7] * math.nan, ["gave nan", "must be finite"]),
    "infinite": (lambda logits: logits[7].exp() * math.inf, ["gave inf", "must be finite"]),
    "raises": (lambda logits: logits[10**6], ["raised IndexError", "out of bounds"]),
    "raises lines": (lambda logits: {}["a\nb"], ["raised KeyError"]),  # noqa: ARG005
    "two arguments": (lambda logits, other: logits[0], ["raised TypeError", "other"]),  # noqa: ARG005
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.usefixtures("unchecked")
def test_what_gives_no_number_is_refused_before_long_work(cache: Any, name: str, forwards: Any) -> None:
    function, words = WRONG[name]
    words = [word.replace("100", str(cache.model.cfg.d_vocab)) for word in words]
    for method in ("heta", "kernel_shap", "attention_last"):
        runs = forwards(cache.model)
        assert missing(["the function target=<lambda>", *words], refusal(cache, function, method=method)) == ""
        assert len(runs) == 1  # which checks the cache
    with pytest.raises((ValueError, TypeError), match="the function target=<lambda>"):
        attribute_span(cache, N - 2, targets=function)
    with pytest.raises((ValueError, TypeError), match=r"prompt 0 of the batch: the function target=<lambda>"):
        attribute_batch(cache, function)


DETACHED: dict[str, Callable[[Tensor], Tensor]] = {
    "detached": lambda logits: logits[7].detach(),
    "new": lambda logits: torch.tensor(logits.tolist()[7]),
    "compared": lambda logits: (logits[7] > logits[9]).float(),
    "of something else": lambda logits: torch.ones((), requires_grad=True) * 2,  # noqa: ARG005
}


@pytest.mark.parametrize("name", DETACHED)
@pytest.mark.usefixtures("unchecked")
def test_what_has_no_gradient_is_refused_where_one_is_taken_and_only_there(
    cache: Any, name: str, forwards: Any
) -> None:
    for method in ("heta", "integrated_gradients", "attn_lrp"):
        runs = forwards(cache.model)
        said = refusal(cache, DETACHED[name], method=method)
        assert missing(["the function target=<lambda>", "no gradient by the logits", ".detach()"], said) == "", method
        assert len(runs) == 1  # which checks the cache
    for options in ({"variant": "gs"}, {"variant": "win", "window": 4}):
        assert "no gradient by the logits" in refusal(cache, DETACHED[name], **options)
    for options in ({"method": "leave_one_out"}, {"method": "kernel_shap"}):
        assert attribute(cache, DETACHED[name], **options).scores.isfinite().all()


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_differentiated_twice_is_refused_by_the_curvature_only(cache: Any) -> None:
    for function in (Once.apply, Square.apply):
        said = refusal(cache, lambda logits, function=function: function(logits))
        assert missing(["the function target=<lambda>", "differentiated twice", "variant='gs'"], said) == ""
        for options in ({"variant": "gs"}, {"method": "input_x_gradient"}):
            given = attribute(cache, lambda logits, function=function: function(logits), **options)
            expected = attribute(cache, lambda logits: logits.square().sum(), **options)
            torch.testing.assert_close(given.scores, expected.scores)


@pytest.mark.usefixtures("unchecked")
def test_a_scale_that_was_chosen_is_refused(cache: Any) -> None:
    for method in ("integrated_gradients", "kernel_shap", "causal_tracing", "context_cite", "progressive_inference"):
        scale = "logit" if METHODS[method]().scale != "logit" else "prob"
        said = refusal(cache, margin, method=method, scale=scale)
        assert missing([f"scale='{scale}'", "no effect", "target=margin", "leave it out"], said) == ""


LENGTH, OTHER = 7, 9
SET = frozenset((TARGET, OTHER))


@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
@pytest.mark.parametrize("scale", ["log_prob", "prob", "logit", "log_odds"])
def test_a_set_reads_as_computed_by_hand(build: Callable[..., Any], scale: Any) -> None:
    model = build()
    ids = zoo.prompt(model, LENGTH)
    with torch.no_grad():
        logits = model(ids)[0, -1].tolist()
    total = math.fsum(map(math.exp, logits))

    def by_hand(tokens: Iterable[int]) -> float:
        mass = math.fsum(math.exp(logits[token]) for token in tokens)
        p = mass / total
        return {
            "log_prob": math.log(p),
            "prob": p,
            "logit": math.log(mass),
            "log_odds": math.log(mass)
            - math.log(math.fsum(math.exp(z) for t, z in enumerate(logits) if t not in tokens)),
        }[scale]

    prediction = predict(model, ids, SET)
    assert float(prediction.read(torch.tensor(logits, dtype=torch.float64), scale)) == pytest.approx(
        by_hand(SET), rel=1e-12
    )
    against = predict(model, ids, (SET, {20, 30}))
    expected = by_hand(SET) - by_hand({20, 30})
    assert float(against.read(torch.tensor(logits, dtype=torch.float64), scale)) == pytest.approx(expected, rel=1e-10)
    if scale == "log_prob":
        assert float(prediction.value) == pytest.approx(by_hand(SET), rel=1e-6)
        assert prediction.rerun().g(prediction.embeddings[None]).item() == pytest.approx(by_hand(SET), rel=1e-6)


def test_an_almost_certain_set_keeps_what_is_left_of_it() -> None:
    """In float32, ``1 - p`` of 1e-9 is lost from log-probabilities that are rounded before they are added."""
    model = zoo.bridge("gpt2", torch.float32)
    prediction = predict(model, zoo.prompt(model, LENGTH), {0, 1})
    logits = torch.full((5,), -20.0)
    logits[:2] = torch.tensor([0.1, -0.1])
    left = -float(prediction.objective(logits))
    assert left == pytest.approx(3 * math.exp(-20) / (math.exp(0.1) + math.exp(-0.1)), rel=1e-6)
