"""Views of an attribution.

`html_page` is the view that ``attribution.plot()`` gives, `comparison_page` the same for several attributions of one
text: of `token_cells`, which are the tokens as they are shown, with `view_data` for their script; `whole_span` is the
text of a span, `view_exports` what else a view can be saved as. `attribution_text` says it in words, `terminal` prints
it with `terminal_styles` and a `terminal_table`, `score_formula` says how the score is made of its parts, and `shares`
how much of the whole score tokens and messages hold. `circuitsvis_tokens` colours tokens with circuitsvis, `heat_map`
shows a table of numbers, `colours` maps scores to colours for all of them.

For papers and slides, `token_figure` draws the coloured tokens, `bar_figure` the highest scores, and `matrix_figure`
targets by sources, pairs of tokens and grids of patches, all with matplotlib; `figure_files` makes files of them, and
`latex_tokens` writes coloured tokens as LaTeX.
"""

from heta_lens.plots.circuitsvis_tokens import circuitsvis
from heta_lens.plots.comparison import compare
from heta_lens.plots.figures import bars, token_figure
from heta_lens.plots.latex_tokens import latex
from heta_lens.plots.matrix_figure import matrix
from heta_lens.plots.page import messages, page
from heta_lens.plots.terminal import terminal

__all__ = ["bars", "circuitsvis", "compare", "latex", "matrix", "messages", "page", "terminal", "token_figure"]
