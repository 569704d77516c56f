"""An attribution as a terminal shows it."""

from io import StringIO

from rich.console import Console

from heta_lens import plots
from heta_lens.attribution import Attribution


def printed(attribution: Attribution, **options: object) -> tuple[str, str]:
    """As a terminal shows it, and the text alone."""
    coloured = Console(file=StringIO(), force_terminal=True, color_system="truecolor", width=100)
    plain = Console(file=StringIO(), width=100, no_color=True)
    for console in (coloured, plain):
        console.print(plots.terminal(attribution, **options))  # type: ignore[arg-type]
    return tuple(console.file.getvalue() for console in (coloured, plain))  # type: ignore[return-value]
