"""The notebooks run, from the first cell to the last, and are kept with what they show."""

from pathlib import Path
from typing import Any

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

from helpers import ROOT

NOTEBOOKS = ROOT / "notebooks"
STORIES = NOTEBOOKS.parents[1] / "shared" / "models" / "stories3M"
WIDGET = "application/vnd.jupyter.widget-view+json"  # a progress bar
SCRIPTS = sorted(NOTEBOOKS.glob("*.py"))
REAL = [script for script in SCRIPTS if 'MODEL = "models/' in script.read_text(encoding="utf-8")]
DEMO = [script for script in SCRIPTS if script not in REAL]


def run(notebook: Any) -> None:
    place = {"metadata": {"path": str(ROOT)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=place).execute()


@pytest.mark.thorough
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_runs(script: Path) -> None:
    if script in REAL and not (ROOT / "models" / "SmolLM2-135M-Instruct").exists():
        pytest.skip("make real-models fetches the model")
    notebook = jupytext.read(script)
    run(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert sum(bool(cell.outputs) for cell in code) >= len(code) - 2
    told = [output for cell in code for output in cell.outputs if output.get("name") == "stderr"]
    assert not [output.text for output in told if "Warning" in output.text and "tqdm" not in output.text.lower()]


@pytest.mark.thorough
@pytest.mark.skipif(not STORIES.exists(), reason="needs the stories3M model")
@pytest.mark.parametrize("script", DEMO, ids=lambda path: path.stem)
def test_a_notebook_runs_on_another_model_by_changing_a_line(script: Path) -> None:
    notebook = jupytext.read(script)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert first.source.startswith('MODEL = "demo"')
    first.source = f"MODEL = {str(STORIES)!r}"
    run(notebook)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_is_its_script_with_what_it_shows(script: Path) -> None:
    """`make notebooks` writes one from the other."""
    paired = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    cells = [(cell.cell_type, cell.source) for cell in jupytext.read(script).cells]
    assert [(cell.cell_type, cell.source) for cell in paired.cells] == cells
    code = [cell for cell in paired.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    outputs = [output for cell in code for output in cell.outputs]
    assert len(outputs) >= len(code) - 2 and not {"error"} & {output.output_type for output in outputs}
    assert not [output for output in outputs if output.get("name") == "stderr" or WIDGET in output.get("data", {})]
    assert not [cell.metadata for cell in paired.cells if cell.metadata], "when a cell ran is left out"
    assert script.with_suffix(".ipynb").stat().st_size < 400_000
