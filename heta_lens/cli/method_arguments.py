"""Which methods explain: ``--method`` with ``--option``, or several methods with their options."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heta_lens.cli.comma_lists import listed
from heta_lens.cli.flag_groups import with_flags
from heta_lens.cli.quiet_flag import bars

if TYPE_CHECKING:
    from heta_lens import Method

METHOD = "fast, careful or any of heta-lens methods (heta); several with commas or repeated, as 'lime samples=99'."
OPTIONS = "An option of the one method, like probes=20; may be repeated."
FLAGS: dict[str, Any] = {
    "method": Annotated[list[str] | None, typer.Option("--method", "-m", metavar="METHOD", help=METHOD)],
    "option": Annotated[list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help=OPTIONS)],
}
"""What methods are chosen by."""

with_method_flags = with_flags(FLAGS, "method_flags")
"""Gives a command these flags; it gets those that were used as ``method_flags``, for `methods_of`."""

ONE = "One method, as heta-lens methods lists them (heta), with options as 'lime samples=99'; or a preset."
one = {"method": Annotated[list[str] | None, typer.Option("--method", "-m", metavar="METHOD", help=ONE)]}
with_one_method_flag = with_flags({**FLAGS, **one}, "method_flags")
"""The same, for a command that takes one method."""


def methods_of(method_flags: Mapping[str, Any]) -> "dict[str, Method]":
    """The methods by label, with their options, checked before a model is loaded."""
    options, names = method_flags.get("option", []), listed(method_flags.get("method"), [])
    if options and len(names) > 1:
        way = f"write it behind its method, -m '{names[0]} {options[0]}'"
        raise ValueError(f"--option {options[0]} is of one method, and there are {len(names)}: {way}")
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the method {twice} is given twice: give it once, or with other options")
    methods = {label: _without_bars(_named(label, options)) for label in names or ["heta"]}
    for first, second in combinations(methods, 2):
        if _same(methods[first], methods[second]):
            raise ValueError(f"{first} and {second} are the same method: give one of them, or other options")
    return methods


def _same(first: "Method", second: "Method") -> bool:
    """Whether they are one method with the same options: methods are compared by identity otherwise."""
    from heta_lens._util.options import settings

    return type(first) is type(second) and settings(first) == settings(second)


def _named(label: str, options: Sequence[str]) -> "Method":
    """``"lime"`` with these options, or ``"lime samples=200"`` with its own ones too; or a preset by its name."""
    from heta_lens.api import method_of

    try:
        name, *own = shlex.split(label)
    except ValueError as error:
        raise ValueError(f"--method {label} is no method and its options ({error}): write 'lime samples=200'") from None
    return method_of(name, method_options([*own, *options]))


def _without_bars(method: "Method") -> "Method":
    return method if bars() is None else replace(method, progress=bars())


def method_options(given: Sequence[str]) -> dict[str, Any]:
    """``["probes=20", "support=row"]`` as keywords."""
    from heta_lens._util.option_text import keywords

    options = keywords(given)
    for name in options:
        if name in ("cache", "target", "tokens", "method"):
            raise ValueError(f"--option {name}=… is not an option of a method: the text, --target and --method say it")
    return options
