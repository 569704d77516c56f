"""Checking a method's options, so that a wrong one is refused before any work."""

from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from math import inf
from numbers import Real
from operator import index
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Refuse a value that is not among the choices, and list them."""
    choices = list(choices)
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}{_hint(value, choices)}")


def check_at_least(name: str, value: Any, least: float | int, *, whole: bool = False) -> None:
    """Refuse what is no (whole) number, or below its minimum, or not finite."""
    if not (is_whole(value) or (not whole and isinstance(value, Real) and not isinstance(value, bool))):
        raise TypeError(f"{name}={value!r} must be a {'whole ' if whole else ''}number")
    if not least <= float(value) < inf:
        raise ValueError(f"{name}={value!r} must be {'finite' if value == inf else f'at least {least}'}")


def is_whole(value: Any) -> bool:
    """Whether this is an integer, of Python's, numpy's or torch's kind."""
    if isinstance(value, bool | np.ndarray) or "bool" in str(getattr(value, "dtype", "")):
        return False
    try:
        return index(value) is not None
    except TypeError:
        return False


def check_token(name: str, token: int, size: int) -> None:
    """Refuse an id that is none of ``size`` tokens."""
    if not 0 <= token < size:
        raise ValueError(f"{name}={token} is no token id of this model: ids go from 0 to {size - 1}")


def check_literals(options: Any) -> None:
    """Check every field of an options dataclass that is annotated with a ``Literal``."""
    for name, kind in get_type_hints(type(options)).items():
        if get_origin(kind) is Literal:
            check_choice(name, getattr(options, name), get_args(kind))


def check_names(method: type, given: Iterable[str]) -> None:
    """Refuse options that a method does not have, and list the ones it has."""
    known = [field.name for field in fields(method)]
    for name in given:
        if name not in known:
            raise TypeError(f"{method.__name__} has no option {name!r}{_hint(name, known)}; it has {', '.join(known)}")


def _hint(value: Any, choices: list[Any]) -> str:
    by_text = {str(choice): choice for choice in choices}
    close = get_close_matches(str(value), by_text, n=1)
    return f" (did you mean {by_text[close[0]]!r}?)" if close else ""
