"""The docstring of a package names every file in it, so that a reader finds a thing without opening files."""

import ast
from pathlib import Path

import pytest

from helpers import ROOT

PACKAGE = ROOT / "heta_lens"
PACKAGES = sorted(path.parent for path in PACKAGE.rglob("__init__.py"))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_packages_docstring_names_every_file_in_it(package: Path) -> None:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    files = {path.stem for path in package.glob("*.py")} - {"__init__"}
    if package != PACKAGE and package.name != "methods":  # whose files are named like methods
        assert not {name for name in files if f"`{name}`" not in docstring}
