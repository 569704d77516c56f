"""The versions of heta_lens and of the libraries that its numbers depend on."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


def versions() -> dict[str, str]:
    """By name; a checkout that is only on the path has none."""
    return {name: _version(name) for name in ("heta_lens", "transformer_lens", "torch")}


@cache
def _version(name: str) -> str:  # whose file takes milliseconds to read, which every attribution would
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
