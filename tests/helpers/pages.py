"""Reading the pages that views are."""

import json
import re
from base64 import b64decode
from dataclasses import replace
from html import unescape
from typing import Any

import numpy as np
import torch

from heta_lens._util.html_view import View
from heta_lens.attribution import Attribution

CHIP = re.compile(r'<b(?: class="([^"]*)")?(?: style="--a:([^"]*)")?>(.*?)</b>', re.DOTALL)


def strip(view: View) -> str:
    """The part of a page that has the tokens."""
    (inner,) = re.findall(
        r'<div class="strip"[^>]*>(.*?)</div>\n(?:<p class="held">.*?</p>\n)?<div class="tip"', view.fragment, re.DOTALL
    )
    return inner


def chips(view: View) -> list[str]:
    """What is written on the tokens of a page."""
    return [unescape(text) for _, _, text in CHIP.findall(strip(view))]


def depths(view: View) -> list[float]:
    """How deep the tokens' colours are, below 0 for what speaks against the target."""
    return [float(depth or 0) * (-1 if "n" in kind.split() else 1) for kind, depth, _ in CHIP.findall(strip(view))]


def evidence(view: View) -> list[str]:
    return [unescape(text) for kind, _, text in CHIP.findall(strip(view)) if "e" in kind.split()]


def text(view: View) -> str:
    """All that is written between and on the tokens, without the roles of a chat."""
    plain = re.sub(r'<div class="role".*?</div>', "", strip(view), flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]*>", "", plain))


def data(view: View) -> dict[str, Any]:
    """What the script is given."""
    (content,) = re.findall(r'<script type="application/json">(.*?)</script>', view.fragment, re.DOTALL)
    return json.loads(content)


def numbers(packed: str, kind: str = "<f4") -> list[float]:
    return np.frombuffer(b64decode(packed), kind).tolist()


def values(view: View) -> dict[str, list[float]]:
    """The values that the tokens can be coloured by."""
    return {own["name"]: numbers(own["values"]) for own in data(view)["values"]}


def written(tokens: list[str], scores: list[float] | None = None, **more: Any) -> Attribution:
    """An attribution of a text that these tokens write."""
    lengths = torch.tensor([len(token) for token in tokens])
    stops = lengths.cumsum(0)
    made = Attribution(
        ids=torch.arange(len(tokens)),
        tokens=tuple(tokens),
        positions=torch.arange(len(tokens)),
        offsets=torch.stack([stops - lengths, stops], 1),
        special=torch.zeros(len(tokens), dtype=torch.bool),
        text="".join(tokens),
        target=1,
        target_text=" x",
        method="heta",
        scores=torch.arange(1.0, len(tokens) + 1) if scores is None else torch.tensor(scores),
    )
    return replace(made, **more)
