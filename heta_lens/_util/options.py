"""Checking a method's options, so that a wrong one is refused before any work."""

import os
import re
import sys
import warnings
from ast import literal_eval
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, Field, dataclass, fields
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

from heta_lens._util.files import brief, check_utf8
from heta_lens._util.python import warn

# --------------------------------------------------------------------------------------------------------- type checks
# Whether what was read from a file has the types that a dataclass is annotated with.


WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    NoneType: "null",
    Mapping: "an object",
    Sequence: "a list",
    frozenset: "a set",
    tuple: "a list",
}


def check_fields(kind: type, values: Mapping[str, Any]) -> None:
    """Refuse fields that the dataclass does not have, lacks, or annotates with another type."""
    check_field_names(kind, values)
    check_types({name: hint for name, hint in get_type_hints(kind).items() if name in values}, values)


def check_field_names(kind: type, values: Any) -> None:
    """Refuse fields that the dataclass does not have, or lacks."""
    if not isinstance(values, Mapping):
        raise TypeError(f"it is {brief(values)}, and must have the fields of a {kind.__name__}")
    known = {field.name: field for field in fields(kind)}
    if unknown := [name for name in values if name not in known]:
        raise ValueError(f"it has an unknown field {brief(unknown[0])}")
    if missing := [name for name, field in known.items() if name not in values and _is_required(field)]:
        raise ValueError(f"it has no {', '.join(missing)}")


def check_types(kinds: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Refuse a value of another type than its name is annotated with; names may be missing."""
    for name, kind in kinds.items():
        if name in values and not fits(values[name], kind):
            raise TypeError(f"its {name} is {brief(values[name])}, and must be {described(kind)}")


def _is_required(field: "Field[Any]") -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of an annotated type, which may be nested."""
    origin, inner = get_origin(kind) or kind or NoneType, get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(value, kind) for kind in inner)
    if origin is Literal:
        return value in inner
    if origin in (int, float):
        return isinstance(value, int if origin is int else int | float) and not isinstance(value, bool)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(_all_fit(item, inner or (Any, Any)) for item in value.items())
    if origin in (Sequence, tuple):
        return isinstance(value, tuple if origin is tuple else list | tuple) and _all_fit(value, _spread(value, inner))
    if origin is frozenset:
        return isinstance(value, frozenset) and all(fits(item, *inner) for item in value)
    return isinstance(value, origin)


def _spread(value: Sequence[Any], inner: Sequence[Any]) -> Sequence[Any]:
    """The kind of each item, where one kind stands for all of them."""
    one_kind = len(inner) == 1 or inner[-1] is ...
    return [inner[0]] * len(value) if one_kind else inner


def _all_fit(values: Sequence[Any], kinds: Sequence[Any]) -> bool:
    return len(values) == len(kinds) and all(map(fits, values, kinds))


def described(kind: Any) -> str:
    """The type in words, for an error."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(described, get_args(kind))))
    outer, inner = get_origin(kind) or kind, [argument for argument in get_args(kind) if argument not in (..., Any)]
    named = WORDS.get(outer, str(getattr(outer, "__name__", outer)))
    return f"{named} of {described(inner[-1])}" if outer in (Mapping, Sequence, tuple, frozenset) and inner else named


Check: TypeAlias = Callable[[str, Any], None]  # of an option, by its name


def check_choice(name: str, value: Any, choices: Iterable[Any], elsewhere: Mapping[Any, str] = {}) -> None:
    """Refuse a value that is not among the choices, and list them; ``elsewhere`` is what to do in place of others."""
    choices = list(choices)
    if value not in choices or isinstance(value, bool):
        way = next((f" ({instead})" for other, instead in elsewhere.items() if other == value), hint(value, choices))
        raise ValueError(f"{name}={brief(value)} is not one of {', '.join(map(repr, choices))}{way}")


def check_at_least(name: str, value: Any, least: float | int, *, whole: bool = False) -> None:
    """Refuse what is not a (whole) number, or below its minimum, or not finite."""
    if not (is_whole(value) or (not whole and isinstance(value, Real) and not isinstance(value, bool))):
        raise TypeError(f"{name}={value!r} must be a {'whole ' if whole else ''}number")
    number: Any = value  # which a float may be too small for
    if not least <= number < inf:
        raise ValueError(f"{name}={value!r} must be {'finite' if value == inf else f'at least {least}'}")


def is_whole(value: Any) -> bool:
    """Whether this is an integer, of Python's, numpy's or torch's kind."""
    if isinstance(value, bool | np.ndarray) or "bool" in str(getattr(value, "dtype", "")):
        return False
    try:
        return index(value) is not None
    except TypeError:
        return False


