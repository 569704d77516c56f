"""Targets: tokens, texts, contrasts, sets and functions of the logits, and the refusals of all others."""

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import TARGET, N, cache_of, explain, missing, predict, refusal, relative
from helpers.odd_models import hooked
from heta_lens import METHODS, attribute, attribute_batch, attribute_span
from heta_lens.prediction.target import on_scale, values_of

pytestmark = [
    pytest.mark.usefixtures("unchecked"),
]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("Paris!", ["'Paris!'", "not a single token", "'Par', 'is', '!'"]),
        ("", ["empty"]),
        (121, ["target=121", "not a token id", "0 to 120"]),
        (-1, ["target=-1", "not a token id", "0 to 120"]),
        (3.0, ["target=3.0", "token id", "text", "pair"]),
        (b"cat", ["target=b'cat'", "token id"]),
        (torch.tensor([1, 2]), ["token id", "pair"]),
        ((5,), ["(5,)", "pair (a, b)"]),
        ((1, 2, 3), ["(1, 2, 3)", "pair (a, b)"]),
        ((5, 5), ["(5, 5)", "itself"]),
        ((5, " cat!"), ["' cat!'", "not a single token"]),
        ((5, 121), ["121", "0 to 120"]),
        ((5, None), ["None", "token id"]),
        (((1, 2), 3), ["(1, 2)", "token id"]),
        (set(), ["an empty set"]),
        ((frozenset(), 5), ["an empty set"]),
        ({5, 121}, ["target=121", "0 to 120"]),
        ({" cat!"}, ["' cat!'", "not a single token"]),
        ({5, 2.5}, ["target=2.5", "token id"]),
        ({(1, 2), 3}, ["(1, 2)", "token id"]),
        ({5, frozenset((6, 7))}, ["frozenset", "token id"]),
        ({5: 0.5}, ["{5: 0.5}", "a set of these"]),
        ([5, 6], ["[5, 6] is a list", "set {a, b}"]),
        (set(range(121)), ["all 121 tokens"]),
        (({5, 6}, 5), ["on both sides"]),
        (({5, 6}, {6, 7}), ["on both sides"]),
        (({5}, 5), ["itself"]),
        (({5, 6}, {6, 5}), ["itself"]),
        ((len, 5), ["a function in a pair", "return the difference"]),
        (dict, ["target=dict is a class"]),
        (torch.nn.Linear, ["target=Linear is a class"]),
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


