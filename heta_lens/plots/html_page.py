"""An attribution as a page that needs nothing else: no script, no network."""

from collections.abc import Collection
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from heta_lens._util.html_view import View, html_from
from heta_lens.attribution import Attribution
from heta_lens.plots.colours import Shade, shades, strips

WHAT = {
    "score": "how much each token mattered",
    "gate": "how much of what the last position reads came from here (M)",
    "curvature": "how strongly the prediction bends with this embedding (S)",
    "information": "how far the prediction moves when this embedding is masked, in nats (I)",
}


class Coloured(NamedTuple):
    """A token with its value, and the colour of that."""

    text: str
    position: int
    value: float
    shade: Shade


def page(attribution: Attribution, *, marked: Collection[int] = (), note: str = "") -> View:
    """All of an attribution to look at: a notebook shows it, and ``.save("page.html")`` keeps it.

    ``marked`` positions are underlined, and ``note`` may say why.
    """
    fragment = html_from(
        "plots/html_page.html",
        title=attribution.title,
        notes=[*attribution.notes, *([note] if note else [])],
        views={name: _coloured(attribution, values) for name, values in strips(attribution).items()},
        what=WHAT,
        marked=marked,
    )
    return View(attribution.title, fragment)


def _coloured(attribution: Attribution, values: Float[Tensor, "pos"]) -> list[Coloured]:
    rows = zip(attribution.tokens, attribution.positions.tolist(), values.tolist(), shades(values), strict=True)
    return [Coloured(*row) for row in rows]
