"""The command itself, and the options that several commands share."""

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import heta_lens
from heta_lens.cli.flag_groups import Command
from heta_lens.cli.json_output import with_json
from heta_lens.cli.quiet_flag import with_quiet

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
