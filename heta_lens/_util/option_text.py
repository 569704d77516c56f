"""Options as they are written on the command line, ``NAME=VALUE``, read as Python values."""

import warnings
from ast import literal_eval
from collections.abc import Iterable, Mapping
from typing import Any

from heta_lens._util.file_reading import brief, check_utf8


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
