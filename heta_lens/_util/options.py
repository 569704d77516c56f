"""Checking a method's options, so that a wrong one is refused before any work."""

import os
import re
import sys
from ast import literal_eval
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, fields
from difflib import get_close_matches
from importlib import import_module
from math import inf
from numbers import Real
from operator import attrgetter, index
from os import PathLike, fspath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import numpy as np
from torch import Tensor

from heta_lens._util.files import brief
from heta_lens._util.python import warn

# -------------------------------------------------------------------------------------------- types of values in files
WORDS = {
    **{str: "text", int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"},
    **{Mapping: "an object", Sequence: "a list", tuple: "a list", frozenset: "a set"},
}


def check_types(kinds: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Refuse a value of another type than its name is annotated with; names may be missing."""
    for name, kind in kinds.items():
        if name in values and not fits(value := values[name], kind):
            raise TypeError(f"its {name} is {brief(value)}, and must be {described(kind)}")


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of an annotated type, which may be nested."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in inner)
    if origin is Literal:
        return value in inner
    if origin in (int, float):
        return isinstance(value, int if origin is int else int | float) and not isinstance(value, bool)
    if origin is Mapping:
        key, item = inner or (Any, Any)
        return isinstance(value, Mapping) and all(fits(k, key) and fits(v, item) for k, v in value.items())
    if origin in (Sequence, tuple, frozenset):
        if not isinstance(value, list | tuple if origin is Sequence else origin):
            return False
        kinds = [inner[0]] * len(value) if len(inner) == 1 or inner[-1] is ... else inner
        return len(value) == len(kinds) and all(map(fits, value, kinds))
    return isinstance(value, origin)


def described(kind: Any) -> str:
    """Return a type in words, for errors."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(described, get_args(kind))))
    outer, inner = get_origin(kind) or kind, [argument for argument in get_args(kind) if argument not in (..., Any)]
    named = WORDS.get(outer, str(getattr(outer, "__name__", outer)))
    return f"{named} of {described(inner[-1])}" if outer in (Mapping, Sequence, tuple, frozenset) and inner else named


# ------------------------------------------------------------------------------------------------------ single options
def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Refuse a value that is not among the choices, and list the choices."""
    choices = list(choices)
    if value not in choices or isinstance(value, bool):
        raise ValueError(f"{name}={brief(value)} is not one of {', '.join(map(repr, choices))}{hint(value, choices)}")


def hint(value: Any, choices: Iterable[Any]) -> str:
    """Suggest the choice that may have been meant, if any."""
    by_text = {str(choice): choice for choice in choices}
    begun = sorted((text for text in by_text if text.startswith(f"{value}_")), key=len)
    close = begun or get_close_matches(str(value), by_text, n=1)
    return f" (did you mean {by_text[close[0]]!r}?)" if close else ""


def check_at_least(name: str, value: Any, least: float | int, *, whole: bool = False) -> None:
    """Refuse values other than finite (whole) numbers from a minimum on."""
    if not (is_whole(value) or (not whole and isinstance(value, Real) and not isinstance(value, bool))):
        raise TypeError(f"{name}={value!r} must be a {'whole ' if whole else ''}number")
    if not least <= value < inf:  # type: ignore[operator]
        raise ValueError(f"{name}={value!r} must be {'finite' if value == inf else f'at least {least}'}")


def is_whole(value: Any) -> bool:
    """Return whether a value is an integer of Python, numpy or torch."""
    if isinstance(value, bool | np.ndarray) or "bool" in str(getattr(value, "dtype", "")):
        return False
    try:
        return index(value) is not None
    except TypeError:
        return False


def chosen_positions(name: str, positions: Any, count: int, of: str) -> list[int]:
    """Return positions as plain numbers, all of them for None; ``of`` names the sequence in the error message."""
    if positions is None:
        return [*range(count)]
    if not isinstance(positions, Iterable) or isinstance(positions, str) or getattr(positions, "ndim", 1) == 0:
        raise TypeError(f"{name}={positions!r} is not a list of positions: write [3] for one, [3, 4] for two")
    places = list(positions)
    if not places:
        raise ValueError(f"{name} is empty: name a position at least")
    for place in places:
        if not (is_whole(place) and 0 <= index(place) < count):
            raise ValueError(
                f"position {place!r} is none of the {count} positions {of}, which are counted from 0"
                f"{from_end(place, count)}"
            )
        if places.count(place) > 1:
            raise ValueError(f"{name} names position {place} more than once")
    return [index(place) for place in places]


def from_end(number: Any, count: int) -> str:
    """Suggest the number that may have been meant by a negative one."""
    return f": write {count + index(number)}" if is_whole(number) and -count <= index(number) < 0 else ""


def check_token(name: str, token: int, size: int) -> None:
    """Refuse an id that is none of ``size`` tokens."""
    if not (is_whole(token) and 0 <= token < size):
        raise ValueError(f"{name}={token} is not a token id of this model: ids go from 0 to {size - 1}")


@dataclass(frozen=True)
class AtLeast:
    """The annotation of an option: ``steps: Annotated[int, AtLeast(1, whole=True)] = 50``."""

    least: float | int
    _: KW_ONLY
    whole: bool = False
    below: float | int = inf
    most: float | int = inf

    def __call__(self, name: str, value: Any) -> None:
        check_at_least(name, value, self.least, whole=self.whole)
        if value >= self.below:
            raise ValueError(f"{name}={value!r} must be below {self.below}")
        if value > self.most:
            raise ValueError(f"{name}={value!r} must be at most {self.most}")


COUNT = check_count = AtLeast(1, whole=True)


Batch: TypeAlias = Annotated[int | Literal["auto"], AtLeast(1, whole=True)]
Seed: TypeAlias = Annotated[int, AtLeast(0, whole=True, below=2**31)]  # there is room to count up from any


# ------------------------------------------------------------------------------------------------- options of a method
class Options:
    """Base of a dataclass of options, which checks the options and warns of options without effect."""

    def __post_init__(self) -> None:
        check_options(self)
        if unused := self.unused_options:
            why = self.without_effect
            warn("; ".join(f"{name}={brief(getattr(self, name))} has no effect with {why[name]}" for name in unused))

    @property
    def without_effect(self) -> Mapping[str, str]:
        """Options without effect, each with the option that makes it so: ``variant='gs' (…)``."""
        return {}

    @property
    def unused_options(self) -> tuple[str, ...]:
        """Given options without effect; None and False leave something off and do not count."""
        reasons = self.without_effect
        if not reasons:
            return ()
        given = chosen(self).items()
        return tuple(name for name, value in given if name in reasons and value is not None and value is not False)


def check_options(options: Any) -> None:
    """Check options that differ from their defaults by the annotations: a ``Literal``, ``bool``, or special checks.

    Numbers of numpy and torch become numbers of Python, and floats where the default is one.
    """
    kinds = get_type_hints(type(options), include_extras=True)
    for option in fields(options):
        given = value = getattr(options, option.name)
        if value is option.default:
            continue
        if is_whole(value):
            value = float(value) if isinstance(option.default, float) else index(value)
        elif isinstance(value, Real) and not isinstance(value, bool):
            value = float(value)
        object.__setattr__(options, option.name, value)
        if not _same(value, option.default):
            _check_option(option.name, given if isinstance(given, Real) else value, kinds[option.name])


def _check_option(name: str, value: Any, kind: Any) -> None:
    if get_origin(kind) is Literal:
        check_choice(name, value, get_args(kind))
    elif kind in (bool, bool | None) and not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be True or False")
    parts = get_args(get_args(kind)[0]) if get_origin(kind) is Annotated else ()  # of a union that is annotated
    if value is None and NoneType in parts:
        return
    try:
        for check in getattr(kind, "__metadata__", ()):
            check(name, value)
    except TypeError as error:
        words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
        words += [None] if NoneType in parts else []
        raise TypeError(", or ".join([str(error), *map(repr, words)])) from None


def chosen(options: Any, without: Collection[str] = ()) -> dict[str, Any]:
    """Return the options that are not at their default, as they are stored with a result."""
    given = ((option, getattr(options, option.name)) for option in fields(options) if option.name not in without)
    return {option.name: _storable(value) for option, value in given if not _same(value, option.default)}


def settings(options: Any) -> dict[str, Any]:
    """Return all options behind a result, in their stored form."""
    return {each.name: _storable(getattr(options, each.name)) for each in fields(options) if each.name != "progress"}


def _storable(value: Any) -> Any:
    """Return a value that can be stored: a copy of a tensor, the text of a path, the name of a function."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, PathLike):
        return fspath(value)
    if not callable(value):
        return value
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _same(value: Any, default: Any) -> bool:
    return value is default or (not isinstance(value, Tensor) and type(value) is type(default) and value == default)


def check_names(method: type, given: Iterable[str]) -> None:
    """Refuse options that a method does not have, and list the ones it has."""
    known = list(map(attrgetter("name"), fields(method)))
    for name in given:
        if name not in known:
            title = getattr(method, "name", method.__name__)
            raise TypeError(f"{title} has no option {name!r}{hint(name, known)}; it has {', '.join(known)}")


# -------------------------------------------------------------------------------------------------- options and objects
def assignments(given: Iterable[str]) -> dict[str, str]:
    """Read ``["probes=20", "support=row"]`` as names and texts."""
    values: dict[str, str] = {}
    for option in given:
        name, equals, value = option.partition("=")
        if not (name.isidentifier() and equals and value):
            raise ValueError(f"option {brief(option)} is not of the form NAME=VALUE, like probes=20")
        if name in values:
            raise ValueError(f"option {name!r} is given twice: give it once, as {name}={brief(value)[1:-1]}")
        values[name] = value
    return values


def keywords(given: Iterable[str]) -> dict[str, Any]:
    """Read ``["probes=20", "support=row"]``: Python values, true, false, and anything else as text."""
    values: dict[str, Any] = assignments(given)
    for name, value in values.items():
        with suppress(ValueError, SyntaxError, TypeError):  # unhashable, as in "{{}}"
            values[name] = literal_eval(value.title() if value in ("true", "false") else value)
    return values


FORM = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*(\.\w+)*")


def is_object_name(name: object) -> bool:
    """Return whether a name has the form ``module:object``."""
    return isinstance(name, str) and FORM.fullmatch(name) is not None


def named_object(name: str) -> Any:
    """Load an object by name, from any file that Python finds, the current folder's included."""
    module, _, path = name.partition(":")
    here = os.getcwd()
    sys.path.insert(0, here)  # a command does not have the current folder, unlike `python -m`
    try:
        return attrgetter(path)(import_module(module))
    except Exception as error:  # whatever somebody's module raises
        raise ValueError(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(here)
