"""Whether what was read from a file has the types that a dataclass is annotated with."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from heta_lens._util.file_reading import brief

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
    check_names(kind, values)
    check_types({name: hint for name, hint in get_type_hints(kind).items() if name in values}, values)


def check_names(kind: type, values: Any) -> None:
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
