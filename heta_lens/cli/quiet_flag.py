"""``--quiet``: a command prints its results and errors, and nothing beside them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any

import typer

from heta_lens.cli.flag_groups import Command, with_parameters

HELP = "Only results and errors: no warnings, progress bars or names of files that were written."
TQDM = "TQDM_DISABLE"  # which other libraries' progress bars heed once they are imported
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
    token, bars_before = _quiet.set(value), os.environ.get(TQDM)
    if value:
        os.environ[TQDM] = "1"
    try:
        yield
    finally:
        _quiet.reset(token)
        if value:
            os.environ.pop(TQDM)
            os.environ |= {} if bars_before is None else {TQDM: bars_before}
