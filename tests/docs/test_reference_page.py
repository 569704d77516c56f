"""The reference, as it is built: what users call, with types, and nothing of Python's own."""

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

import heta_lens

ROOT = Path(__file__).parents[2]
MODULES = {"METHODS", "PRESETS", "__version__", "causal", "data", "evaluation", "metrics", "plots"}  # on other pages


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.mark.thorough
def test_it_has_every_public_name_with_types(site: Path) -> None:
    page = (site / "reference" / "index.html").read_text(encoding="utf-8")
    headings = re.findall(r'<h\d id="([\w.]+)"', page)
    assert {f"heta_lens.{name}" for name in {*heta_lens.__all__} - MODULES} <= {*headings}
    assert not [heading for heading in headings if "__" in heading]
    assert (
        "SpanAttribution" in re.sub("<[^>]+>", "", unescape(page)).partition("attribute_span(")[2].partition("\n\n")[0]
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["reference", "baselines", "causal", "evaluation"])
def test_pages_of_the_api_show_nothing_of_this_machine(site: Path, name: str) -> None:
    page = (site / name / "index.html").read_text(encoding="utf-8")
    assert not re.findall(rf"at 0x|ClassVar|{re.escape(str(ROOT))}", page)


@pytest.mark.thorough
def test_methods_have_the_options_that_they_inherit(site: Path) -> None:
    page = re.sub("<[^>]+>", "", (site / "baselines" / "index.html").read_text(encoding="utf-8"))
    lime = page.partition("surrogates.Lime")[2].partition("kernel_shap")[0]
    assert "keep_bos" in lime and re.search(r"batch: \w+ copies|batch: ", lime) and "Cost: " in lime
