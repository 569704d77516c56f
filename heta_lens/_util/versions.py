"""The versions of heta_lens and of the libraries that its numbers depend on."""

from importlib.metadata import PackageNotFoundError, version


def versions() -> dict[str, str]:
    """By name; a checkout that is only on the path has none."""
    installed = {}
    for name in ("heta_lens", "transformer_lens", "torch"):
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            installed[name] = "not installed"
    return installed
