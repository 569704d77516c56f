"""What commands print: results, warnings and errors, each a line that cannot steer the terminal."""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from heta_lens.cli.json_output import add, wanted
from heta_lens.cli.quiet_flag import quiet


def say(what: object, *, err: bool = False, style: str = "") -> None:
    """Print a line as it is: what it quotes of files, tokens and arguments cannot steer the terminal."""
    from heta_lens._util.printable_text import legible

    Console(stderr=err).print(Text(legible(str(what), keep="\n"), style=style), soft_wrap=True)


def note(what: object) -> None:
    """Print a line beside the results, such as the name of a file that was written; not with ``--quiet``."""
    if not quiet():
        say(what)


def show(view: RenderableType) -> None:
    """Print a view for people, unless a document is wanted."""
    if not wanted():
        Console().print(view)


@contextmanager
def resumable() -> Iterator[None]:
    """Say of an interrupted command that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        sentence = "interrupted: what is finished is kept, and the same command resumes"
        add(error=sentence)
        _complain(sentence, "yellow")
        raise typer.Exit(130) from None


@contextmanager
def errors_in_a_line(*written: Path | None, names: Sequence[str] = ("--html", "--save")) -> Iterator[None]:
    """Say what was wrong in a line, not in a traceback; files that cannot be written before any long work.

    Files of different options, by their ``names``, must not be one.
    """
    try:
        _check_writable(names, *written)
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            yield
    except (ValueError, TypeError, OSError, RuntimeError, MemoryError, ImportError) as error:
        add(error=str(error))
        _complain(error, "red")
        raise typer.Exit(2) from None
    except Exception as error:
        if type(error).__name__ != "SafetensorError":  # which is imported only where it can be raised
            raise
        add(error=str(error))
        _complain(error, "red")
        raise typer.Exit(2) from None


def _check_writable(names: Sequence[str], *written: Path | None) -> None:
    paths = [path for path in written if path is not None]
    for path in paths:
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise ValueError(f"{path} cannot be written: give a file in a folder that exists")
    if paths:
        from heta_lens._util.file_writing import check_distinct

        check_distinct(dict(zip(names, written, strict=False)))


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """Without the line of code a warning came from, which says nothing here."""
    if not quiet():
        _complain(message, "yellow")


def _complain(what: object, style: str) -> None:
    say(f"heta-lens: {what}", err=True, style=style)
