"""The subcommand ``app``, which serves the web page of `heta_lens.app`."""

from pathlib import Path
from typing import Annotated

from typer import Option

from heta_lens._util.python import check_extra
from heta_lens.cli import flags
from heta_lens.cli.app import add, command, say

PORT = "The port, on this computer alone; 0 for a free port."
STATE = "Keep the history of explanations in this file; otherwise it ends with the app."


@command("app")
def run_app(
    *,
    model: flags.Model = "demo",
    port: Annotated[int, Option(min=0, max=65535, help=PORT)] = 0,
    browser: Annotated[bool, Option(help="Open the page in a browser.")] = True,
    state: Annotated[Path | None, Option(metavar="FILE", help=STATE)] = None,
    loading: flags.LoadingFlags,
) -> None:
    """Query and explain a model in a browser.

    Click a word of the answer to explain it, and change tokens of the prompt. Ctrl-C stops the server.
    """
    check_extra("starlette", "the app")  # before a model is downloaded
    from heta_lens.model.loading import load_model
    from heta_lens.web import app

    running = app(load_model(model, **loading.options()), port=port, browser=browser, state=state)
    say(running.address)
    running.wait()
    add(address=running.address)
