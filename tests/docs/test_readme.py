"""Pages whose code runs from top to bottom, offline, and prints what they say; and the README's commands and links."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
from mdit_py_plugins.anchors.index import slugify
from typer.testing import CliRunner

import heta_lens
from helpers import ROOT
from helpers.asking import doubts_allowed
from heta_lens.cli import app
from heta_lens.web.server import App

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = ["README.md", "docs/five_minutes.md", "docs/components.md"]
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]\d+)?")
tools = runpy.run_path(str(ROOT / "docs" / "printed_outputs.py"))


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_from_top_to_bottom_and_prints_what_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with doubts_allowed():
        done = [*tools["blocks"]((ROOT / page).read_text(encoding="utf-8"), {})]
    assert any(block.expected for block in done)
    for block in done:
        assert block.expected or not block.actual, f"its output is not on the page: {block.code}"
        check_same(block.actual, block.expected)


def check_same(actual: str, expected: str) -> None:
    """The same words, and the same numbers but for rounding, which lines of TransformerLens differ by."""
    assert NUMBER.sub("", actual).split() == NUMBER.sub("", expected).split()
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (actual, expected)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.02, abs=1e-9)


def test_outputs_are_written_below_what_prints_them() -> None:
    page = "```python\nx = 2\n```\n\nand\n\n```python\nprint(x)\n```\n\n```text\n1\n```\n"
    assert tools["with_outputs"](page) == page.replace("\n1\n", "\n2\n")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "code", re.findall(r"```python\n(.*?)```", (ROOT / "benchmarks" / "DEMO_MODEL.md").read_text(), re.S)
)
@pytest.mark.usefixtures("unchecked")
def test_the_demo_model_does_what_is_said(code: str) -> None:
    with doubts_allowed():
        exec(code, {})


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_the_readmes_commands_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`heta-lens` where its model is there, and `make` by the names of targets."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").symlink_to(ROOT / "models")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(App, "wait", App.stop)
    ran = list[str]()
    for block in re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            program, *arguments = shlex.split(line, comments=True)
            if program == "make":
                assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
            elif program == "heta-lens" and Path(arguments[arguments.index("--model") + 1]).is_dir():
                done = CliRunner().invoke(app, arguments)
                assert done.exit_code == 0, done.output
            ran.append(program)
    assert ran.count("make") == 3 and ran.count("heta-lens") == 2
    assert len(opened) <= 1  # where the model is not there, the app is not run


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)]+)\)", README))
def test_every_link_leads_somewhere(link: str) -> None:
    page, _, anchor = link.partition("#")
    path = ROOT / (page or "README.md")
    assert path.exists()
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
    assert not anchor or anchor in {slugify(heading) for heading in headings}


@pytest.mark.parametrize("name", re.findall(r"`([a-z]\w*)=", README))
def test_every_option_it_names_exists(name: str) -> None:
    methods = (heta_lens.METHODS[method] for method in heta_lens.METHODS)
    options = {option for method in methods for option in method.__dataclass_fields__}
    assert name in options | set(heta_lens.attribute.__annotations__)


def test_scores_equal_those_of_peers_as_it_says() -> None:
    bound = re.search(r"Deterministic .* give the same scores to \[(1e-\d+)\]\(benchmarks/PEERS.md\)", README)
    rows = re.findall(
        r"^\|.*\| (\d+e-\d+) \| [\d.]+ \|(?: [^|]* \|)?$", (ROOT / "benchmarks/PEERS.md").read_text(), re.MULTILINE
    )
    assert bound and len(rows) > 5
    assert max(map(float, rows)) <= float(bound[1])


def test_methods_are_counted() -> None:
    (others,) = re.findall(r"one of (\d+) other methods, or a\s+control", README)
    assert int(others) == sum(method.family != "control" for _, method in heta_lens.METHODS.items()) - 1
