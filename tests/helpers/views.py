"""Pages of coloured tokens, and reading what they show."""

import html
import json
import re
from collections.abc import Sequence
from typing import Any

import torch

from heta_lens.plots.circuitsvis_tokens import View, coloured_tokens

INVISIBLE = dict.fromkeys(map(ord, "\N{WORD JOINER}\N{ZERO WIDTH SPACE}\N{ZERO WIDTH NO-BREAK SPACE}"))


def data(shown: View) -> dict[str, Any]:
    """What the page's script is given to draw."""
    _, _, call = shown.fragment.rpartition('{"tokens"')
    return json.JSONDecoder().raw_decode('{"tokens"' + call)[0]


def seen(token: str) -> str:
    """What a browser shows of a token: circuitsvis sets it as HTML, without escaping it."""
    assert not re.search(r"<[a-zA-Z/!?]", token), f"{token!r} is read as markup"
    return html.unescape(token).translate(INVISIBLE)


def view(tokens: Sequence[str], values: Sequence[float] | None = None, title: str = "why ' Paris'?") -> View:
    return coloured_tokens(title, tokens, torch.tensor(values or [1.0] * len(tokens)))
