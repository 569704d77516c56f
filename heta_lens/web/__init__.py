"""The app: a web page to query a model, explain the words of its answer, and change tokens of the prompt.

- `requests`: the requests of the page
- `answers`: generation, explanations, and predictions after a change of tokens
- `history`: explanations in SQLite
- `server`: the web server
- ``page.html``, ``page.css``, ``page.js``: the page, which shows the views of `heta_lens.plots`
"""

from os import PathLike
from typing import TYPE_CHECKING, Any

from heta_lens._util.html_view import View
from heta_lens._util.python import check_extra
from heta_lens.model.adapter import check_decoder

if TYPE_CHECKING:  # of the extra
    from heta_lens.web.server import App


def app(model: Any, *, port: int = 0, browser: bool = True, state: str | PathLike[str] | None = None) -> "App":
    """Start a web page to query a model, explain the words of its answer, and change tokens of the prompt.

    The server runs in a thread until ``.stop()`` or the end of the program; ``.wait()`` waits for Ctrl-C. The server
    listens on this computer alone, at an ``.address`` that contains a secret. Do not run the model elsewhere while the
    app explains: an explanation adds hooks to the model.

    Args:
        model: a TransformerLens model.
        port: the port of the server; 0 for a free port.
        browser: open the page in a browser.
        state: a file for the history of explanations, created if missing; None keeps it until the app stops.

    Example:
        heta_lens.app(heta_lens.load_model("HuggingFaceTB/SmolLM2-135M-Instruct"))
    """
    check_extra("starlette", "the app")
    from heta_lens.web.answers import Answers
    from heta_lens.web.history import History
    from heta_lens.web.server import App, listen

    check_decoder(model)
    running = App(Answers(model), History(state), listen(port))
    if browser:
        # Other users of the computer can read a browser's command line, and with it a secret, but not this file.
        View("heta_lens", f'<meta http-equiv="refresh" content="0; url={running.address}">').open()
    return running
