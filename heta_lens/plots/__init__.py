"""Views of attributions: pages, text for terminals, and figures and LaTeX for papers.

`page` is the view that ``attribution.plot()`` gives, `comparison` the page of several attributions of one text,
`terminal` a table for terminals, and `circuitsvis_tokens` colours tokens with circuitsvis. For papers and slides,
`figures` draws bars and matrices with matplotlib, and `coloured_text` the tokens, as a figure or as LaTeX.
`attribution_text` holds titles and notes, `scales` the colours and shares that all views use.
"""

from heta_lens.plots.attribution_text import notes, summary, title
from heta_lens.plots.circuitsvis_tokens import circuitsvis
from heta_lens.plots.coloured_text import latex, token_figure
from heta_lens.plots.comparison import compare
from heta_lens.plots.figures import bars, matrix
from heta_lens.plots.page import page
from heta_lens.plots.terminal import terminal

__all__ = [
    "bars",
    "circuitsvis",
    "compare",
    "latex",
    "matrix",
    "notes",
    "page",
    "summary",
    "terminal",
    "title",
    "token_figure",
]
