"""Every notebook is a page of the documentation, with what its cells show."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from mkdocs.config import load_config
from mkdocs.structure.files import Files

from helpers import ROOT

PAGES = runpy.run_path(str(ROOT / "docs" / "notebook_pages.py"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_page_has_every_cell_and_what_it_shows(path: Path) -> None:
    source = PAGES["markdown"](path)
    cells = nbformat.read(path, as_version=4).cells
    assert all(cell.source in source for cell in cells)
    placeholders = re.findall(r"^output-\S+$", source, re.MULTILINE)
    assert len(placeholders) == sum(len(cell.get("outputs", [])) for cell in cells)
    page = SimpleNamespace(file=SimpleNamespace(src_uri=f"notebooks/{path.stem}.md"))
    finished = PAGES["on_post_page"]("".join(f"<p>{each}</p>" for each in placeholders), page, None)
    assert "output-" not in finished and "heta" in finished
    views = [output for cell in cells for output in cell.get("outputs", []) if "text/html" in output.get("data", {})]
    assert all(view.data["text/html"] in finished for view in views)


def test_the_site_has_all_of_them() -> None:
    names = {f"notebooks/{path.stem}.md" for path in NOTEBOOKS}
    assert {*re.findall(r"notebooks/\w+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))} == names
    config = load_config(str(ROOT / "mkdocs.yml"))
    made = config.plugins.on_files(Files([]), config=config)
    assert {file.src_uri for file in made if file.src_uri.startswith("notebooks")} == names
