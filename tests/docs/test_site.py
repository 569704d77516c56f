"""The site, as it is built: every page and public name, nothing of this machine, and nothing from the network."""

import json
import re
import subprocess
import sys
from html import unescape
from importlib.resources import files
from pathlib import Path

import pytest

import heta_lens
from helpers import ROOT
from helpers.browser import CHROMIUM, DARK, OFFLINE, WATCH, needs_browser

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


EXAMINE = """
window.addEventListener("load", async () => {
  const rules = { "definition-list": { enabled: false } };  // Sphinx writes the lines of a signature as such a list
  const found = await axe.run(document, { runOnly: ["wcag2a", "wcag2aa"], resultTypes: ["violations"], rules });
  const serious = found.violations.filter(each => ["serious", "critical"].includes(each.impact));
  parent.postMessage(JSON.stringify({
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    serious: serious.map(each => [each.id, each.nodes.length, each.nodes[0].html.slice(0, 200)]),
    requests: performance.getEntriesByType("resource").map(each => each.name).filter(name => !name.startsWith("file:")),
    errors,
  }), "*");
});
"""
# A window has 500 pixels at least, and a frame as few as it is given.
FRAME = """<iframe src="{page}" style="width: {width}px; height: 900px; border: 0"></iframe><script>
addEventListener("message", event => {{
  const sheet = document.createElement("pre");
  sheet.id = "examined";
  sheet.textContent = event.data;
  document.body.replaceChildren(sheet);
}});
</script>"""
PAGES = sorted(path.stem for path in (ROOT / "docs").iterdir() if path.suffix in (".md", ".rst"))
NOTEBOOKS = sorted(f"notebooks/{path.stem}" for path in (ROOT / "notebooks").glob("*.ipynb"))
MEASURED = sorted(f"benchmarks/{path.stem}" for path in (ROOT / "benchmarks").glob("*.md"))


@needs_browser
@pytest.mark.parametrize(("width", "mode"), [(1280, "light"), (1280, "dark"), (400, "light")])
@pytest.mark.parametrize("name", [*PAGES, *NOTEBOOKS, *MEASURED])
def test_a_page_is_accessible_and_fits_the_window(site: Path, name: str, width: int, mode: str, tmp_path: Path) -> None:
    script = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    page = read(site, name).replace("<head>", f"<head>{WATCH}", 1)
    copy = (site / name).with_name(f"examined-{width}-{mode}.html")
    copy.write_text(page.replace("</body>", f"<script>{script}{EXAMINE}</script></body>"), encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(page=copy.as_uri(), width=width), encoding="utf-8")
    flags = [*OFFLINE, "--window-size=1400,950", f"--user-data-dir={tmp_path}", *([DARK] if mode == "dark" else [])]
    assert CHROMIUM is not None
    shown = subprocess.run(
        [CHROMIUM, *flags, "--dump-dom", "--virtual-time-budget=60000", frame.as_uri()],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    ).stdout
    copy.unlink()
    found = re.search('<pre id="examined">(.*?)</pre>', shown, re.DOTALL)
    assert found, shown[:1000]
    outcome = json.loads(unescape(found[1]))
    assert outcome == {"wide": 0, "serious": [], "requests": [], "errors": []}
