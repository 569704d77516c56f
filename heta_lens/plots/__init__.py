"""Views of attributions: pages, text for terminals, and figures and LaTeX for papers.

`page` is the view that ``attribution.plot()`` gives, `messages` the page of a chat by messages, and `compare` the page
of several attributions of one text. `terminal` prints an attribution, and `circuitsvis` colours tokens with
circuitsvis. For papers and slides, `token_figure` draws the coloured tokens, `bars` the highest scores, and `matrix`
targets by sources or pairs of tokens, with matplotlib; `latex` writes coloured tokens as LaTeX.
"""

from heta_lens.attribution import VIEWS
from heta_lens.plots.attribution_text import notes, summary, title
from heta_lens.plots.circuitsvis_tokens import circuitsvis
from heta_lens.plots.coloured_text import latex, token_figure
from heta_lens.plots.comparison import compare
from heta_lens.plots.figures import bars, matrix
from heta_lens.plots.page import messages, page
from heta_lens.plots.terminal import terminal

VIEWS.update(page=page, summary=summary, title=title, notes=notes)

__all__ = ["bars", "circuitsvis", "compare", "latex", "matrix", "messages", "page", "terminal", "token_figure"]
