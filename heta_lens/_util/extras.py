"""Packages that only some methods, suites or reports need, and that are installed as extras."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

EXTRAS = {
    "ot": ("POT", "baselines"),
    "sklearn": ("scikit-learn", "baselines"),  # and evaluation
    "gguf": ("gguf", "gguf"),
    "datasets": ("datasets", "evaluation"),
    "matplotlib": ("matplotlib", "plots"),
    "shapiq": ("shapiq", "shapiq"),
    "lightgbm": ("lightgbm", "shapiq"),
    "ray": ("ray", "ray"),
}
"""By the name they are imported under: what they are called on PyPI, and which extra has them."""


def check_extra(name: str, needed_by: str) -> None:
    """Refuse, before any work, what needs a package that is not installed."""
    if find_spec(name) is None:
        package, extra = EXTRAS[name]
        raise ImportError(f"{needed_by} needs {package}, which is not installed: pip install 'heta-lens[{extra}]'")


def extra(name: str, needed_by: str) -> Any:
    """The package, or a submodule of it; slow to import, and so only where it is needed."""
    check_extra(name.partition(".")[0], needed_by)
    return import_module(name)
