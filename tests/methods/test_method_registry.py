"""What every method promises, whichever it is: METHODS × kinds of model × families."""

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import heta_lens
from helpers import ROOT, zoo
from helpers.asking import QUICK, doubts_allowed, explain, relative
from heta_lens import METHODS
from heta_lens.cli import app
from heta_lens.methods.base import Method, Work
from heta_lens.methods.registry import ALIASES, MethodRegistry

ALONE: dict[str, dict[str, Any]] = {"kernel_shap": {}, "shapiq": {}, "progressive_inference": {}}
"""Options with which a method explains a context of one token."""

FEWER = {
    *("lime", "kernel_shap", "context_cite"),  # what comes twice is run once
    *("reagent", "sea_cot"),  # which stop when they have found what they look for
    "sequential_integrated_gradients",  # what begins the text stays
}
"""Methods that may need fewer runs than they foresee."""

SEES_TARGET = {"peering"}
"""Methods that read the target as an input; their results say so."""

ELSEWHERE = {
    *("random", "recency"),  # the model is not asked
    *("peering", "grad_cam"),  # what a token's state is like, whoever reads it
    *("progressive_inference", "tdd"),  # what is predicted after each token, or after the last ones alone
    *("faml", "reagent"),  # a token that does nothing fades, with time
    "sea_cot",  # which words the model writes
}
"""Methods that do not ask what reaches the prediction, or not only."""

SURELY: dict[str, dict[str, Any]] = {
    **{name: {"source": "token", "ablate": "mask"} for name in ("arc_jsd", "attribot")},
    "kernel_shap": {},  # all coalitions
    "shapiq": {"source": "token", "ablate": "mask"},
    "lime": {"samples": 2000},
    "context_cite": {"source": "token", "ablate": "mask", "samples": 4000},
}
"""Options with which a method that estimates is hardly wrong."""

NEARLY = {"lime": 0.1, "context_cite": 0.1}
"""How far from nothing it may then be, of the largest score."""

WRITES = {"sea_cot"}
"""Methods that read and write text."""

MOVES = {"tdd", "reagent", "sea_cot", "depass"}
"""Methods that run other tokens, or the same ones elsewhere, or do what the model does."""

DEAF = {"random", "recency"}
"""Methods that do not ask the model."""

LINEAR = {
    *("integrated_gradients", "sequential_integrated_gradients", "discretized_integrated_gradients", "gradient_shap"),
    *("input_x_gradient", "attn_lrp", "gim", "depass", "lime", "kernel_shap", "shapiq", "progressive_inference"),
    "attribot",
}
"""Methods whose scores of a contrast are the difference of the scores of both tokens."""

N, TARGET = 9, 7
pytestmark = pytest.mark.usefixtures("few_words")
METHOD = pytest.mark.parametrize("method", METHODS)
MODEL = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


def asked(model: Any, method: str, **changes: Any) -> heta_lens.Attribution:
    return explain(model, zoo.prompt(model, N), TARGET, method=method, **QUICK.get(method, {}) | changes)


first_asked = lru_cache(asked)


@METHOD
def test_an_option_has_no_name_that_attribute_takes_itself(method: str) -> None:
    verbs = heta_lens.attribute, heta_lens.attribute_span, heta_lens.attribute_batch, heta_lens.estimate
    taken = {name for verb in verbs for name in inspect.signature(verb).parameters}
    assert not taken & {field.name for field in fields(METHODS[method])}


@METHOD
def test_the_table_and_the_documents_tell_of_it(method: str) -> None:
    listed = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["methods"]).output
    assert re.search(rf"^{method} .{{,400}}?\n +scores (±|≥ 0); cost ", listed, re.MULTILINE | re.DOTALL)
    reference, page = ((ROOT / "docs" / name).read_text() for name in ("reference_methods.rst", "methods.md"))
    assert method == "heta" or f"autoclass:: {METHODS[method].__module__}.{METHODS[method].__name__}\n" in reference
    summary = " ".join(inspect.cleandoc(METHODS[method].__doc__ or "").partition("\n\n")[0].split())
    assert method == "heta" or f"| `{method}` | {summary} |" in page
    assert {*re.findall(r"\b20\d\d\b", summary)} <= {*re.findall(r"20\d\d", getattr(METHODS[method], "paper", ""))}
    costs = f"\n\nCost: {METHODS[method].cost}." if method != "heta" else ""
    assert costs in (METHODS[method].__doc__ or "")
    heads = [line.split(": ")[0] for line in inspect.cleandoc(METHODS[method].__doc__ or "").splitlines()]
    listed = {name for head in heads if head.startswith("- ") for name in re.findall(r"``(\w+)``", head)}
    assert {field.name for field in fields(METHODS[method])} - {"progress"} == listed - {"progress"}


