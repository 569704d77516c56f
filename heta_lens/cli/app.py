"""Flags that several commands share: a command gets those that were used together, as one argument."""

import json
import logging
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args

import typer
from rich.console import Console, RenderableType
from rich.text import Text
from typer.core import TyperCommand

import heta_lens
from heta_lens._util.text import plain

Command: TypeAlias = Callable[..., None]


def with_flags(flags: Mapping[str, Any], into: str) -> Callable[[Command], Command]:
    """Decorates a command: its argument of the name ``into`` gets the values of the flags that were used."""

    def decorate(run: Command) -> Command:
        def with_these(**given: Any) -> None:
            values = {name: given.pop(name) for name in flags}
            used = {name: value for name, value in values.items() if value is not None and value is not False}
            run(**given, **{into: used})

        return with_parameters(with_these, run, flags, without=into)

    return decorate


def with_parameters(wrapper: Command, run: Command, flags: Mapping[str, Any], without: str = "") -> Command:
    """The wrapper with the parameters of the command that it runs, ``without`` one, and with these flags."""
    own = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY)
        for parameter in signature(run, eval_str=True).parameters.values()
        if parameter.name != without
    ]
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=_unused(kind), annotation=kind) for name, kind in flags.items()
    ]
    parameters = [*own, *added]
    wrapper = wraps(run)(wrapper)
    vars(wrapper)["__signature__"] = signature(run).replace(parameters=parameters)
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def _unused(kind: Annotated[Any, ...]) -> Any:
    """The value of a flag that was not used."""
    return False if get_args(kind)[0] is bool else None


# ---------------------------------------------------------------------------------------------------------- quiet flag
# ``--quiet``: a command prints its results and errors, and nothing beside them.


QUIET_HELP = "Only results and errors: no warnings, progress bars or names of files that were written."
TQDM = "TQDM_DISABLE"  # which other libraries' progress bars heed once they are imported
QUIET_FLAG = {"be_quiet": Annotated[bool, typer.Option("--quiet", "-q", help=QUIET_HELP)]}

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

    return with_parameters(either, run, QUIET_FLAG)


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


# --------------------------------------------------------------------------------------------------------- comma lists
# Arguments that name several things, with commas between them: ``-m lime,random``.


def listed(given: list[str] | None, default: list[str]) -> list[str]:
    """What was given, one by one or with commas between (those in brackets belong to an option)."""
    return [part.strip() for entry in given or default for part in _split(entry) if part.strip()]


def _split(entry: str) -> list[str]:
    parts, depth = [""], 0
    for letter in entry:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


# --------------------------------------------------------------------------------------------------------- json output
# ``--json``: a command prints one JSON document on stdout, and everything else that it says on stderr.
#
# The document has the version of its ``schema``, the ``command``, what the command adds to it, and, if it did not
# succeed, the ``error``.


SCHEMA = 1
JSON_HELP = "Print one JSON document on stdout, and all else on stderr."
JSON_FLAG = {"as_json": Annotated[bool, typer.Option("--json", help=JSON_HELP)]}

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

    return with_parameters(either, run, JSON_FLAG)


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


# ------------------------------------------------------------------------------------------------- errors and messages
# What commands print: results, warnings and errors, each a line that cannot steer the terminal.


def say(what: object, *, err: bool = False, style: str = "") -> None:
    """Print a line as it is: what it quotes of files, tokens and arguments cannot steer the terminal."""
    from heta_lens._util.text import legible

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
        from heta_lens._util.files import check_distinct

        check_distinct(dict(zip(names, written, strict=False)))


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """Without the line of code a warning came from, which says nothing here."""
    if not quiet():
        _complain(message, "yellow")


def _complain(what: object, style: str) -> None:
    say(f"heta-lens: {what}", err=True, style=style)


# --------------------------------------------------------------------------------------------------------- application
# The command itself, and the options that several commands share.


MODELS = "demo (knows the words of its stories), a name on the Hugging Face hub, a folder, or a GGUF file."
EXIT_CODES = (
    "Exit codes: 0 done; 1 nothing to show (every method failed, or no metric has a value); 2 something was wrong with "
    "the request, the model or a file; 130 interrupted."
)
RETRY = "Run again what raised an error or was not finite (by default it stays failed)."

Page = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a standalone HTML page.")]
Retry = Annotated[bool, typer.Option("--retry-failed", help=RETRY)]


# TransformerLens imports bitsandbytes for every model, which warns of a kernel that is not installed.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


class Once(TyperCommand):
    """A command that refuses an option of one value given twice, instead of taking its last value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args([*args])
        counts = Counter(option.opts[0] for option in given if not getattr(option, "multiple", False))
        for name, count in counts.items():
            if count > 1:
                ctx.fail(f"{name} was given {count} times, and takes one value")
        return super().parse_args(ctx, args)


app = typer.Typer(
    help="Which tokens made the model say that?", epilog=EXIT_CODES, no_args_is_help=True, rich_markup_mode=None
)


def command(name: str, group: typer.Typer | None = None) -> Callable[[Command], Command]:
    """Make a function a command of this name, which can also print JSON, or be quiet; ``a b`` is b of the group a."""

    def decorate(run: Command) -> Command:
        in_group = (group or app).command(name.rpartition(" ")[2], cls=Once)
        return in_group(with_json(name, with_quiet(run)))

    return decorate


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"heta-lens {heta_lens.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def heta_lens_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Which tokens made the model say that?"""
