"""Presets: each is a method with options, and the command takes it by its name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import heta_lens
from helpers import ROOT, zoo
from helpers.asking import explain
from heta_lens import PRESETS, preset
from heta_lens.data import suites
from heta_lens.data.instance import Instance
from heta_lens.evaluation import evaluate
from heta_lens.evaluation.report.results import summary
from heta_lens.methods.registry import method_of

TEXT = "Nina put the key in the drawer . Question : Where did Nina put the key ? Answer : in the"


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("build", zoo.models("-llama$"))
def test_a_preset_is_its_method_with_its_options(build: Callable[..., Any], name: str) -> None:
    model, chosen = build(), PRESETS[name]
    ids = zoo.prompt(model, 7)
    by_name = explain(model, ids, 7, method=preset(name))
    spelled = explain(model, ids, 7, method=chosen.method, **chosen.options)
    assert torch.equal(by_name.scores, spelled.scores) and by_name.method == chosen.method


@pytest.mark.thorough
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_accepted_wherever_a_method_is_named(name: str, tmp_path: Path) -> None:
    model = heta_lens.load_demo_model()
    tokens = model.to_tokens(TEXT)
    _, cache = model.run_with_cache(tokens)
    expected = heta_lens.attribute(cache, tokens=tokens, method=preset(name)).scores
    assert torch.equal(heta_lens.attribute(cache, tokens=tokens, method=name).scores, expected)
    (of_batch,) = heta_lens.attribute_batch(cache, tokens=tokens, method=name)
    (of_span,) = heta_lens.attribute_span(cache, -1, tokens=tokens, method=name).steps
    assert torch.equal(of_batch.scores, expected) and of_span.diagnostics["chosen"] == of_batch.diagnostics["chosen"]
    estimates = (
        heta_lens.estimate(cache, tokens=tokens, method=name),
        heta_lens.estimate(cache, tokens=tokens, attention_mask=torch.ones_like(tokens), method=name),
        heta_lens.estimate(cache, position=slice(-1, None), tokens=tokens, method=name),
    )
    for estimate in estimates:
        assert repr(estimate).startswith(f"{name} o") and estimate.options == PRESETS[name].options
    prompts = [Instance("one", TEXT, None)]
    for number, method in enumerate((name, preset(name))):
        scores = heta_lens.attribute_dataset(model, prompts, [method], out=tmp_path / str(number), progress=False)
        assert scores.methods == (name,)
        torch.testing.assert_close(scores["one", name].scores, expected)


def test_a_preset_can_be_changed_and_is_checked() -> None:
    assert getattr(preset("careful", mask="mean"), "mask") == "mean"  # noqa: B009
    assert getattr(method_of("careful", {"mask": "mean"}), "mask") == "mean"  # noqa: B009
    with pytest.raises(ValueError, match=r"preset='fats' is not one of 'fast', .*\(did you mean 'fast'\?\)"):
        preset("fats")
    with pytest.raises(ValueError, match=r"method='Careful' .*\(did you mean 'careful'\?\)"):
        method_of("Careful", {})
    for make in (preset, lambda name, **options: method_of(name, options)):
        with pytest.raises(TypeError, match="colour"):
            make("fast", colour="red")


@pytest.mark.thorough
def test_the_literal_formula_is_what_others_are_compared_with(tmp_path: Path) -> None:
    model, prompts = heta_lens.load_demo_model(), suites.suite("recall", limit=2)
    evaluate(model, prompts, ["careful", "fast", "heta probes=2"], ["morf"], tmp_path, progress=False)
    assert summary(tmp_path).reference == "heta probes=2"


@pytest.mark.parametrize("options", [{}, {"balance": "sum"}, {"flow": "direct"}, {"support": "row"}, {"mask": "mean"}])
@pytest.mark.filterwarnings("error")
def test_what_is_proposed_in_the_place_of_heta_is_careful(options: dict[str, Any]) -> None:
    model = heta_lens.load_demo_model()
    tokens = model.to_tokens(TEXT)
    *_, last = heta_lens.estimate(model.run_with_cache(tokens)[1], tokens=tokens, **options).cheaper
    kept = {name: value for name, value in options.items() if name == "mask"}
    assert last.options == {**PRESETS["careful"].options, **kept} and repr(last).startswith("careful")


def test_the_documents_name_every_preset() -> None:
    docstring, page = " ".join((preset.__doc__ or "").split()), (ROOT / "docs" / "choosing.md").read_text("utf-8")
    for name, chosen in PRESETS.items():
        assert f"- ``{name}``: {chosen.when}" in docstring
        assert f"| `{name}` |" in page and chosen.method in page
    assert heta_lens.PRESETS is PRESETS