@pytest.mark.sample(quick=10, test=18)
@pytest.mark.slow
@METHOD
@MODEL
def test_there_is_a_finite_score_for_every_token_and_the_same_again(build: Callable[..., Any], method: str) -> None:
    if method == "gim" and zoo.hides_softmax(build):
        pytest.skip("refuses this model")
    model = build()
    torch.manual_seed(1)
    first = first_asked(model, method)
    torch.manual_seed(2)
    again = asked(model, method)
    assert first.scores.shape == (N,) and first.scores.isfinite().all()
    assert torch.equal(first.scores, again.scores)
    assert first.signed or (first.scores >= 0).all()
    assert first.scores.unique().numel() > 1
    assert first.method.startswith(method)


@pytest.mark.sample(quick=4, test=12)
@pytest.mark.slow
@METHOD
@MODEL
def test_nothing_at_or_after_the_target_is_read(build: Callable[..., Any], method: str) -> None:
    if method == "gim" and zoo.hides_softmax(build):
        pytest.skip("refuses this model")
    model, length = build(), N - 3
    ids = zoo.prompt(model, N)
    other = ids.clone()
    other[0, length:] = (ids[0, length:] + 7) % 90 + 4
    options = QUICK.get(method, {})
    found = explain(model, other, TARGET, method=method, position=length, **options)
    alone = explain(model, ids[:, :length], TARGET, method=method, **options)
    assert relative(found.scores, alone.scores) < 1e-6
    assert found.diagnostics.get("sees_target", False) == (method in SEES_TARGET)


@pytest.mark.sample(quick=4, test=12)
@pytest.mark.slow
@METHOD
@ONE_EACH
def test_a_cache_of_nothing_but_embeddings_is_enough(build: Callable[..., Any], method: str) -> None:
    if method == "heta":
        pytest.skip("reads attention off the cache")
    model = build()
    ids = zoo.prompt(model, N)
    _, cache = model.run_with_cache(ids, names_filter=["hook_embed"])
    with doubts_allowed():
        found = heta_lens.attribute(cache, TARGET, tokens=ids, method=method, **QUICK.get(method, {}))
    assert relative(found.scores, first_asked(model, method).scores) < 1e-9


@pytest.mark.sample(quick=4, test=12)
@pytest.mark.slow
@METHOD
@ONE_EACH
def test_the_callers_random_numbers_and_parameters_are_as_before(build: Callable[..., Any], method: str) -> None:
    model = build()
    flags = [parameter.requires_grad for parameter in model.parameters()]
    before, numbers = torch.get_rng_state(), np.random.get_state()[2]  # noqa: NPY002
    asked(model, method)
    assert torch.equal(torch.get_rng_state(), before) and np.random.get_state()[2] == numbers  # noqa: NPY002
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(point.fwd_hooks or point.bwd_hooks for point in model.hook_dict.values())


@pytest.mark.sample(quick=4, test=12)
@pytest.mark.slow
@METHOD
@ONE_EACH
def test_how_many_run_at_once_does_not_matter(build: Callable[..., Any], method: str) -> None:
    if "batch" not in {field.name for field in fields(METHODS[method])}:
        pytest.skip("runs one context only")
    sizes = (9, 40) if method == "sea_cot" else (1, 5)  # it takes many explanations to find a word, one by one too long
    one, some = (asked(build(), method, batch=batch).scores for batch in sizes)
    assert relative(one, some) < 1e-9


@pytest.mark.slow
@METHOD
@ONE_EACH
@pytest.mark.usefixtures("unchecked")
def test_what_it_cost_is_told(build: Callable[..., Any], method: str) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    prediction = heta_lens.Prediction.from_cache(model.run_with_cache(ids)[1], TARGET, tokens=ids)
    facts = first_asked(model, method).diagnostics
    assert facts["seconds"] > 0
    work = METHODS[method](**QUICK.get(method, {})).work(prediction)
    ran = Work(facts["forwards"], facts["backwards"], facts["hvps"])
    if method in FEWER:
        assert 0 < ran.forwards <= work.forwards and ran.backwards <= work.backwards
    else:
        assert ran == work


@pytest.mark.slow
@METHOD
@ONE_EACH
def test_a_contrast_is_explained_or_refused(build: Callable[..., Any], method: str) -> None:
    model = build()
    ids, options = zoo.prompt(model, N), QUICK.get(method, {})
    if "contrast" not in METHODS[method](**options).takes:
        with pytest.raises(ValueError, match=r"cannot contrast|cannot explain the contrast"):
            explain(model, ids, (TARGET, TARGET + 1), method=method, **options)
        return
    one, both = first_asked(model, method), explain(model, ids, (TARGET, TARGET + 1), method=method, **options)
    control = METHODS[method].family == "control"
    assert torch.equal(one.scores, both.scores) == control
    assert ("note" in both.diagnostics) == (method == "heta" or control)
    if method in LINEAR:
        other = explain(model, ids, TARGET + 1, method=method, **options)
        assert relative(both.scores, one.scores - other.scores) < 1e-6


