"""Presets: each is a method with options, and the command takes it by its name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import heta_lens
from helpers import zoo
from helpers.asking import explain
from helpers.paths import ROOT
from heta_lens import METHODS, PRESETS, Heta, preset
from heta_lens.api import method_of
from heta_lens.cli import app
from heta_lens.data import suites
from heta_lens.data.instance import Instance
from heta_lens.evaluation import evaluate
from heta_lens.evaluation.prompt_evaluation import ReadyMethod
from heta_lens.evaluation.report.results import summary

TEXT = "Nina put the key in the drawer . Question : Where did Nina put the key ? Answer : in the"


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("build", zoo.models("-llama$"))
def test_a_preset_is_its_method_with_its_options(build: Callable[..., Any], name: str) -> None:
    model, chosen = build(), PRESETS[name]
    ids = zoo.prompt(model, 7)
    by_name = explain(model, ids, 7, method=preset(name))
    spelled = explain(model, ids, 7, method=chosen.method, **chosen.options)
    assert torch.equal(by_name.scores, spelled.scores) and by_name.method == chosen.method


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
        heta_lens.estimate_batch(cache, tokens=tokens, method=name),
        heta_lens.estimate_span(cache, -1, tokens=tokens, method=name),
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


def test_a_setting_has_one_name() -> None:
    assert ReadyMethod(preset("careful")).label == "careful"
    assert ReadyMethod(Heta(variant="gs", combine="geometric", gate="none", mask="mean")).label == "careful mask=mean"
    assert ReadyMethod(METHODS["attn_lrp"](rule="cp_lrp")).label == "fast"
    assert ReadyMethod(Heta()).label == "heta" and ReadyMethod(Heta(variant="gs")).label == "heta variant=gs"
    assert ReadyMethod(METHODS["attn_lrp"]()).label == "attn_lrp"


def test_the_literal_formula_is_what_others_are_compared_with(tmp_path: Path) -> None:
    model, prompts = heta_lens.load_demo_model(), suites.suite("recall", limit=2)
    evaluate(model, prompts, ["careful", "fast", "heta probes=2"], ["morf"], tmp_path, progress=False)
    assert summary(tmp_path).reference == "heta probes=2"


def run(*words: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words])
    return result.exit_code, result.output


@pytest.mark.slow
def test_the_command_takes_a_preset_and_its_options() -> None:
    by_name = run("attribute", TEXT, "-m", "careful", "-o", "mask=mean")
    spelled = run("attribute", TEXT, "-m", f"{PRESETS['careful'].written} mask=mean")
    assert by_name == spelled and by_name[0] == 0


def test_presets_are_listed_first_and_described() -> None:
    code, said = run("methods")
    assert not code and said.index("careful") < said.index("integrated_gradients")
    for name, chosen in PRESETS.items():
        code, about = run("methods", name)
        assert not code
        for text in (said, about):
            assert chosen.written in text and chosen.when in " ".join(text.split())


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


def test_a_presets_name_is_no_methods() -> None:
    assert not {*PRESETS} & {*METHODS}