def check_batch(batch: Any) -> None:
    """Refuse what says of no number of copies that they run at once."""
    if isinstance(batch, str) and batch == "auto":
        return
    AtLeast(1, whole=True)("batch", batch)


def chosen_positions(name: str, positions: Any, count: int, of: str) -> list[int]:
    """Those that are named, as plain numbers, and all of them for None; ``of`` says what there are so many of."""
    if positions is None:
        return [*range(count)]
    if not isinstance(positions, Iterable) or getattr(positions, "ndim", 1) == 0:
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
    """What may have been meant by a negative number."""
    return f": write {count + index(number)}" if is_whole(number) and -count <= index(number) < 0 else ""


def check_token(name: str, token: int, size: int) -> None:
    """Refuse an id that is none of ``size`` tokens."""
    check_tokens(name, [token], size)


def check_tokens(name: str, tokens: Iterable[int], size: int) -> None:
    for token in tokens:
        if not 0 <= token < size:
            raise ValueError(f"{name}={token} is not a token id of this model: ids go from 0 to {size - 1}")


@dataclass(frozen=True)
class AtLeast:
    """For the annotation of an option: ``steps: Annotated[int, AtLeast(1, whole=True)] = 50``."""

    least: float | int
    _: KW_ONLY
    whole: bool = False
    below: float | int = inf
    most: float | int = inf

    def __call__(self, name: str, value: Any) -> None:
        check_at_least(name, value, self.least, whole=self.whole)
        if value >= self.below:
            raise ValueError(f"{name}={value!r} must be below {self.below}")
        most = min(self.most, LARGEST) if self.whole else self.most
        if value > most:
            raise ValueError(f"{name}={value!r} is more than can be run: give at most {most}")


LARGEST = 2**31 - 1  # that any library below reads as a whole number
MOST = 10**6  # of what is made or run one by one: more would end in days, or in no memory
COUNT = AtLeast(1, whole=True, most=MOST)


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is not a number of things that can be made or run one by one."""
    AtLeast(least, whole=True, most=MOST)(name, value)


Batch: TypeAlias = Annotated[int | Literal["auto"], AtLeast(1, whole=True)]
Seed: TypeAlias = Annotated[int, AtLeast(0, whole=True, below=2**31)]  # there is room to count up from any


class Options:
    """Base of a dataclass of options, which checks the options and warns of options without effect."""

    def __post_init__(self) -> None:
        check_options(self)
        if unused := self.unused_message():
            warn(unused)

    @property
    def given(self) -> dict[str, Any]:
        """The options that are not at their default."""
        return chosen(self)

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
        given = self.given.items()
        return tuple(name for name, value in given if name in reasons and value is not None and value is not False)

    def unused_message(self) -> str:
        """Name every unused option and the reason, or return an empty text."""
        return "; ".join(
            f"{name}={short(getattr(self, name))} has no effect with {self.without_effect[name]}"
            for name in self.unused_options
        )


def short(value: Any) -> str:
    return f"a vector of {len(value)}" if isinstance(value, Tensor) and value.ndim == 1 else repr(value)


def check_options(options: Any) -> None:
    """Check each option that is not at its default by its annotation: a ``Literal``, ``bool``, or checks of its own.

    Numbers of numpy and torch become numbers of Python.
    """
    kinds = get_type_hints(type(options), include_extras=True)
    for option in fields(options):
        value = getattr(options, option.name)
        if value is option.default:
            continue
        plain = _plain(value, option.default)
        object.__setattr__(options, option.name, plain)
        if not _same(plain, option.default):
            _check_option(option.name, value, kinds[option.name])


def _check_option(name: str, value: Any, kind: Any) -> None:
    if get_origin(kind) is Literal:
        check_choice(name, value, get_args(kind))
    elif kind in (bool, bool | None) and not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be True or False")
    if value is None and NoneType in _kinds(kind):
        return
    for check in getattr(kind, "__metadata__", ()):
        try:
            check(name, value)
        except TypeError as error:
            raise TypeError(f"{error}{words(kind)}") from None


def words(kind: Any) -> str:
    """What an option may be beside a number."""
    named = [word for part in _kinds(kind) if get_origin(part) is Literal for word in get_args(part)]
    return "".join(f", or {word!r}" for word in [*named, *([None] if NoneType in _kinds(kind) else [])])


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """What a union that is annotated consists of: ``Annotated[int | None, …]``."""
    return get_args(get_args(annotation)[0]) if get_origin(annotation) is Annotated else ()


def chosen(options: Any) -> dict[str, Any]:
    """Return the options that are not at their default."""
    return {
        field.name: _storable(value)
        for field in fields(options)
        if (value := getattr(options, field.name)) is not field.default and not _same(value, field.default)
    }


def settings(options: Any) -> dict[str, Any]:
    """Return all options that a result depends on, as they are stored with it."""
    return {
        field.name: _storable(getattr(options, field.name)) for field in fields(options) if field.name != "progress"
    }


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


def check_names(method: type, given: Iterable[str]) -> None:
    """Refuse options that a method does not have, and list the ones it has."""
    known = [field.name for field in fields(method)]
    for name in given:
        if name not in known:
            title = getattr(method, "name", method.__name__)
            raise TypeError(f"{title} has no option {name!r}{hint(name, known)}; it has {', '.join(known)}")


def _plain(value: Any, default: Any) -> Any:
    """A number as one of Python's; a whole one too is a float, where the default is."""
    if is_whole(value) and not isinstance(default, float):
        return index(value)
    return float(value) if is_whole(value) or (isinstance(value, Real) and not isinstance(value, bool)) else value


