"""The versions of heta_lens and of the libraries that its numbers depend on."""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, copy_context
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, TypeVar


def versions() -> dict[str, str]:
    """By name; a checkout that is only on the path has none."""
    return {name: _version(name) for name in ("heta_lens", "transformer_lens", "torch")}


@cache
def _version(name: str) -> str:  # whose file takes milliseconds to read, which every attribution would
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


# ------------------------------------------------------------------------------------------------------- lazy sequence
# A sequence whose items are computed when they are accessed.


T = TypeVar("T")


class Lazy(Sequence[T]):
    """Items that are computed each time they are accessed: all at once they may be more than fits."""

    def __init__(self, count: int, of: Callable[[int], T]) -> None:
        self.places, self.of = range(count), of

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[T]:
        return map(self.of, self.places)

    def __getitem__(self, place: Any) -> Any:
        return self.of(self.places[place])


# -------------------------------------------------------------------------------------------------------------- extras
# Packages that only some methods, suites or reports need, and that are installed as extras.


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


# ----------------------------------------------------------------------------------------------------- caller warnings
# Warnings that name the line which called heta_lens.


_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def quietly(function: Callable[[], T]) -> T:
    """Without warnings of `warn`, in this call alone: the filters of `warnings` are those of all threads."""
    context = copy_context()
    context.run(_quiet.set, True)
    return context.run(function)


def warn(message: str) -> None:
    """A warning that names the line which called heta_lens, and so is shown once for each such line."""
    if _quiet.get():
        return
    level = 1
    while sys._getframe(level).f_globals.get("__name__", "").startswith("heta_lens."):
        level += 1
    warnings.warn(message, stacklevel=level + 1)


@cache
def warn_once(message: str) -> None:
    """The same, shown once in a process."""
    warn(message)
