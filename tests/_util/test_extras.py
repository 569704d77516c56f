"""Packages that only some methods need: found, or refused with the extra that has them."""

import re
import sys
from importlib.metadata import requires

import pytest

from helpers import zoo
from helpers.asking import predict
from heta_lens import METHODS
from heta_lens._util import python
from heta_lens._util.python import EXTRAS, check_extra, extra


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