def _same(value: Any, default: Any) -> bool:
    return not isinstance(value, Tensor) and type(value) is type(default) and value == default


def hint(value: Any, choices: Iterable[Any]) -> str:
    """What may have been meant, if anything."""
    by_text = {str(choice): choice for choice in choices}
    begun = sorted((text for text in by_text if text.startswith(f"{value}_")), key=len)
    close = begun or get_close_matches(str(value), by_text, n=1)
    return f" (did you mean {by_text[close[0]]!r}?)" if close else ""


# --------------------------------------------------------------------------------------------------------- option text
# Options as they are written on the command line, ``NAME=VALUE``, read as Python values.


def keywords(given: Iterable[str]) -> dict[str, Any]:
    """``["probes=20", "support=row"]``: what reads as a Python value is one, anything else is text."""
    pairs, names = [option.partition("=") for option in given], set[str]()
    for name, equals, value in pairs:
        if not (name.isidentifier() and equals and value):
            raise ValueError(f"option {brief(name + equals + value)} is not of the form NAME=VALUE, like probes=20")
        check_utf8(f"option {name!r}", value)
        if name in names:
            raise ValueError(f"option {name!r} is given twice: give it once, as {name}={brief(value)[1:-1]}")
        names.add(name)
    return {name: _read(value) for name, _, value in pairs}


def _read(written: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the parser, that text such as "1is" looks like a mistake
            return literal_eval(written)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return written


def written(options: Mapping[str, Any], method: str = "") -> str:
    """A method or preset with its options as a call has them; without a method, HETA's options."""
    given = ", ".join(f"{name}={value!r}" for name, value in options.items())
    if not method:
        return given or "HETA with its defaults"
    return f"{method}({given})" if given else method


# ------------------------------------------------------------------------------------------------------- named objects
# Objects named as ``module:object``, from any file that Python finds, the current folder's included.


FORM = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*(\.\w+)*")


def is_object_name(name: object) -> bool:
    return isinstance(name, str) and FORM.fullmatch(name) is not None


def named_object(name: str) -> Any:
    """The object of this name; what is not there, or fails to load, is refused."""
    module, _, path = name.partition(":")
    here = os.getcwd()
    added = [] if here in sys.path else [here]  # which a command does not have, unlike `python -m`
    sys.path[:0] = added
    try:
        return attrgetter(path)(import_module(module))
    except Exception as error:  # whatever somebody's module raises
        raise ValueError(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error
    finally:
        if added and here in sys.path:
            sys.path.remove(here)
