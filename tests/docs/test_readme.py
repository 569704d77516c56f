"""The README's code does what it says, on small models in place of those it downloads."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from markdown.extensions.toc import slugify
from transformer_lens.model_bridge import TransformerBridge
from typer.testing import CliRunner

import heta_lens
from helpers import zoo
from helpers.asking import doubts_allowed
from helpers.paths import ROOT
from heta_lens.cli import app

README = (ROOT / "README.md").read_text()
EXAMPLE, HOOKED, DEMO, *MORE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
CARD = (ROOT / "docs" / "demo_model.md").read_text()
SAYS = {"demo": "curvature", "attribute": "curvature", "evaluate": "report.html", "reproduce": "dsa.md"}


def run(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    bridge = zoo.bridge("gpt2")
    monkeypatch.setattr(TransformerBridge, "boot_transformers", staticmethod({"gpt2": bridge}.__getitem__))
    if zoo.HAS_HOOKED:
        from transformer_lens import HookedTransformer

        monkeypatch.setattr(
            HookedTransformer, "from_pretrained_no_processing", staticmethod(lambda name: zoo.hooked(name))
        )
    names: dict[str, Any] = {}
    with doubts_allowed():
        exec(code, names)


def check_saved(folder: Path) -> None:
    saved = heta_lens.Attribution.load(folder / "paris.safetensors")
    assert saved.target_text == " Paris"
    assert "".join(saved.tokens).endswith("The capital of France is")


@pytest.mark.slow
def test_the_example_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run("\n".join([EXAMPLE, *MORE]), tmp_path, monkeypatch)
    check_saved(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
def test_the_example_runs_with_the_other_kind_of_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run(re.sub(r"from transformer_lens.*\n\nmodel = .*\n", HOOKED, "\n".join([EXAMPLE, *MORE])), tmp_path, monkeypatch)
    check_saved(tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("code", [DEMO, *re.findall(r"```python\n(.*?)```", CARD, re.DOTALL)], ids=["readme", "card"])
@pytest.mark.usefixtures("unchecked")
def test_the_demo_model_does_what_is_said(code: str) -> None:
    with doubts_allowed():
        exec(code, {})


@pytest.mark.sample(quick=0, test=2)
@pytest.mark.parametrize("command", re.findall(r"^heta-lens (.*)$", README, re.MULTILINE))
@pytest.mark.usefixtures("unchecked")
def test_commands_run(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, shlex.split(command))
    assert done.exit_code == 0, done.output
    assert SAYS[command.split()[0]] in done.output


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)]+)\)", README))
def test_every_link_leads_somewhere(link: str) -> None:
    page, _, anchor = link.partition("#")
    path = ROOT / (page or "README.md")
    assert path.exists()
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE) if anchor else []
    assert not anchor or anchor in {slugify(heading, "-") for heading in headings}


@pytest.mark.parametrize("name", re.findall(r"`(\w+)=", README))
def test_every_option_it_names_exists(name: str) -> None:
    assert name in set(heta_lens.Heta.__dataclass_fields__) | set(heta_lens.attribute.__annotations__)
