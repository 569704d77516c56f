"""Circuitsvis token views that work offline and cannot be broken by what a token says."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike
from pathlib import Path

import torch
from circuitsvis.tokens import colored_tokens, colored_tokens_multi
from circuitsvis.utils.render import RenderedHTML
from jaxtyping import Float
from torch import Tensor

from heta_lens.files import write_atomically

PAGES = (".html", ".htm")


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
        """Write a standalone page, as ``.html`` or ``.htm``."""
        stream = Path(path).exists() and not Path(path).is_file()  # such as /dev/stdout
        if Path(path).suffix.lower() not in PAGES and not stream:
            raise ValueError(f"{path} is not named as a page, which is all that is written: give a name in .html")
        page = f'<!doctype html>\n<meta charset="utf-8">\n<title>{escape(self.title)}</title>\n{self.fragment}\n'
        return write_atomically(path, page)


def coloured_tokens(title: str, tokens: Sequence[str], values: Float[Tensor, "pos"], notes: str = "") -> View:
    """Tokens coloured by value: white at 0, deeper with size, blue above and orange below."""
    highest = deepest(values)
    # Circuitsvis colours the negative side only when the scale reaches there.
    lowest = -highest if bool((values < 0).any()) else 0.0
    shown = colored_tokens([_inert(token) for token in tokens], values.tolist(), lowest, highest)
    return _view(title, notes, shown)


def tokens_by_target(
    title: str, tokens: Sequence[str], targets: Sequence[str], values: Float[Tensor, "target pos"], notes: str = ""
) -> View:
    """Tokens coloured by the values of one target at a time, the one that is pointed at; each on its own scale."""
    scaled = torch.stack([(row / deepest(row)).clamp(-1, 1) for row in values])
    shown = colored_tokens_multi(
        [_inert(one) for one in tokens], scaled.T.contiguous(), [_inert(_seen(one)) for one in targets]
    )
    return _view(title, notes, shown)


def deepest(values: Float[Tensor, "pos"]) -> float:
    """Where colour is deepest: twice the second largest size, so that one outlier does not bleach the rest."""
    sizes = values.abs().sort(descending=True).values.tolist()
    return (min(sizes[0], 2 * sizes[1]) if len(sizes) > 1 and sizes[1] else sizes[0]) or 1.0


def _view(title: str, notes: str, shown: RenderedHTML) -> View:
    caption = f"<p><strong>{escape(title)}</strong><br><small>{escape(notes)}</small></p>"
    # `local_src` holds the whole script and fetches nothing; circuitsvis' own notebook output asks the network.
    return View(title, f"<div>{caption}{shown.local_src}</div>")


def _seen(target: str) -> str:
    """Its name on a button, where white space alone would not be seen."""
    return target if target.strip() else repr(target)


def _inert(token: str) -> str:
    """The token with an invisible character after every ``<`` and ``&``.

    Circuitsvis sets tokens as HTML without escaping them: ``<s>`` would not be seen, and ``</script>`` end the page.
    """
    return re.sub("[<&]", "\\g<0>\N{WORD JOINER}", token)
