"""``--quiet``: a command prints its results and errors, and nothing beside them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any

import typer

from heta_lens.cli.flag_groups import Command, with_parameters

HELP = "Only results and errors: no warnings, progress bars or names of files that were written."
FLAG = {"be_quiet": Annotated[bool, typer.Option("--quiet", "-q", help=HELP)]}

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def quiet() -> bool:
    """Whether only results and errors are to be printed."""
    return _quiet.get()


def bars() -> bool | None:
    """What ``progress=`` is to be: no bar, or one where somebody watches."""
    return False if quiet() else None


def with_quiet(run: Command) -> Command:
    """Give a command the flag."""

    def either(*, be_quiet: bool, **values: Any) -> None:
        with _set(be_quiet):
            run(**values)

    return with_parameters(either, run, FLAG)


@contextmanager
def _set(value: bool) -> Iterator[None]:
    token = _quiet.set(value)
    try:
        yield
    finally:
        _quiet.reset(token)
