"""Python helpers: versions, lazy sequences, plugins, optional packages, warnings, and modules of upper floors."""

import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar, copy_context
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from typing import Any, TypeVar


def versions() -> dict[str, str]:
    """Return the versions of heta_lens, transformer_lens and torch, on which numbers depend."""
    return {name: _version(name) for name in ("heta_lens", "transformer_lens", "torch")}


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


T = TypeVar("T")


class Lazy(Sequence[T]):
    """A sequence whose items are computed at every access, because all items together may not fit into memory."""

    def __init__(self, count: int, of: Callable[[int], T]) -> None:
        self.places, self.of = range(count), of

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[T]:
        return map(self.of, self.places)

    def __getitem__(self, place: Any) -> Any:
        return self.of(self.places[place])


# ------------------------------------------------------------------------------------------------------------ plugins
def plugins(group: str, taken: Collection[str], make: Callable[[str, Any, str], T]) -> dict[str, T]:
    """Load what packages register in a group of entry points; what is unusable is left out with a warning.

    ``make`` makes a plugin of the name, the registered object and the package; names that are ``taken`` are unusable.
    """
    found: dict[str, T] = {}
    for entry in entry_points(group=group):
        package = entry.dist.name if entry.dist is not None else entry.module.partition(".")[0]
        try:
            if entry.name in taken or entry.name in found:
                raise ValueError("its name is taken: rename the entry point")
            found[entry.name] = make(entry.name, entry.load(), package)
        except Exception as error:  # of any type: the package belongs to somebody else
            what = f"{entry.name!r} of the package {package} ({entry.value})"
            warn(f"{what} is left out of {group}: {type(error).__name__}: {error}")
    return found


# ------------------------------------------------------------------------------------------------------------- extras
EXTRAS = {
    "ot": ("POT", "baselines"),
    "sklearn": ("scikit-learn", "baselines"),  # also in evaluation
    "gguf": ("gguf", "gguf"),
    "datasets": ("datasets", "evaluation"),
    "matplotlib": ("matplotlib", "plots"),
    "shapiq": ("shapiq", "shapiq"),
    "ray": ("ray", "ray"),
    "starlette": ("starlette", "app"),
}
"""Optional packages by import name: the name on PyPI, and the extra."""


def check_extra(name: str, needed_by: str) -> None:
    """Refuse a feature whose package is not installed, before work begins."""
    if find_spec(name) is None:
        package, extra = EXTRAS[name]
        raise ImportError(
            f"{needed_by} needs {package}, which is not installed: pip install '.[{extra}]' in the folder of heta_lens"
        )


def extra(name: str, needed_by: str) -> Any:
    """Import an optional package or submodule, at the first use."""
    check_extra(name.partition(".")[0], needed_by)
    return import_module(name)


# ----------------------------------------------------------------------------------------------------------- warnings
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def quietly(function: Callable[[], T]) -> T:
    """Call a function without warnings of `warn`; filters of `warnings` would affect all threads."""
    context = copy_context()
    context.run(_quiet.set, True)
    return context.run(function)


def warn(message: str) -> None:
    """Warn at the line that called heta_lens, so that the warning is shown once per line."""
    if _quiet.get():
        return
    level = 1
    while sys._getframe(level).f_globals.get("__name__", "").startswith("heta_lens."):
        level += 1
    warnings.warn(message, stacklevel=level + 1)


# ---------------------------------------------------------------------------------------------- modules of upper floors
_loaders: dict[str, Callable[[], Any]] = {}


def provide(name: str, load: Callable[[], Any]) -> None:
    """Register a module that results call, under a name; `load` imports the module at the first call."""
    _loaders[name] = load


def provided(name: str) -> Any:
    """Return the registered module of a name."""
    return _loaders[name]()
