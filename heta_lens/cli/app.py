"""The command ``heta-lens``: registration of subcommands, output as text or JSON, and errors in a line."""

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from functools import update_wrapper
from importlib.metadata import version
from inspect import Parameter, Signature, signature
from io import TextIOWrapper
from typing import Annotated, Any, TypeAlias, get_origin, get_type_hints

import typer
from rich.console import Console, RenderableType
from rich.text import Text
from typer import Option

Command: TypeAlias = Callable[..., None]

EXIT_CODES = (
    "Exit codes: 0 done; 1 nothing to show (every method failed, or no metric has a value); 2 something was wrong with "
    "the request, the model or a file; 130 interrupted."
)
QUIET = "Only results and errors: no warnings, progress bars or names of files that were written."
JSON = "Print one JSON document on stdout, and all else on stderr."
VERSIONED = ("heta-lens", "transformer-lens", "transformers", "torch")  # packages that numbers depend on
SCHEMA = 1  # version of the JSON documents

# TransformerLens imports bitsandbytes for every model; bitsandbytes then warns of a missing kernel.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

app = typer.Typer(
    help="Which tokens made the model say that?", epilog=EXIT_CODES, no_args_is_help=True, rich_markup_mode=None
)


def _print_version(wanted: bool | None) -> None:
    if wanted:
        from platform import python_version

        own, *others = [f"{name} {version(name)}" for name in VERSIONED]
        typer.echo(f"{own} ({', '.join([*others, f'Python {python_version()}'])})")
        raise typer.Exit


@app.callback()
def heta_lens_command(
    version: Annotated[
        bool | None, Option("--version", callback=_print_version, is_eager=True, help="Show the versions and exit.")
    ] = None,
) -> None:
    """Which tokens made the model say that?"""


@dataclass(frozen=True)
class OutputFlags:
    """Flags of every subcommand."""

    quiet: Annotated[bool, Option("--quiet", "-q", help=QUIET)] = False
    as_json: Annotated[bool, Option("--json", help=JSON)] = False


def command(name: str, group: typer.Typer = app, *, resumes: bool = False) -> Callable[[Command], Command]:
    """Register a function as a subcommand with ``--quiet`` and ``--json``.

    A parameter annotated with a dataclass stands for the flags in the fields of the dataclass. ``name`` has all words
    after ``heta-lens``, such as ``causal patch``. With ``resumes``, an interrupted call says that the same command
    continues the work.
    """

    def register(run: Command) -> Command:
        output = Parameter("output", Parameter.KEYWORD_ONLY, annotation=OutputFlags)
        parameters = [*signature(run, eval_str=True).parameters.values(), output]
        flags = {parameter.name: _flags_of(parameter) for parameter in parameters}
        groups: dict[str, Any] = {each.name: each.annotation for each in parameters if is_dataclass(each.annotation)}

        def called(**values: Any) -> None:
            for name_of_group, kind in groups.items():
                values[name_of_group] = kind(**{flag.name: values.pop(flag.name) for flag in flags[name_of_group]})
            with _output(name, values.pop("output"), resumes=resumes):
                run(**values)

        update_wrapper(called, run)
        every = [flag for of_parameter in flags.values() for flag in of_parameter]
        vars(called)["__signature__"] = Signature(every)
        called.__annotations__ = {flag.name: flag.annotation for flag in every}
        group.command(name.rpartition(" ")[2])(called)
        return run

    return register


def _flags_of(parameter: Parameter) -> list[Parameter]:
    """Return the flags of a parameter: the annotated fields of a dataclass, or the parameter itself."""
    kind: Any = parameter.annotation
    if not is_dataclass(kind):
        return [parameter]
    hints = get_type_hints(kind, include_extras=True)
    flags = [field for field in fields(kind) if get_origin(hints[field.name]) is Annotated]
    return [parameter.replace(name=flag.name, annotation=hints[flag.name], default=flag.default) for flag in flags]


_quiet: ContextVar[bool] = ContextVar("quiet", default=False)
_document: ContextVar[dict[str, Any] | None] = ContextVar("document", default=None)


def quiet() -> bool:
    """Tell if the subcommand prints only results and errors."""
    return _quiet.get()


def bars() -> bool | None:
    """Return the argument ``progress=``: False with ``--quiet``, else None, a bar in a terminal."""
    return False if quiet() else None


def as_json() -> bool:
    """Tell if the subcommand prints a JSON document instead of text."""
    return _document.get() is not None


def add(**parts: Any) -> None:
    """Add parts to the JSON document, if ``--json`` was given."""
    document = _document.get()
    if document is not None:
        document.update(parts)


def say(line: object, *, err: bool = False, style: str = "") -> None:
    """Print a line without markup; quoted files, tokens and arguments cannot steer the terminal."""
    from heta_lens._util.text import legible

    Console(stderr=err).print(Text(legible(str(line), keep="\n"), style=style), soft_wrap=True)


def note(line: object) -> None:
    """Print a line beside the results, as the name of a written file; not with ``--quiet``."""
    if not quiet():
        say(line)


def show(view: RenderableType) -> None:
    """Print a rich view, unless ``--json`` was given."""
    if not as_json():
        Console().print(view)


EXPECTED = (ValueError, TypeError, OSError, RuntimeError, MemoryError, ImportError)
INTERRUPTED = "interrupted"
RESUMES = f"{INTERRUPTED}: what is finished is kept, and the same command resumes"


@contextmanager
def _output(name: str, flags: OutputFlags, *, resumes: bool) -> Iterator[None]:
    """Print warnings and errors of a subcommand as lines on stderr, and the JSON document at the end.

    An expected error exits with 2, and has no traceback.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack the characters of a text
    if flags.quiet:
        os.environ["TQDM_DISABLE"] = "1"  # libraries read the variable at import
    document = {"schema": SCHEMA, "command": name} if flags.as_json else None
    tokens = _quiet.set(flags.quiet), _document.set(document)
    try:
        with warnings.catch_warnings(), redirect_stdout(sys.stderr if document else sys.stdout):
            warnings.showwarning = _warn
            yield
    except KeyboardInterrupt:
        add(error=RESUMES if resumes else INTERRUPTED)
        if not resumes:
            raise
        _complain(RESUMES, "yellow")
        raise typer.Exit(130) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        # safetensors is imported late, hence the name of its error instead of the class.
        if not isinstance(error, EXPECTED) and type(error).__name__ != "SafetensorError":
            add(error=f"{type(error).__name__}: {error}")
            raise
        add(error=str(error))
        _complain(error, "red")
        raise typer.Exit(2) from None
    finally:
        _quiet.reset(tokens[0])
        _document.reset(tokens[1])
        if document:
            from heta_lens._util.text import plain

            sys.stdout.write(json.dumps(plain(document), allow_nan=False) + "\n")


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning without a line of code."""
    if not quiet():
        _complain(message, "yellow")


def _complain(message: object, style: str) -> None:
    say(f"heta-lens: {message}", err=True, style=style)
