"""Views: what a notebook and a terminal show, and the page that is saved."""

from pathlib import Path

import pytest

from helpers.views import view
from heta_lens._util.html_view import View, source


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
def test_a_view_is_not_written_under_the_name_of_something_else(name: str, tmp_path: Path):
    shown = View("title", "<p>", {".csv": lambda: "a,b"})
    with pytest.raises(ValueError, match=r"cannot be saved as .*ends in one of \.html, \.csv"):
        shown.save(tmp_path / name)
    assert not [*tmp_path.iterdir()]


def test_the_suffix_says_what_is_written(tmp_path: Path):
    shown = View("title", "<p>", {".csv": lambda: "é", ".png": lambda: b"\x89"})
    assert shown.save(tmp_path / "a.CSV").read_text(encoding="utf-8") == "é"
    assert shown.save(tmp_path / "a.png").read_bytes() == b"\x89"


def test_a_view_opens_in_a_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shown = View("title", "<p>é")
    path = shown.open()
    assert opened == [path.as_uri()] and path.read_text(encoding="utf-8") == shown.page


@pytest.mark.parametrize("name", ["x.htm", "x.HTML", "a.b.html"])
def test_a_page_may_be_named_in_any_way_a_page_is(name: str, tmp_path: Path):
    assert view(["a"]).save(tmp_path / name).read_text(encoding="utf-8").startswith("<!doctype html>")


def test_scripts_come_without_comments_and_with_what_they_include():
    script = source("plots/view.js")
    assert "const heat =" in script and "//: heat.js" not in script
    assert not [line for line in script.splitlines() if line.startswith(("//", "/*", " "))]
