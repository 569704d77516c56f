"""Somebody's own code, by the name of its module and of the object in it."""

import sys
from pathlib import Path

import pytest

from heta_lens._util.options import is_object_name, named_object


@pytest.mark.parametrize("name", ["mine:length", "a.b:Kind.method", "_a1:b"])
def test_names_of_objects(name: str) -> None:
    assert is_object_name(name)


@pytest.mark.parametrize("name", ["heta", "a:", ":b", "a:b:c", "1a:b", "a b:c", "C:\\x", 3, None])
def test_what_is_no_name_of_an_object(name: object) -> None:
    assert not is_object_name(name)


def test_an_object_of_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "just_here.py").write_text("class Kind:\n    @staticmethod\n    def made():\n        return 7\n")
    monkeypatch.chdir(tmp_path)
    before = [*sys.path]
    assert named_object("just_here:Kind.made")() == 7
    assert sys.path == before
    del sys.modules["just_here"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:x", "no_such_module:x cannot be loaded: ModuleNotFoundError: No module named 'no"),
        ("json:nothing", "json:nothing cannot be loaded: AttributeError: module 'json' has no attribute 'nothing'"),
        ("broken_one:x", "broken_one:x cannot be loaded: ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_not_there_is_refused(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_one.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        named_object(name)
