"""Warnings that name the line which called heta_lens."""

import sys
import warnings
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import cache
from typing import TypeVar

T = TypeVar("T")

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
