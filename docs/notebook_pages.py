"""For the documentation: a page of every notebook, with what its cells show, as they are stored."""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"

_shown: dict[str, str] = {}
"""What cells show, by what stands for it until the page is finished: no views in Markdown, or in the search index."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=markdown(path)))
    return files


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001 - as mkdocs calls it
    if page.file.src_uri.startswith("notebooks/"):
        for placeholder, shown in _shown.items():
            output = output.replace(f"<p>{placeholder}</p>", shown)
    return output


def markdown(path: Path) -> str:
    """A notebook as the source of a page."""
    notebook: Any = nbformat.read(path, as_version=4)
    return "\n\n".join(part for number, cell in enumerate(notebook.cells) for part in _parts(path.stem, number, cell))


def _parts(name: str, number: int, cell: Any) -> Iterator[str]:
    if cell.cell_type == "markdown":
        yield cell.source
        return
    yield f"```python\n{cell.source}\n```"
    for place, output in enumerate(cell.outputs):
        placeholder = f"output-{name}-{number}-{place}"
        _shown[placeholder] = _html(output)
        yield placeholder


def _html(output: Any) -> str:
    """What a cell shows, the richest form that a page can have."""
    data = output.get("data", {})
    if "text/html" in data:
        return f'<div class="output">{data["text/html"]}</div>'
    return f"<pre><code>{escape(output.get('text') or data['text/plain'])}</code></pre>"
