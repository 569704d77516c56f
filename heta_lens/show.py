"""Circuitsvis token views that work offline and cannot be broken by what a token says."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike
from pathlib import Path

from circuitsvis.tokens import colored_tokens
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, repr=False)
class View:
    """Something to look at: shown by a notebook, or saved as a page that needs nothing else."""

    title: str
    fragment: str

    def _repr_html_(self) -> str:
        return self.fragment

    def __repr__(self) -> str:
        return f"View({self.title!r}): shown in a notebook; elsewhere, view.save('page.html')"

    def save(self, path: str | PathLike[str]) -> Path:
        """Write a standalone page."""
        page = (
            f'<!doctype html>\n<meta charset="utf-8">\n<title>{escape(self.title)}</title>\n'
            f"<h4>{escape(self.title)}</h4>\n{self.fragment}\n"
        )
        Path(path).write_text(page, encoding="utf-8")
        return Path(path)


def coloured_tokens(title: str, tokens: Sequence[str], values: Float[Tensor, "pos"]) -> View:
    """Tokens coloured by value: white at 0, deeper with size, blue above and red below."""
    largest = float(values.abs().max())
    # Circuitsvis colours the negative side only when the scale reaches there.
    lowest = -largest if bool((values < 0).any()) else 0.0
    rendered = colored_tokens(list(tokens), values.tolist(), lowest, largest or 1.0)
    return View(title, _harmless(rendered.local_src))


def _harmless(page: str) -> str:
    """Escape every ``<`` in the page's data: a token that reads ``</script>`` would end the script there.

    ``local_src`` carries the whole script, so nothing is fetched; circuitsvis' own notebook output asks the network.
    """
    script, call, rest = page.partition("CircuitsVis.render(")
    data, end, _ = rest.rpartition("</script>")
    return script + call + data.replace("<", "\\u003c") + end
