"""Warnings, extras, lazy items, versions, and views that are saved."""

import re
import sys
import warnings
from importlib.metadata import requires, version
from pathlib import Path

import pytest

import heta_lens
from helpers import zoo
from helpers.asking import predict
from helpers.views import view
from heta_lens import METHODS
from heta_lens._util import python
from heta_lens._util.html_view import View, source
from heta_lens._util.python import EXTRAS, Lazy, check_extra, extra, quietly, versions, warn


def test_a_warning_names_the_line_that_called_heta_lens(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("jaxtyping_packages"):
        pytest.skip("the type checker stands between the caller and heta_lens")
    with pytest.warns(UserWarning, match="probes=3 has no effect") as caught:
        heta_lens.Heta(variant="kl_only", probes=3)
    assert [warning.filename for warning in caught] == [__file__]


def test_a_quiet_call_gives_its_result_and_no_warning() -> None:
    def call() -> int:
        warn("something")
        return 3

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert quietly(call) == 3
    with pytest.warns(UserWarning, match="something"):
        call()


@pytest.mark.parametrize("name", EXTRAS)
def test_what_is_installed_is_imported(name: str) -> None:
    assert extra(name, "a test") is sys.modules[name]


@pytest.mark.parametrize(("name", "package"), [(name, package) for name, (package, _) in EXTRAS.items()])
def test_what_is_not_installed_is_refused_with_the_way_out(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python, "find_spec", lambda _: None)
    message = rf"method='gilot' needs {package}, which is not installed: pip install 'heta-lens\[\w+\]'"
    for function in (check_extra, extra):
        with pytest.raises(ImportError, match=message):
            function(name, "method='gilot'")


def test_every_extra_is_declared() -> None:
    declared = [re.split("[<>=;]", requirement, maxsplit=1) for requirement in requires("heta_lens") or []]
    for package, name in EXTRAS.values():
        assert any(own == package.lower() and re.search(rf"extra == .{name}.", rest) for own, rest in declared)


@pytest.mark.parametrize(
    ("method", "options"), [("gilot", {}), ("context_cite", {}), ("lime", {"surrogate": "lasso"})], ids=str
)
def test_a_method_without_its_package_is_refused_before_any_run(
    method: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, 4))
    monkeypatch.setattr(python, "find_spec", lambda _: None)
    monkeypatch.setattr(type(prediction), "running", lambda _: pytest.fail("it ran"))
    with pytest.raises(ImportError, match="pip install"):
        METHODS[method](**options)(prediction)


def test_an_item_is_computed_when_it_is_accessed() -> None:
    computed: list[int] = []
    squares = Lazy(3, lambda place: computed.append(place) or place**2)
    assert (len(squares), computed) == (3, [])
    assert (squares[-1], computed) == (4, [2])
    assert [*squares] == [0, 1, 4]
    with pytest.raises(IndexError):
        squares[3]


def test_the_libraries_are_named() -> None:
    named = versions()
    assert [*named] == ["heta_lens", "transformer_lens", "torch"]
    assert named["torch"] == version("torch")


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


def test_scripts_come_without_comments_and_with_what_they_include():
    script = source("plots/view.js")
    assert "const heat =" in script and "//: heat.js" not in script
    assert not [line for line in script.splitlines() if line.startswith(("//", "/*", " "))]
