"""The subcommand ``app``: the page in which a model is asked and explained."""

from pathlib import Path
from typing import Annotated

from typer import Option

from heta_lens.cli import flags
from heta_lens.cli.app import add, command, say

PORT = "Where the app listens, on this computer alone; 0 for a free port."
STATE = "Keep what was asked and explained in this file, and list it on the page."


@command("app")
def run_app(
    *,
    model: flags.Model = "demo",
    port: Annotated[int, Option(min=0, max=65535, help=PORT)] = 0,
    browser: Annotated[bool, Option(help="Open the page in a browser.")] = True,
    state: Annotated[Path | None, Option(metavar="FILE", help=STATE)] = None,
    loading: flags.LoadingFlags,
) -> None:
    """Ask and explain a model in a browser.

    Click a word of its answer, strike tokens out, and ask again. Ctrl-C ends it.
    """
    from heta_lens.model.loading import load_model
    from heta_lens.web import app

    running = app(load_model(model, **loading.options()), port=port, browser=browser, state=state)
    say(running.address)
    running.wait()
    add(address=running.address)
