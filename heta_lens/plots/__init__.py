"""Views of an attribution.

`attribution_text` says it in words, `terminal` prints it, `html_page` is a standalone page, `message_shares` shows
which message of a chat mattered, `circuitsvis_tokens` colours tokens with circuitsvis, `heat_map` shows a table of
numbers, `colours` maps scores to colours for all of them.
"""

from heta_lens.plots.circuitsvis_tokens import circuitsvis
from heta_lens.plots.html_page import page
from heta_lens.plots.message_shares import messages
from heta_lens.plots.terminal import terminal

__all__ = ["circuitsvis", "messages", "page", "terminal"]
