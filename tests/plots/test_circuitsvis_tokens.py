"""The page of coloured tokens: what it shows, that it asks no network, and that no token can break it."""

import html
import json
import re
import socket
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import heta_lens.plots
from helpers import zoo
from helpers.asking import cache_of, explain
from helpers.attributions import attribution
from heta_lens._util.html_view import View
from heta_lens.plots.circuitsvis_tokens import circuitsvis

MARKUP = ["<bos>", "<s>", "</s>", "<b>", "<script>x</script>", "</script>", "<!--", "<img/src/onerror=alert(1)>", "a<b"]
MARKUP += ["<?", "&amp;", "&lt;b&gt;", "&copy"]
QUOTING = ["-->", "]]>", "<|x|>", "R&D", '"', "\\", "\\u003c", "\u2028", "${x}", "`", ")", "CircuitsVis.render("]

INVISIBLE = dict.fromkeys(map(ord, "\N{WORD JOINER}\N{ZERO WIDTH SPACE}\N{ZERO WIDTH NO-BREAK SPACE}"))


def data(shown: View) -> dict[str, Any]:
    """What the page's script is given to draw."""
    _, _, call = shown.fragment.rpartition('{"tokens"')
    return json.JSONDecoder().raw_decode('{"tokens"' + call)[0]


def seen(token: str) -> str:
    """What a browser shows of a token: circuitsvis sets it as HTML, without escaping it."""
    assert not re.search(r"<[a-zA-Z/!?]", token), f"{token!r} is read as markup"
    return html.unescape(token).translate(INVISIBLE)


def view(tokens: Sequence[str], values: Sequence[float] | None = None, **changes: Any) -> View:
    """By circuitsvis, with no first token that could be a sink."""
    made = attribution(tokens, values or [1.0] * len(tokens), positions=torch.arange(len(tokens)) + 1, **changes)
    return circuitsvis(replace(made, signed=True), special=True)


# ------------------------------------------------------------------------------------------------------ what it shows
def test_the_public_function_shows_an_attribution_and_a_span():
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)
    explained = explain(model, ids, 7, method="recency")
    assert data(circuitsvis(explained, special=True))["values"] == pytest.approx(explained.scores.tolist())
    assert explained.special[0] and data(circuitsvis(explained))["tokens"] == [*explained.tokens[1:]]
    assert data(circuitsvis(explained))["values"] == pytest.approx(explained.scores[1:].tolist())
    assert data(heta_lens.plots.circuitsvis(explained)) == data(circuitsvis(explained))
    span = heta_lens.attribute_span(cache_of(model, ids), 4, tokens=ids, method="recency")
    shown, whole = (data(circuitsvis(span, special=special)) for special in (False, True))
    assert heta_lens.plots.circuitsvis(span).title == span.title and [*map(seen, whole["tokens"])] == [*span.tokens]
    assert [*map(seen, shown["tokens"])] == [*span.tokens[1:]] and len(shown["values"]) == len(whole["values"]) - 1


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([0.0, 3.0], (0, 3)),
        ([2.0, 3.0], (0, 3)),
        ([1.0, 30.0], (0, 2)),
        ([-1.0, 30.0], (-2, 2)),
        ([-4.0, 3.0], (-4, 4)),
        ([-4.0, -2.0], (-4, 4)),
        ([0.0, 0.0], (0, 1)),
        ([1e-30, 0.0], (0, pytest.approx(1e-30))),
    ],
)
def test_the_scale_has_white_at_zero_and_lets_one_outlier_bleach_nothing(
    values: list[float], scale: tuple[float, float]
):
    drawn = data(view(["a", "b"], values))
    assert (drawn["minValue"], drawn["maxValue"]) == scale


# --------------------------------------------------------------------------------------------- what tokens cannot do
@pytest.mark.parametrize("token", MARKUP + QUOTING)
def test_no_token_adds_structure_to_the_page(token: str):
    plain, shown = view(["x", "y", "z"]).fragment, view(["x", token, "z"]).fragment
    for mark in ("<script", "</script", "<!--", "<div"):
        assert shown.count(mark) == plain.count(mark)
    assert shown.endswith("</script></div>")


# ------------------------------------------------------------------------------------------------------------ offline
@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every attempt to reach the network; raising is not enough, since circuitsvis catches everything."""
    attempts: list[Any] = []

    def refuse(*place: Any, **_: Any) -> None:
        attempts.append(place)
        raise OSError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return attempts


def test_nothing_asks_the_network(asked: list[Any], tmp_path: Path):
    shown = view(["a", "b"])
    shown._repr_html_()
    repr(shown)
    shown.save(tmp_path / "page.html")
    assert asked == []
