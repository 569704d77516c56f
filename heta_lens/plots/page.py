"""An attribution as a page that needs nothing else: no script, no network."""

from collections.abc import Collection
from html import escape

from jaxtyping import Float
from torch import Tensor

from heta_lens.attribution import Attribution
from heta_lens.plots.shades import shades, strips
from heta_lens.show import View
from heta_lens.text import legible

STYLE = """
body, .heta { font: 15px/1.5 system-ui, sans-serif; color: #222; }
.heta { max-width: 60em; margin: 2em auto; padding: 0 1em; }
.heta h1 { font-size: 1.3em; } .heta h2 { font-size: 1em; margin: 1.4em 0 .3em; }
.heta p { margin: .2em 0; } .heta .notes { color: #555; }
.heta .tokens { line-height: 2; white-space: pre-wrap; overflow-wrap: anywhere; }
.heta .tokens span { color: #000; padding: .2em 0; border-radius: .15em; }
.heta .tokens .marked { text-decoration: underline 2px; text-underline-offset: .25em; }
.heta table { border-collapse: collapse; margin-top: 1.5em; font-variant-numeric: tabular-nums; }
.heta th, .heta td { padding: .1em .8em; text-align: right; border-bottom: 1px solid #ddd; }
.heta td.token { text-align: left; font-family: monospace; white-space: pre; }
"""
WHAT = {
    "score": "how much each token mattered",
    "gate": "how much of what the last position reads came from here (M)",
    "curvature": "how strongly the prediction bends with this embedding (S)",
    "information": "how far the prediction moves when this embedding is masked, in nats (I)",
}


def page(attribution: Attribution, *, marked: Collection[int] = (), note: str = "") -> View:
    """All of an attribution to look at: a notebook shows it, and ``.save("page.html")`` keeps it.

    ``marked`` positions are underlined, and ``note`` may say why.
    """
    notes = "".join(f"<p>{escape(legible(line))}</p>" for line in [*attribution.notes, *([note] if note else [])])
    views = "".join(
        f"<h2>{escape(legible(name))}</h2><p>{escape(WHAT.get(name, ''))}</p>{_coloured(attribution, values, marked)}"
        for name, values in strips(attribution).items()
    )
    title = escape(attribution.title)
    body = f'<h1>{title}</h1><div class="notes">{notes}</div>{views}{_table(attribution)}'
    return View(attribution.title, f'<style>{STYLE}</style>\n<div class="heta">{body}</div>')


def _coloured(attribution: Attribution, values: Float[Tensor, "pos"], marked: Collection[int]) -> str:
    tokens = [legible(token, keep="\n") for token in attribution.tokens]
    rows = zip(tokens, attribution.positions.tolist(), values.tolist(), shades(values), strict=True)
    spans = [
        f'<span style="background:{shade.css}" title="{position}: {value:.4g}"'
        f"{' class=marked' if position in marked else ''}>{escape(token)}</span>"
        for token, position, value, shade in rows
    ]
    return f'<div class="tokens">{"".join(spans)}</div>'


def _table(attribution: Attribution) -> str:
    frame = attribution.to_frame()
    names = list(strips(attribution))
    head = "".join(f"<th>{escape(legible(name))}</th>" for name in ["position", "token", *names])
    rows = "".join(
        f'<tr><td>{row["position"]}</td><td class="token">{escape(repr(row["token"]))}</td>'
        + "".join(f"<td>{row[name]:.4g}</td>" for name in names)
        + "</tr>"
        for _, row in frame.iterrows()
    )
    return f"<table><tr>{head}</tr>{rows}</table>"
