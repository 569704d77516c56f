"""An attribution as a page that needs nothing else: no script, no network."""

from collections.abc import Collection

from heta_lens._util.html_view import View, html_from
from heta_lens.attribution import Attribution
from heta_lens.plots.colours import coloured, strips
from heta_lens.plots.message_shares import message_shares

WHAT = {
    "score": "how much each token mattered",
    "gate": "how much of what the last position reads came from here (M)",
    "curvature": "how strongly the prediction bends with this embedding (S)",
    "information": "how far the prediction moves when this embedding is masked, in nats (I)",
}


def page(attribution: Attribution, *, marked: Collection[int] = (), note: str = "") -> View:
    """All of an attribution to look at: a notebook shows it, and ``.save("page.html")`` keeps it.

    Of a chat, it begins with each message's share of the score.
    ``marked`` positions are underlined, and ``note`` may say why.
    """
    positions = attribution.positions.tolist()
    fragment = html_from(
        "plots/html_page.html",
        title=attribution.title,
        notes=[*attribution.notes, *([note] if note else [])],
        messages=message_shares(attribution) if attribution.messages is not None else [],
        views={name: coloured(attribution.tokens, positions, values) for name, values in strips(attribution).items()},
        what=WHAT,
        marked=marked,
    )
    return View(attribution.title, fragment)
