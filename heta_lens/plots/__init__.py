"""Views of an attribution: in a terminal, and as a page of its own."""

from heta_lens.plots.page import page
from heta_lens.plots.terminal import terminal

__all__ = ["page", "terminal"]
