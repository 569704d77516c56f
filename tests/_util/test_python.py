"""Warnings, extras, lazy items, versions, and views that are saved."""

from pathlib import Path

import pytest

import heta_lens
from helpers import zoo
from helpers.asking import predict
from helpers.attributions import attribution
from heta_lens import METHODS, plots
from heta_lens._util import python
from heta_lens._util.html_view import View
from heta_lens._util.python import EXTRAS, check_extra, extra


def test_a_warning_names_the_line_that_called_heta_lens(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("jaxtyping_packages"):
        pytest.skip("the type checker stands between the caller and heta_lens")
    with pytest.warns(UserWarning, match="probes=3 has no effect") as caught:
        heta_lens.Heta(variant="kl_only", probes=3)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(("name", "package"), [(name, package) for name, (package, _) in EXTRAS.items()])
def test_what_is_not_installed_is_refused_with_the_way_out(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python, "find_spec", lambda _: None)
    message = rf"method='gilot' needs {package}, which is not installed: pip install '\.\[\w+\]'"
    for function in (check_extra, extra):
        with pytest.raises(ImportError, match=message):
            function(name, "method='gilot'")


@pytest.mark.parametrize(("method", "options"), [("gilot", {}), ("context_cite", {})], ids=str)
def test_a_method_without_its_package_is_refused_before_any_run(
    method: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, 4))
    monkeypatch.setattr(python, "find_spec", lambda _: None)
    monkeypatch.setattr(type(prediction), "running", lambda _: pytest.fail("it ran"))
    with pytest.raises(ImportError, match="pip install"):
        METHODS[method](**options)(prediction)


def test_a_saved_page_is_complete(tmp_path: Path):
    shown = plots.circuitsvis(attribution(["😀"], [1.0], method="<b>'é'</b>"), special=True)
    path = shown.save(str(tmp_path / "page.html"))
    page = path.read_bytes().decode("utf-8")
    assert path == tmp_path / "page.html"
    assert page.startswith("<!doctype html>")
    assert '<meta charset="utf-8">' in page
    assert "<title>&lt;b&gt;" in page
    assert shown.fragment in page


def test_the_suffix_says_what_is_written(tmp_path: Path):
    shown = View("title", "<p>", {".csv": lambda: "é", ".png": lambda: b"\x89"})
    assert shown.save(tmp_path / "a.CSV").read_text(encoding="utf-8") == "é"
    assert shown.save(tmp_path / "a.png").read_bytes() == b"\x89"
