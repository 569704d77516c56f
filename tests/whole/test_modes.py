"""Modes of torch, precisions and compiled models: the scores are right, or refused in one sentence."""

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch

from helpers import zoo
from heta_lens import activation, attribute, causal

pytestmark = [
    pytest.mark.usefixtures("unchecked"),
    pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning"),
]

N, TARGET = 6, 7
METHODS = ["heta", "integrated_gradients", "leave_one_out", "attn_lrp", "attention_rollout"]
Mode = Callable[[], AbstractContextManager[Any]]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODES: dict[str, Mode] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast to bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
    "anomaly detection": torch.autograd.detect_anomaly,
    "saved tensors elsewhere": torch.autograd.graph.save_on_cpu,
    "default dtype float64": lambda: default_dtype(torch.float64),
    "default dtype bfloat16": lambda: default_dtype(torch.bfloat16),
    "default device": lambda: torch.device("meta"),  # in the place of an accelerator: not where the model is
}
WHILE_CACHING = [name for name in MODES if name != "default device"]  # the model itself does not run under that one


def scores(model: Any, method: str, *, caching: Mode = nullcontext, explaining: Mode = nullcontext) -> Any:
    ids = zoo.prompt(model, N)
    with caching():
        _, cache = model.run_with_cache(ids)
    with explaining():
        return attribute(cache, TARGET, tokens=ids, method=method, **({"probes": 2} if method == "heta" else {})).scores


def distance(found: Any, expected: Any) -> float:
    return float((found.double() - expected.double()).abs().max() / expected.abs().max())


@pytest.mark.sample(quick=3, test=16)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", zoo.NEW)
def test_a_mode_of_the_caller_changes_no_score(kind: str, method: str, mode: str) -> None:
    model = zoo.NEW[kind]()
    assert distance(scores(model, method, explaining=MODES[mode]), scores(model, method)) < 1e-12


@pytest.mark.sample(quick=2, test=8)
@pytest.mark.parametrize("mode", WHILE_CACHING)
@pytest.mark.parametrize("kind", zoo.NEW)
def test_a_mode_while_caching_changes_no_score_or_is_refused(kind: str, mode: str) -> None:
    model = zoo.NEW[kind]()
    expected = scores(model, "heta")
    try:
        found = scores(model, "heta", caching=MODES[mode])
    except ValueError as refusal:
        assert mode == "autocast to bfloat16" and "cache" in str(refusal) and "\n" not in str(refusal)  # noqa: PT017
    else:
        assert distance(found, expected) < 1e-12


TARGETS = {
    "function": lambda logits: logits[TARGET] - logits[9],
    "activation": activation("blocks.0.hook_resid_post", index=1),
}


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
@pytest.mark.parametrize("target", TARGETS)
def test_targets_whose_gradient_is_checked_first_have_the_same_scores(target: str, mode: str) -> None:
    model = zoo.NEW["llama"]()
    ids = zoo.prompt(model, N)
    _, cache = model.run_with_cache(ids)
    expected = attribute(cache, TARGETS[target], tokens=ids, probes=2).scores
    with MODES[mode]():
        assert attribute(cache, TARGETS[target], tokens=ids, probes=2).scores.equal(expected)


@pytest.mark.parametrize("kind", zoo.NEW)
def test_results_are_read_whatever_the_default_device_is(kind: str) -> None:
    model = zoo.NEW[kind]()
    ids = zoo.prompt(model, N)
    _, cache = model.run_with_cache(ids)
    found = attribute(cache, TARGET, tokens=ids, probes=3, combine="geometric")
    circuit = causal.components(cache, [2], TARGET, tokens=ids)
    expected = repr(circuit), found.interval()[0].tolist(), found.without([0]).scores.tolist()
    with torch.device("meta"):
        assert (repr(circuit), found.interval()[0].tolist(), found.without([0]).scores.tolist()) == expected


@pytest.mark.sample(quick=2, test=6)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-5), (torch.float16, 0.02), (torch.bfloat16, 0.12)], ids=str
)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", zoo.NEW)
def test_less_precision_costs_no_more_than_its_rounding(
    kind: str, method: str, dtype: torch.dtype, bound: float
) -> None:
    model = zoo.NEW[kind]()
    expected = scores(model, method)
    found = scores(model.to(dtype), method)
    assert found.dtype == torch.float32 and distance(found, expected) < bound


def compiled(model: Any) -> Any:
    return torch.compile(model, backend="aot_eager")


def compiled_in_place(model: Any) -> Any:
    model.compile(backend="eager")
    return model


def with_a_compiled_block(model: Any) -> Any:
    model.blocks[0].compile(backend="eager")
    return model


@pytest.mark.thorough
@pytest.mark.parametrize(
    "make", [compiled, with_a_compiled_block, pytest.param(compiled_in_place, marks=pytest.mark.nightly)]
)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_model_has_the_same_scores(make: Callable[[Any], Any]) -> None:
    torch.compiler.reset()
    model = zoo.NEW["llama"]()
    expected = scores(model, "heta")
    assert distance(scores(make(model), "heta"), expected) < 1e-12


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [kind for kind in zoo.NEW if kind != "hooked"])  # which has no dropout
def test_training_mode_is_refused(kind: str, method: str) -> None:
    model = zoo.NEW[kind]()
    ids = zoo.prompt(model, N)
    _, cache = model.run_with_cache(ids)
    model.train()
    with pytest.raises(ValueError, match=r"^the model is in training mode, .*: call model.eval\(\) first$"):
        attribute(cache, TARGET, tokens=ids, method=method)
    model.eval()
    assert len(attribute(cache, TARGET, tokens=ids, method=method)) == N
