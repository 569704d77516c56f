"""Write docs/modules.md from the code: every module on its floor, with the first line of its docstring.

`python docs/module_map.py` writes the page; a test checks that it is up to date.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "heta_lens"
PAGE = Path(__file__).with_name("modules.md")
FLOORS = [
    *("__main__", "cli", "evaluation", "api", "reliance", "contract", "causal", "metrics", "methods", "data", "plots"),
    *("prediction", "span_attribution", "attribution"),
    *("diagnostics", "model", "_util"),
]
"""From the top down; a module imports only from below itself (tests/test_layers.py)."""
HEAD = """# Module map

From the top floor down: a module imports only from floors below its own. Written by `python docs/module_map.py`.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for floor in FLOORS for line in _floor(floor))])


def _floor(name: str) -> Iterator[str]:
    folder = PACKAGE / name
    if not folder.is_dir():
        yield f"**`{name}.py`**: {_summary(folder.with_suffix('.py'))}\n"
        return
    for package in sorted(path.parent for path in folder.rglob("__init__.py")):
        title = package.relative_to(PACKAGE).as_posix()
        yield f"## `{title}/`\n\n{_summary(package / '__init__.py')}\n\n| file | what it holds |\n| --- | --- |"
        for path in sorted(package.glob("*.py")):
            if path.stem != "__init__":
                yield f"| `{path.name}` | {_summary(path).replace('|', '&#124;')} |"
        yield ""


def _summary(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
