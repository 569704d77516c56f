"""Which files a result is written to."""

from pathlib import Path

import pytest

from helpers import zoo
from helpers.asking import explain
from heta_lens import plots
from heta_lens.cli.views import FIGURES, PAGES, Files, numbered


def test_every_figure_can_be_made_of_the_page() -> None:
    model = zoo.bridge("gpt2")
    view = plots.page(explain(model, zoo.prompt(model, 5), 7, method="recency"))
    assert {*FIGURES} <= {*PAGES, *view.exports}


@pytest.mark.parametrize("name", ["a.html", "a.PNG", "a.svg", "b/a.pdf", "a.tex", "/dev/null"])
def test_known_kinds(name: str) -> None:
    Files(figure=Path(name)).check()


@pytest.mark.parametrize("name", ["a", "a.gif", "a.jpg", ".png"])
def test_unknown_kinds_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"--figure {name} cannot be written: .* ends in one of .html, .htm, .png"):
        Files(figure=Path(name)).check()


@pytest.mark.parametrize("name", ["a", "a.png", "a.htmlx", ".html"])
def test_a_page_is_named_as_one(name: str) -> None:
    with pytest.raises(ValueError, match=rf"--html {name} is a page: give it a name that ends in one of .html, .htm"):
        Files(html=Path(name)).check()
    for page in ("a.html", "b/a.HTM", "/dev/null"):
        Files(html=Path(page)).check()


def test_no_file_is_written_over_another() -> None:
    labels = {"lime": 0, "lime samples=9": 1}
    Files(Path("a.html"), Path("a.png"), Path("a")).check_apart(labels, {"--html": Path("b.html")})
    with pytest.raises(ValueError, match=r"--html b\.html and --figure b\.html are the same file"):
        Files(figure=Path("b.html")).check_apart({"lime": 0}, {"--html": Path("b.html")})
    with pytest.raises(ValueError, match=r"--save of a b a-a_b and --save of a_b a-a_b are the same file"):
        Files(save=Path("a")).check_apart({"a b": 0, "a_b": 1}, {})
    with pytest.raises(ValueError, match="FILE 2 a-lime and --save of lime a-lime are the same file"):
        Files(save=Path("a")).check_apart(labels, numbered([Path("a"), Path("a-lime")]))


def test_a_drawing_needs_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    monkeypatch.setattr("heta_lens._util.python.find_spec", lambda *_: None, raising=False)
    Files(figure=Path("a.tex")).check()
    with pytest.raises(ImportError, match=r"--figure a\.png"):
        Files(figure=Path("a.png")).check()


def test_files_of_several_results_have_their_labels() -> None:
    files, labels = Files(Path("b/a.html"), None, Path("a.safetensors")), {"heta": 0, "lime samples=9": 0}
    assert files.of("heta", {"heta": 0}) == files
    assert files.of("heta", labels) == Files(Path("b/a-heta.html"), None, Path("a-heta.safetensors"))
    assert files.of("lime samples=9", labels).save == Path("a-lime_samples=9.safetensors")
    assert files.without_views == Files(save=Path("a.safetensors")) and files.views == Files(html=Path("b/a.html"))


def test_flags_and_paths() -> None:
    files = Files(html=Path("a.html"), save=Path("a"))
    assert files.names == ["--html", "--save"] and files.paths == [Path("a.html"), Path("a")]
