"""The site, as it is built: every page and public name, nothing of this machine, and nothing from the network."""

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

import heta_lens
from helpers import ROOT

pytestmark = pytest.mark.thorough
MODULES = {"METHODS", "PRESETS", "__version__", "causal", "data", "evaluation", "metrics", "plots"}  # on other pages
REFERENCE = ["reference", "reference_methods", "reference_causal", "reference_evaluation"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "docs", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def read(site: Path, name: str) -> str:
    return (site / f"{name}.html").read_text(encoding="utf-8")


def test_the_reference_has_every_public_name_with_types(site: Path) -> None:
    page = "".join(read(site, name) for name in REFERENCE)
    names = {*re.findall(r'id="(heta_lens\.[\w.]+)"', page)}
    assert {f"heta_lens.{name}" for name in {*heta_lens.__all__} - MODULES} <= names
    assert not [name for name in names if "__" in name]
    text = re.sub("<[^>]+>", "", unescape(page)).partition("heta_lens.attribute_span(")[2]
    assert "SpanAttribution" in text.partition("Explain the tokens")[0]


@pytest.mark.parametrize("name", REFERENCE)
def test_the_reference_shows_nothing_of_this_machine(site: Path, name: str) -> None:
    assert not re.findall(rf"at 0x|ClassVar|{re.escape(str(ROOT))}", read(site, name))


def test_methods_have_the_options_that_they_inherit(site: Path) -> None:
    page = re.sub("<[^>]+>", "", read(site, "reference_methods"))
    lime = page.partition("surrogates.Lime")[2].partition("KernelShap")[0]
    assert "keep_bos" in lime and "batch: " in lime and "Cost: " in lime


def test_every_notebook_is_a_page_with_what_it_shows(site: Path) -> None:
    index = read(site, "index")
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        page = read(site, f"notebooks/{notebook.stem}")
        assert f"notebooks/{notebook.stem}.html" in index and "cell_output" in page


def test_no_page_asks_the_network_for_anything(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        assert not re.findall(
            r'<(?:script|img|iframe)[^>]*src="(?:https?:)?//[^"]*|<link[^>]*href="(?:https?:)?//', page
        )
