"""Presets: each is a method with options, and the command takes it by its name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import heta_lens
from helpers import zoo
from helpers.asking import explain
from helpers.paths import ROOT
from heta_lens import PRESETS, preset
from heta_lens.api import method_of
from heta_lens.cli import app

TEXT = "Nina put the key in the drawer . Question : Where did Nina put the key ? Answer : in the"


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("build", zoo.models("-llama$"))
def test_a_preset_is_its_method_with_its_options(build: Callable[..., Any], name: str) -> None:
    model, chosen = build(), PRESETS[name]
    ids = zoo.prompt(model, 7)
    by_name = explain(model, ids, 7, method=preset(name))
    spelled = explain(model, ids, 7, method=chosen.method, **chosen.options)
    assert torch.equal(by_name.scores, spelled.scores) and by_name.method == chosen.method


def test_a_preset_can_be_changed_and_is_checked() -> None:
    assert getattr(preset("no_gradients", mask="mean"), "mask") == "mean"  # noqa: B009
    with pytest.raises(ValueError, match=r"preset='fats' is not one of 'fast', .*\(did you mean 'fast'\?\)"):
        preset("fats")
    with pytest.raises(TypeError, match="colour"):
        preset("fast", colour="red")


def test_a_preset_without_gradients_takes_none() -> None:
    method = preset("no_gradients")
    model = zoo.bridge("llama")
    found = explain(model, zoo.prompt(model, 7), 7, method=method)
    assert not found.diagnostics.cost.backwards and not found.diagnostics.cost.hvps


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["attribute", TEXT, *arguments])
    return result.exit_code, result.output


@pytest.mark.slow
def test_the_command_takes_a_preset_and_its_options() -> None:
    by_preset = run("--preset", "no_gradients", "-o", "mask=mean")
    chosen = PRESETS["no_gradients"]
    spelled = run(
        "-m",
        chosen.method,
        *(part for pair in chosen.options.items() for part in ("-o", "=".join(pair))),
        "-o",
        "mask=mean",
    )
    assert by_preset[0] == spelled[0] == 0
    assert by_preset[1].splitlines()[1:] == spelled[1].splitlines()[1:]


def test_the_command_takes_one_of_them() -> None:
    code, said = run("--preset", "fast", "--method", "lime")
    assert code and "--preset fast and --method lime both say how to explain: give one of them" in said


def test_the_documents_name_every_preset() -> None:
    docstring, page = preset.__doc__ or "", (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    for name, chosen in PRESETS.items():
        assert f"- ``{name}``: {chosen.when}" in docstring
        assert f"| `{name}` |" in page and chosen.method in page
    assert heta_lens.PRESETS is PRESETS


def test_a_presets_name_is_no_methods_and_the_refusal_says_how_to_give_it() -> None:
    with pytest.raises(ValueError, match=r"a preset is given as method=heta_lens.preset\('careful'\)"):
        method_of("careful", {})
