"""Views of attributions: HTML pages, text for terminals, and figures and LaTeX for papers.

`html_page` has the page that ``attribution.plot()`` gives, `comparison` the page of several attributions of one text,
`terminal` bars and a table for terminals, and `circuitsvis_tokens` colours tokens with circuitsvis. For papers and
slides, `figures` draws tokens, bars and matrices with matplotlib, `circuit` the components that carry a token, and
`latex` writes tokens as LaTeX; figures and LaTeX show a `coloured_text`, which folds stretches of long texts.
`titles_and_notes` holds what all views say, and `scales` the colours and shares that all views use.
"""

from heta_lens.plots.circuitsvis_tokens import circuitsvis
from heta_lens.plots.comparison import compare
from heta_lens.plots.figures import bars, matrix, token_figure
from heta_lens.plots.html_page import page
from heta_lens.plots.latex import latex
from heta_lens.plots.terminal import summary, terminal
from heta_lens.plots.titles_and_notes import notes, title

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
