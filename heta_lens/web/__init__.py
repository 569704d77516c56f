"""The app: ask a model in a browser, see which tokens made a word, strike tokens out, and ask again.

- `answers`: what can be asked about a prompt: its answer, explanations, and what if a token were another
- `history`: explanations that outlive the server, in a SQLite file
- `server`: the web server, which answers on this computer alone
- ``page.html``, ``page.css``, ``page.js``: the page, around the views of `heta_lens.plots`
"""

import webbrowser
from os import PathLike
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from heta_lens._util.python import check_extra
from heta_lens.model.adapter import check_decoder

if TYPE_CHECKING:  # of the extra
    from heta_lens.web.server import App


def app(model: Any, *, port: int = 0, browser: bool = True, state: str | PathLike[str] | None = None) -> "App":
    """Start the app for a model: ask in a browser, see which tokens made a word, strike tokens out, ask again.

    The server runs beside the notebook or program until ``.stop()``, or the end of the program; ``.wait()`` waits for
    Ctrl-C. It answers on this computer alone, at an ``.address`` that holds a secret. While it explains, do not run the
    model elsewhere: for a moment, it has hooks of the explanation.

    Args:
        model: a TransformerLens model.
        port: where it listens; 0 for a free port.
        browser: open the page in a browser.
        state: a file that keeps the explanations, which the page then lists, for the next time; made if there is none.

    Example:
        heta_lens.app(heta_lens.load_model("HuggingFaceTB/SmolLM2-135M-Instruct"))
    """
    check_extra("starlette", "the app")
    from heta_lens.web.answers import Answers
    from heta_lens.web.history import History
    from heta_lens.web.server import App, listen

    check_decoder(model)
    history = None if state is None else History(state)
    running = App(Answers(model), history, listen(port))
    if browser:
        # A command line, which a browser is started by, can be read by all users of a computer; this file cannot.
        redirect = Path(mkdtemp(prefix="heta_lens_")) / "app.html"
        redirect.write_text(f'<meta http-equiv="refresh" content="0; url={running.address}">', encoding="utf-8")
        webbrowser.open(redirect.as_uri())
    return running