@pytest.mark.slow
@METHOD
@ONE_EACH
def test_a_single_token_can_be_explained(build: Callable[..., Any], method: str) -> None:
    model = build()
    found = explain(model, zoo.prompt(model, 1), TARGET, method=method, **ALONE.get(method, QUICK.get(method, {})))
    assert found.scores.shape == (1,) and found.scores.isfinite().all()


@pytest.mark.slow
@METHOD
def test_coarse_weights_and_no_tokenizer_will_do(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("gpt2", torch.bfloat16)
    monkeypatch.setattr(model, "tokenizer", None)
    options = {"mask": "zero"} if "mask" in {field.name for field in fields(METHODS[method])} else {}
    if method in WRITES:
        with pytest.raises(ValueError, match="the model has no tokenizer"):
            asked(model, method, **options)
        return
    found = asked(model, method, **options)
    assert found.scores.isfinite().all() and found.scores.dtype == torch.float32


@pytest.mark.sample(quick=0, test=5)
@pytest.mark.slow
@METHOD
def test_hooks_of_the_users_stay_at_work_or_are_refused(method: str) -> None:
    model = zoo.bridge.__wrapped__("gpt2")
    model.add_hook("blocks.0.hook_resid_post", last_turned)
    if method in MOVES:
        with pytest.raises(ValueError, match="which hooks on the model were not made for: take them off"):
            asked(model, method)
    else:
        gap = relative(asked(model, method).scores, first_asked(zoo.bridge("gpt2"), method).scores)
        assert (gap > 1e-6) == (method not in DEAF)
    assert len(model.hook_dict["blocks.0.hook_resid_post"].fwd_hooks) == 1


def last_turned(activation: torch.Tensor, hook: Any) -> torch.Tensor:  # noqa: ARG001
    assert activation.shape[0] == 1
    return torch.cat([activation[:, :-1], -activation[:, -1:]], 1)


@pytest.mark.sample(quick=6)
@METHOD
@ONE_EACH
def test_results_are_kept_and_read_again(build: Callable[..., Any], method: str, tmp_path: Any) -> None:
    found = first_asked(build(), method)
    found.save(tmp_path / "found")
    again = heta_lens.Attribution.load(tmp_path / "found")
    assert torch.equal(again.scores, found.scores) and again.method == found.method and again.signed == found.signed
    assert {name: again.options[name] for name in QUICK.get(method, {})} == QUICK.get(method, {})


@pytest.mark.sample(quick=0, test=10)
@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(METHODS.keys() - ELSEWHERE))
def test_a_token_that_reaches_nothing_gets_nothing(method: str) -> None:
    """Two layers that see three tokens back: what lies more than six before the prediction cannot matter to it."""
    model, n = zoo.bridge("mistral"), 10
    ids, deaf = zoo.prompt(model, n), n - 1 - 2 * (zoo.SLIDING_WINDOW - 1)
    options = SURELY.get(method, QUICK.get(method, {}))
    scores = explain(model, ids, TARGET, method=method, **options).scores.abs()
    assert scores[:deaf].max() <= NEARLY.get(method, 1e-9) * scores[deaf:].max()
    assert scores[deaf:].max() > 0


def test_a_method_of_another_package_is_there_if_it_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = [
        EntryPoint("fine", "helpers.asking:plain_embeddings", "heta_lens.methods"),
        EntryPoint("broken", "no_such_package:Method", "heta_lens.methods"),
    ]
    monkeypatch.setattr("heta_lens._util.python.entry_points", lambda **_: registered)
    registry = MethodRegistry()
    with pytest.warns(UserWarning, match="'broken' of the package no_such_package .* is left out .*: ModuleNotFound"):
        assert "broken" not in registry
    assert "fine" in registry and "no such method" not in registry
    assert [name for name in registry if name not in METHODS] == ["fine"]


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_is_looked_up_and_not_listed(alias: str) -> None:
    full = ALIASES[alias]
    assert METHODS[alias] is METHODS[full] and METHODS[alias].name == full
    assert alias in METHODS and alias not in [*METHODS] and alias in METHODS.aliases(full)
    assert METHODS.origin(alias) == "heta_lens"


def test_a_method_of_another_package_does_not_take_an_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = [EntryPoint("shap", "helpers.asking:plain_embeddings", "heta_lens.methods")]
    monkeypatch.setattr("heta_lens._util.python.entry_points", lambda **_: registered)
    registry = MethodRegistry()
    with pytest.warns(UserWarning, match="'shap' of the package helpers .* is left out .*: its name is taken"):
        assert "shap" not in [*registry]
    assert registry["shap"] is METHODS["kernel_shap"]


def test_a_method_that_computes_nothing_is_refused() -> None:
    with pytest.raises(TypeError, match="Nothing defines neither explain nor explain_together"):
        type("Nothing", (Method,), {"name": "nothing"})
