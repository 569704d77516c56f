"""The notebooks run, from the first cell to the last, and are kept without what they printed."""

from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
SCRIPTS = sorted(NOTEBOOKS.glob("*.py"))

pytestmark = pytest.mark.plain


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_runs(script: Path) -> None:
    notebook = jupytext.read(script)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": "/"}}).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert sum(bool(cell.outputs) for cell in code) >= len(code) - 2
    told = [output for cell in code for output in cell.outputs if output.get("name") == "stderr"]
    assert not [output.text for output in told if "Warning" in output.text and "tqdm" not in output.text.lower()]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_is_its_script_and_nothing_else(script: Path) -> None:
    """`make notebooks` writes one from the other."""
    paired = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    cells = [(cell.cell_type, cell.source) for cell in jupytext.read(script).cells]
    assert [(cell.cell_type, cell.source) for cell in paired.cells] == cells
    assert not [cell for cell in paired.cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)]


def test_every_cell_is_between_sentences() -> None:
    """What we expect before it, and what we saw after it (pictures may follow each other)."""
    assert len(SCRIPTS) == 6
    for script in SCRIPTS:
        kinds = [cell.cell_type for cell in jupytext.read(script).cells]
        assert kinds[0] == kinds[-1] == "markdown" and "code code code" not in " ".join(kinds), script.stem
