"""The page of coloured tokens: what it shows, that it asks no network, and that no token can break it."""

import html
import json
import re
import socket
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from heta_lens.show import View, coloured_tokens

MARKUP = ["<bos>", "<s>", "</s>", "<b>", "<script>x</script>", "</script>", "<!--", "<img/src/onerror=alert(1)>", "a<b"]
MARKUP += ["<?", "&amp;", "&lt;b&gt;", "&copy"]
QUOTING = ["-->", "]]>", "<|x|>", "R&D", '"', "\\", "\\u003c", "\u2028", "${x}", "`", ")", "CircuitsVis.render("]
INVISIBLE = dict.fromkeys(map(ord, "\N{WORD JOINER}\N{ZERO WIDTH SPACE}\N{ZERO WIDTH NO-BREAK SPACE}"))


def view(tokens: Sequence[str], values: Sequence[float] | None = None, title: str = "why ' Paris'?") -> View:
    return coloured_tokens(title, tokens, torch.tensor(values or [1.0] * len(tokens)))


def data(shown: View) -> dict[str, Any]:
    """What the page's script is given to draw."""
    _, _, call = shown.fragment.rpartition('{"tokens"')
    return json.JSONDecoder().raw_decode('{"tokens"' + call)[0]


def seen(token: str) -> str:
    """What a browser shows of a token: circuitsvis sets it as HTML, without escaping it."""
    assert not re.search(r"<[a-zA-Z/!?]", token), f"{token!r} is read as markup"
    return html.unescape(token).translate(INVISIBLE)


# ------------------------------------------------------------------------------------------------------ what it shows
def test_every_token_is_shown_with_its_value():
    drawn = data(view(["The", " cat", "\n", "😀", ""], [0.0, 0.25, 1.0, 0.5, 2.0]))
    assert drawn["tokens"] == ["The", " cat", "\n", "😀", ""]
    assert drawn["values"] == [0.0, 0.25, 1.0, 0.5, 2.0]


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


@pytest.mark.parametrize("token", MARKUP + QUOTING)
def test_every_token_is_seen_as_it_is_written(token: str):
    assert [seen(piece) for piece in data(view(["x", token, "z"]))["tokens"]] == ["x", token, "z"]


def test_a_hostile_title_stays_text(tmp_path: Path):
    plain = view(["x"]).save(tmp_path / "plain.html").read_text(encoding="utf-8")
    page = view(["x"], title="why '</title><script>'?").save(tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<script") == plain.count("<script")
    assert page.count("</title>") == 1


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


def test_the_page_brings_its_script_along():
    fragment = view(["a"]).fragment
    assert "var CircuitsVis=" in fragment
    assert "unpkg.com" not in fragment
    assert not re.search(r"<(script|link|img)[^>]*\s(src|href)=", fragment)
    assert not re.search(r"\bfrom\s*[\"']https?:", fragment)


# ----------------------------------------------------------------------------------------------------- where it shows
def test_a_notebook_gets_the_fragment():
    shown = view(["a"])
    assert shown._repr_html_() == shown.fragment


def test_a_terminal_gets_one_short_line():
    line = repr(view(["a"] * 1000))
    assert "why ' Paris'?" in line
    assert "save(" in line
    assert len(line) <= 100
    assert "\n" not in line


def test_a_saved_page_is_complete(tmp_path: Path):
    shown = view(["😀"], title="why <b>'é'</b>?")
    path = shown.save(str(tmp_path / "page.html"))
    page = path.read_bytes().decode("utf-8")
    assert path == tmp_path / "page.html"
    assert page.startswith("<!doctype html>")
    assert '<meta charset="utf-8">' in page
    assert "<title>why &lt;b&gt;" in page
    assert shown.fragment in page


@pytest.mark.parametrize("name", ["x.png", "x", "x.pdf", "x.html.png", ".html"])
def test_a_page_is_not_written_under_the_name_of_something_else(name: str, tmp_path: Path):
    with pytest.raises(ValueError, match=r"is not named as a page.*give a name in \.html"):
        view(["a"]).save(tmp_path / name)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["x.htm", "x.HTML", "a.b.html"])
def test_a_page_may_be_named_in_any_way_a_page_is(name: str, tmp_path: Path):
    assert view(["a"]).save(tmp_path / name).read_text(encoding="utf-8").startswith("<!doctype html>")
