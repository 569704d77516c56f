"""Functions of the logits as targets: called row by row, and refused in one sentence where they are no g."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import cache_of, explain, predict, relative
from helpers.refusing import missing, refusal
from heta_lens import METHODS, Prediction, attribute, attribute_batch, attribute_span
from heta_lens.prediction.target import called, check_connected, check_scale, values_of

N = 6


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


# ------------------------------------------------------------------------------------------------- calling it
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


def test_a_constant_on_one_side_of_a_condition_has_no_slope_there() -> None:
    logits = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    values = values_of(lambda row: row[0] ** 2 if row[0] > 0 else torch.tensor(3.0), logits)
    assert values.tolist() == [1, 3]
    assert torch.autograd.grad(values.sum(), logits)[0].tolist() == [[2, 0], [0, 0]]
    flat = values_of(lambda row: row[0] ** 2 if row[0] > 9 else torch.tensor(3.0), logits)
    assert torch.autograd.grad(flat.sum(), logits)[0].tolist() == [[0, 0], [0, 0]]


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


# ---------------------------------------------------------------------------------------------- what is refused
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


@pytest.fixture
def cache() -> Any:
    model = zoo.bridge("gpt2")
    return cache_of(model, zoo.prompt(model, N))


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
def test_a_method_of_ones_own_that_takes_gradients_gets_no_silent_zeros(cache: Any) -> None:
    def slope(prediction: Prediction) -> Tensor:
        leaf = prediction.embeddings.clone().requires_grad_()
        return torch.autograd.grad(prediction.objective_from(0)(leaf), leaf)[0].norm(dim=-1)

    assert "no gradient by the logits" in refusal(cache, lambda logits: logits[7].detach(), method=slope)
    assert attribute(cache, margin, method=slope).scores.all()


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
def test_a_gradient_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="a gradient by the logits that is not finite"):
        check_connected(lambda logits: (logits[1] - logits[1]).sqrt(), torch.randn(4))


@pytest.mark.usefixtures("unchecked")
def test_a_backward_pass_that_raises_is_refused() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: Tensor) -> Tensor:  # noqa: ARG004
            return logits.sum()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
            raise NotImplementedError("no such\nthing")

    with pytest.raises(ValueError, match=r"cannot be differentiated: 'no such'; avoid"):
        check_connected(lambda logits: Broken.apply(logits), torch.randn(4))


def test_running_out_of_memory_stays_what_it_is() -> None:
    def greedy(logits: Tensor) -> Tensor:  # noqa: ARG001
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        called(greedy, torch.zeros(3))


# ------------------------------------------------------------------------------------------------------- scales
@pytest.mark.usefixtures("unchecked")
def test_a_scale_that_was_chosen_is_refused(cache: Any) -> None:
    for method in ("integrated_gradients", "kernel_shap", "causal_tracing", "context_cite", "progressive_inference"):
        for scale in ("logit", METHODS[method]().scale):
            said = refusal(cache, margin, method=method, scale=scale)
            assert missing([f"scale='{scale}'", "no effect", "target=margin", "leave it out"], said) == ""


def test_a_default_scale_is_no_choice() -> None:
    check_scale(margin, "prob", "prob")
    check_scale(7, "logit", "prob")
    with pytest.raises(ValueError, match="scale='logit' has no effect with the function target=margin"):
        check_scale(margin, "logit", "prob")


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
