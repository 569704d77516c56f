"""Imports only point down, lazy ones too: between the floors of the house, and between the files of one package."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import heta_lens
from heta_lens.methods.registry import BUILT_IN

PACKAGE = Path(heta_lens.__file__).parent

FLOORS = [
    {"_util"},
    {"model"},
    {"diagnostics"},
    {"attribution"},
    {"span_attribution"},
    {"prediction"},
    {"plots", "data"},
    {"methods"},
    {"metrics"},
    {"causal"},
    {"api", "reliance"},
    {"evaluation", "web"},
    {"__init__"},
    {"cli"},
    {"__main__"},
]
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}


def modules() -> dict[str, Path]:
    """Every module by its name under heta_lens; a package by the name of its folder."""
    paths = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in paths.items()}


MODULES = modules()


def part(name: str) -> str:
    return name.split(".")[0]


def imported(path: Path) -> Iterator[str]:
    """Names that a file imports, in full, wherever in it the import stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node):
            named = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            yield from (name for name in named if isinstance(name, str) and not name.endswith("."))


def own(path: Path) -> set[str]:
    """The modules of heta_lens that a file imports."""
    names = {name.removeprefix("heta_lens.") for name in imported(path) if name.startswith("heta_lens.")}
    return {name if name in MODULES else name.rpartition(".")[0] or "__init__" for name in names}


IMPORTS = {name: own(path) for name, path in MODULES.items()}
IMPORTS["methods.registry"] |= {f"methods.{method.partition(':')[0]}" for method in BUILT_IN.values()}  # when asked for


def test_every_module_has_a_floor_and_every_floor_is_inhabited() -> None:
    assert {part(name) for name in IMPORTS} == FLOOR.keys()


def test_imports_point_down() -> None:
    up = {
        f"{name} imports {other}"
        for name, others in IMPORTS.items()
        for other in others
        if part(name) != part(other) and FLOOR[part(other)] >= FLOOR[part(name)]
    }
    assert not up


def test_the_files_of_a_package_do_not_import_in_circles() -> None:
    inside = {name: {other for other in others if part(other) == part(name)} for name, others in IMPORTS.items()}
    try:
        TopologicalSorter(inside).prepare()
    except CycleError as error:
        raise AssertionError(" imports ".join(error.args[1][::-1])) from None


def test_only_the_model_package_knows_transformer_lens() -> None:
    libraries = {name: {found.split(".")[0] for found in imported(path)} for name, path in MODULES.items()}
    knowing = {name for name, found in libraries.items() if found & {"transformer_lens", "transformers"}}
    assert {part(name) for name in knowing} == {"model"}


TESTS = Path(__file__).parent


def test_no_test_imports_another() -> None:
    importing = {
        f"{path.name} imports {name}"
        for path in TESTS.rglob("*.py")
        for name in imported(path)
        if any(part.startswith(("test_", "conftest")) for part in name.split("."))
    }
    assert not importing
