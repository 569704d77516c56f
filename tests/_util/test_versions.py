"""Versions of the libraries that numbers depend on."""

from importlib.metadata import version

from heta_lens._util.python import versions


def test_the_libraries_are_named() -> None:
    named = versions()
    assert [*named] == ["heta_lens", "transformer_lens", "torch"]
    assert named["torch"] == version("torch")
