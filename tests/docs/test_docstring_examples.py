"""The examples in docstrings run, after the example of `attribute`, which makes their model, tokens and cache."""

import doctest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heta_lens

FUNCTIONS: list[Callable[..., Any]] = [
    heta_lens.attribute_span, heta_lens.attribute_batch, heta_lens.compare, heta_lens.context_reliance,
    heta_lens.chat, heta_lens.activation, heta_lens.load_model, heta_lens.causal.validate, heta_lens.causal.patch,
    heta_lens.causal.what_if, heta_lens.causal.components,
]  # fmt: skip


def run(function: Callable[..., Any], names: dict[str, Any]) -> dict[str, Any]:
    """Run the example of a function; return the names that it leaves."""
    example = doctest.DocTestParser().get_doctest(function.__doc__ or "", names, function.__name__, None, None)
    assert example.examples
    doctest.DebugRunner(verbose=False).run(example, clear_globs=False)
    return example.globs


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return run(heta_lens.attribute, {"heta_lens": heta_lens})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_an_example_runs(
    function: Callable[..., Any], made: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(function, made)
