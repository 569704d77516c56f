"""Imports only point down: a module may use the levels below its own, and nothing on its own level."""

import ast
from pathlib import Path

import pytest

import heta_lens

PACKAGE = Path(heta_lens.__file__).parent

LEVELS = [
    {"files", "reading"},
    {"typed"},
    {"batches", "checkpoints", "divergence", "memory", "options", "progress", "samples", "saved"}
    | {"scales", "show", "storage", "surrogates", "text", "turns", "variants"},
    {"attribution", "data", "lens", "masking", "models", "padding", "sources"},
    {"anatomy", "asked", "cached", "fingerprint", "plots", "span"},
    {"prompt"},
    {"prediction"},
    {"gate", "hessian", "information", "windows", "diagnostics", "generation", "likelihood"},
    {"coalitions", "curvature", "interventions", "faithfulness", "parts"},
    {"pieces", "sure"},
    {"probing"},
    {"baselines", "heta", "metrics"},
    {"causal"},
    {"costs", "fit"},
    {"methods"},
    {"evaluation"},
    {"__init__", "cli"},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
KNOWS_TRANSFORMER_LENS = {"checkpoints", "lens", "models"}


def modules() -> dict[str, Path]:
    """Every module by the part of its name that stands in LEVELS (a subpackage counts as one)."""
    return {str(path.relative_to(PACKAGE)): path for path in PACKAGE.rglob("*.py")}


def part(name: str) -> str:
    return Path(name).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Absolute names that a file imports, wherever in it the import stands."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own(names: set[str]) -> set[str]:
    """The parts of heta_lens among imported names."""
    return {name.split(".")[1] for name in names if name.startswith("heta_lens.")}


@pytest.mark.parametrize("name", modules())
def test_every_module_has_a_level(name: str) -> None:
    assert part(name) in LEVEL, f"{name} is in no level: say where it belongs"


def test_every_level_is_inhabited() -> None:
    assert {part(name) for name in modules()} == LEVEL.keys()


@pytest.mark.parametrize("name", modules())
def test_imports_point_down(name: str) -> None:
    here = part(name)
    up = {other for other in own(imported(modules()[name])) if other != here and LEVEL[other] >= LEVEL[here]}
    assert not up, f"{name} (level {LEVEL[here]}) imports {up}"


@pytest.mark.parametrize("name", modules())
def test_only_the_lens_knows_transformer_lens(name: str) -> None:
    libraries = {found.split(".")[0] for found in imported(modules()[name])}
    assert part(name) in KNOWS_TRANSFORMER_LENS or not libraries & {"transformer_lens", "transformers"}


def test_nothing_but_the_public_names_is_exported() -> None:
    assert set(heta_lens.__all__) == {
        *("METHODS", "Attribution", "Heta", "Prediction", "SpanAttribution", "names_filter"),
        *("attribute", "attribute_batch", "attribute_span", "estimate", "fit_weights", "load_demo_model"),
    }
