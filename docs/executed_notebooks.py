"""Write notebooks/*.ipynb from notebooks/*.py, with what every cell shows.

    python docs/executed_notebooks.py [NAME ...]

Progress bars and other messages on stderr are left out, and so is when a cell ran: a change of a notebook's file is a
change of its script, or of what it shows.
"""

import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
WIDGET = "application/vnd.jupyter.widget-view+json"
METADATA = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def executed(script: Path) -> Any:
    """The notebook of a script after all of its cells have run."""
    notebook = jupytext.read(script)
    place = {"metadata": {"path": str(FOLDER.parent)}}  # where models/ is
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources=place).execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_progress(output)]
    return notebook


def _is_progress(output: Any) -> bool:
    """Whether it is a message on stderr, a progress bar, or what such a bar leaves behind."""
    data = output.get("data", {})
    return output.get("name") == "stderr" or WIDGET in data or ("text/html" in data and not data.get("text/plain"))


def main(names: list[str]) -> None:
    for script in sorted(FOLDER.glob("*.py")):
        if not names or script.stem in names:
            nbformat.write(executed(script), script.with_suffix(".ipynb"))


if __name__ == "__main__":
    main(sys.argv[1:])