def test_a_set_that_is_possible_may_have_impossible_members(ids: Tensor) -> None:
    model = zoo.bridge("gpt2")

    def forbid(logits: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        return logits.index_fill(-1, torch.tensor([TARGET, TARGET + 1]), -torch.inf)

    with model.hooks(fwd_hooks=[("unembed.hook_out", forbid)]):
        taken = model.run_with_cache(ids)[1]
        said = refusal(taken, {TARGET, TARGET + 1})
        assert missing(["log p", "-inf", " or ", repr(model.tokenizer.decode([TARGET]))], said) == ""
        found = attribute(taken, {TARGET, TARGET + 2}, method="integrated_gradients", steps=2)
        assert found.scores.isfinite().all()
        torch.testing.assert_close(
            found.scores, attribute(taken, TARGET + 2, method="integrated_gradients", steps=2).scores
        )


def test_a_text_needs_a_tokenizer(ids: Tensor) -> None:
    model = zoo.bridge.__wrapped__("gpt2")
    model.tokenizer = None
    assert missing(["' cat'", "no tokenizer", "token id"], refusal(cache_of(model, ids), " cat")) == ""


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
        (1.5, ["position=1.5"]),
        ("3", ["position='3'"]),
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


def test_each_prediction_is_a_call_of_its_own() -> None:
    logits, shapes = torch.randn(2, 3, 5), []

    def noted(row: Tensor) -> Tensor:
        shapes.append(tuple(row.shape))
        return row[1] * row[2]

    torch.testing.assert_close(values_of(noted, logits), logits[..., 1] * logits[..., 2])
    assert shapes == [(5,)] * 6
    assert values_of(noted, logits[0, 0]).shape == ()


def test_a_function_may_change_what_it_gets_and_keep_its_own_dtype() -> None:
    logits = torch.randn(4, 5, requires_grad=True)

    def spoils(row: Tensor) -> Tensor:
        row[0] = -torch.inf
        return row.mul_(2).double().logsumexp(-1)

    before = logits.detach().clone()
    values = values_of(spoils, logits)
    assert values.dtype == logits.dtype
    values.sum().backward()
    assert torch.equal(logits.detach(), before)
    torch.testing.assert_close(values, (2 * before[:, 1:]).logsumexp(-1))
    assert logits.grad is not None and (logits.grad[:, 0] == 0).all() and (logits.grad[:, 1:] > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_real_not_normalised_and_float32_at_least(dtype: torch.dtype) -> None:
    model, seen = zoo.bridge("gpt2", dtype), []
    ids = zoo.prompt(model, N)

    def noted(logits: Tensor) -> Tensor:
        seen.append(logits.detach().clone())
        return margin(logits)

    explain(model, ids, noted, method="leave_one_out", effect="log_prob")
    with torch.no_grad():
        clean = model(ids)[0, -1].float()
    assert all(logits.shape == (model.cfg.d_vocab,) and logits.dtype == torch.float32 for logits in seen)
    assert relative(seen[0], clean) < 1e-5
    assert abs(float(seen[0].logsumexp(-1))) > 0.1
    assert len(seen) > N


def test_a_module_with_weights_is_a_function_and_stays_as_it_is() -> None:
    model = zoo.bridge("gpt2")
    probe = torch.nn.Linear(model.cfg.d_vocab, 1, dtype=torch.float64)

    class Probe(torch.nn.Module):
        def forward(self, logits: Tensor) -> Tensor:
            return probe(logits)[0].tanh()

    ids = zoo.prompt(model, N)
    for options in ({"probes": 2}, {"method": "integrated_gradients", "steps": 2}, {"method": "kernel_shap"}):
        found = explain(model, ids, Probe(), **options)
        assert found.scores.isfinite().all() and found.target_text == "Probe"
        plain = explain(model, ids, lambda logits: probe(logits)[0].tanh().clone(), **options)
        torch.testing.assert_close(found.scores, plain.scores)
    assert probe.weight.requires_grad and probe.weight.grad is None


WRONG: dict[str, tuple[Callable[[Tensor], Any], list[str]]] = {
    "float": (lambda logits: float(logits[7]), ["must return a tensor"]),
    "int": (lambda logits: int(logits.argmax()), ["must return a tensor"]),
    "nothing": (lambda logits: None, ["gave None", "must return a tensor"]),  # noqa: ARG005
    "a vector": (lambda logits: logits, ["shape (100,)", "one number"]),
    "one in a list": (lambda logits: logits[7:8], ["shape (1,)", "one number"]),
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
    for options in ({"method": "leave_one_out", "effect": "log_prob"}, {"method": "kernel_shap"}):
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
def test_a_function_that_fails_only_later_is_refused_in_the_same_words(cache: Any) -> None:
    clean = predict(cache.model, zoo.prompt(cache.model, N), 7).log_probs
    near = float(clean[7])

    def only_here(logits: Tensor) -> Tensor:
        value = logits.log_softmax(-1)[7]
        if abs(float(value.detach()) - near) > 1e-6:
            raise RuntimeError("somewhere else")
        return value

    for options in ({"method": "kernel_shap"}, {"method": "leave_one_out", "effect": "log_prob"}):
        said = refusal(cache, only_here, **options)
        assert missing(["the function target=only_here", "raised RuntimeError: 'somewhere else'"], said) == ""


@pytest.mark.usefixtures("unchecked")
def test_a_scale_that_was_chosen_is_refused(cache: Any) -> None:
    for method in ("integrated_gradients", "kernel_shap", "causal_tracing", "context_cite", "progressive_inference"):
        scale = "logit" if METHODS[method]().scale != "logit" else "prob"
        said = refusal(cache, margin, method=method, scale=scale)
        assert missing([f"scale='{scale}'", "no effect", "target=margin", "leave it out"], said) == ""


def test_batched_products_do_not_fall_back_to_one_by_one(cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many backward passes for a function as for a token."""
    grad, counted = torch.autograd.grad, []

    def noted(*args: Any, **options: Any) -> Any:
        counted.append(bool(options.get("is_grads_batched")))
        return grad(*args, **options)

    monkeypatch.setattr(torch.autograd, "grad", noted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attribute(cache, 7, probes=3)
        of_token = sum(counted)
        counted.clear()
        attribute(cache, lambda logits: logits.log_softmax(-1)[7], probes=3)
    assert sum(counted) == of_token > 0
    assert len(counted) < 40


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


def test_clean_logits_are_run_for_where_they_were_not_kept() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, LENGTH)

    def third(logits: Tensor) -> Tensor:
        return logits[3]

    kept, run = predict(model, ids, third), predict(model, ids, 5)
    assert [len(prediction.prompt.logits) for prediction in (kept, run)] == [1, 0]
    torch.testing.assert_close(kept.logits, run.logits)
    torch.testing.assert_close(kept.value, model(ids)[0, -1, 3].detach())


def test_a_target_has_a_text_and_words() -> None:
    model = zoo.bridge("gpt2")
    ids, text = zoo.prompt(model, LENGTH), [model.tokenizer.decode([token]) for token in (7, 9, 20)]
    pair = predict(model, ids, (SET, 20))
    assert pair.target_text == (f"any of {text[0]!r}, {text[1]!r}", text[2])
    assert pair.target_words == f"any of {text[0]!r}, {text[1]!r} rather than {text[2]!r}"
    assert repr(pair) == f"Prediction of {pair.target_words} after {LENGTH} tokens, by a TransformerBridge"


def test_the_odds_of_a_joint_probability() -> None:
    joint = torch.tensor([0.4, 0.6], dtype=torch.float64).log()
    assert float(on_scale(joint, 0, "log_odds")) == pytest.approx(math.log(0.4 / 0.6))


def test_the_odds_of_a_sure_thing_are_known_and_have_a_slope() -> None:
    logits = torch.tensor([90.0, 0.0, 0.0], requires_grad=True)
    odds = on_scale(logits, 0, "log_odds")
    odds.backward()
    assert odds.item() == pytest.approx(90 - math.log(2))
    assert logits.grad is not None and logits.grad.tolist() == [1, -0.5, -0.5]
