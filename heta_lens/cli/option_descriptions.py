"""The options of a method as its class declares and documents them: type, default and what each does."""

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from inspect import cleandoc
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints


class OptionDescription(NamedTuple):
    name: str
    type: str
    default: str
    help: str


def described_options(method: type) -> list[OptionDescription]:
    """Every option of a method but ``progress``, in the order of its docstring, which begins with its own."""
    kinds, helps = get_type_hints(method, include_extras=True), documented(method.__doc__ or "")
    order = {name: place for place, name in enumerate(helps)}
    own = [field for field in fields(method) if field.name != "progress"]
    own.sort(key=lambda field: order.get(field.name, len(order)))
    return [
        OptionDescription(field.name, type_text(kinds[field.name]), _default(field), helps.get(field.name, ""))
        for field in own
    ]


def description(method: type) -> str:
    """What the docstring says before it comes to options."""
    before = re.split(r"^(?:- ``|Cost: |Adapted: )", cleandoc(method.__doc__ or ""), maxsplit=1, flags=re.MULTILINE)[0]
    return "\n\n".join(" ".join(part.replace("`", "").split()) for part in before.split("\n\n")).strip()


def documented(docstring: str) -> Mapping[str, str]:
    """By the name of an option, its line: those that ``- ``a``, ``b``: …`` names share it, which it then says."""
    lines: dict[str, str] = {}
    for entry in re.split(r"\n(?=- ``)", cleandoc(docstring)):
        head, colon, text = entry.partition(": ")
        if entry.startswith("- ``") and colon:
            line, names = " ".join(text.split("\n\n")[0].replace("``", "").split()), re.findall(r"``(\w+)``", head)
            shared = f"{', '.join(names)}: " if len(names) > 1 else ""
            lines |= dict.fromkeys(names, shared + line)
    return lines


def type_text(kind: Any) -> str:
    """An annotation for people: ``int ≥ 1 or none``, ``ridge or lasso``."""
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if hasattr(kind, "__metadata__"):
        base, *checks = get_args(kind)
        return _bounded(type_text(base), " ".join(filter(None, map(_bound, checks))))
    if get_origin(kind) in (Union, UnionType):
        return _union(get_args(kind))
    name = getattr(kind, "__name__", str(kind))
    return WORDS.get(name, name)


WORDS = {"NoneType": "none", "SupportsIndex": "a token id", "Tensor": "a vector", "bool": "True or False"}


def _bounded(words: str, bound: str) -> str:
    """The bound stands behind the number that it is of."""
    return re.sub(r"\b(int|float)\b", rf"\1 {bound}", words, count=1) if bound else words


def _union(parts: tuple[Any, ...]) -> str:
    """A float may be given as a whole number too, which goes without saying."""
    kept = [part for part in parts if not (part is int and float in parts)]
    return " or ".join(dict.fromkeys(map(type_text, kept)))


def _bound(check: Any) -> str:
    """The least value of a number, if this is what is checked."""
    least = getattr(check, "least", None)
    return "" if least is None else f"≥ {least:g}"


def _default(field: Any) -> str:
    if field.default is MISSING:
        return "required" if field.default_factory is MISSING else str(field.default_factory())
    return "none" if field.default is None else str(field.default)
