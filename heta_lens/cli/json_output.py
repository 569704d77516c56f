"""``--json``: a command prints one JSON document on stdout, and everything else that it says on stderr.

The document has the version of its ``schema``, the ``command``, what the command adds to it, and, if it did not
succeed, the ``error``.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import Annotated, Any

import typer

from heta_lens._util.plain_json import plain
from heta_lens.cli.flag_groups import Command, with_parameters

SCHEMA = 1
HELP = "Print one JSON document on stdout, and all else on stderr."
FLAG = {"as_json": Annotated[bool, typer.Option("--json", help=HELP)]}

_document: ContextVar[dict[str, Any] | None] = ContextVar("document", default=None)


def wanted() -> bool:
    """Whether a document is wanted, and no view."""
    return _document.get() is not None


def add(**parts: Any) -> None:
    """Add to the document, if one is wanted."""
    document = _document.get()
    if document is not None:
        document.update(parts)


def with_json(name: str, run: Command) -> Command:
    """Give a command the flag."""

    def either(*, as_json: bool, **values: Any) -> None:
        if as_json:
            with _printed_as_json(name):
                run(**values)
        else:
            run(**values)

    return with_parameters(either, run, FLAG)


@contextmanager
def _printed_as_json(command: str) -> Iterator[None]:
    document: dict[str, Any] = {"schema": SCHEMA, "command": command}
    token = _document.set(document)
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (typer.Exit, typer.Abort):
        raise
    except BaseException as error:
        document.setdefault("error", "interrupted" if isinstance(error, KeyboardInterrupt) else _described(error))
        raise
    finally:
        _document.reset(token)
        sys.stdout.write(json.dumps(plain(document), allow_nan=False) + "\n")


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
