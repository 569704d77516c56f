"""Environments: uv with pip's settings, and pip where uv cannot be had."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers import ROOT

SPEC = importlib.util.spec_from_file_location("uv", ROOT / "constraints" / "uv.py")
assert SPEC is not None
assert SPEC.loader is not None
uv: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(uv)

LISTED = """:env:.find-links='wheels more'
:env:.default-timeout='180'
global.cert='ca.pem'
global.extra-index-url='\\nfirst\\nsecond'
global.find-links='other'
global.index-url='simple'
"""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], Any]]:
    seen = []

    def run(call: list[str], **options: Any) -> SimpleNamespace:
        seen.append(([str(part) for part in call], options.get("env")))
        return SimpleNamespace(returncode=0, stdout=LISTED)

    monkeypatch.setattr(subprocess, "run", run)
    return seen


def test_uv_gets_what_pip_is_set_up_with(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uv, "uv", lambda: "uv")
    monkeypatch.setattr(uv.os, "environ", {"SSL_CERT_FILE": "own.pem"})
    assert uv.main(["venv", "folder"]) == 0
    call, environment = calls[-1]
    assert call == ["uv", "venv", "--quiet", "--seed", "--clear", "--python", sys.executable, "folder"]
    assert environment == {
        "UV_FIND_LINKS": "wheels,more",
        "UV_INDEX": "first second",
        "UV_DEFAULT_INDEX": "simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "own.pem",
    }


def test_pip_does_the_same_without_uv(calls: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(uv, "uv", lambda: None)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    uv.main(["venv", str(tmp_path)])
    uv.main(["pip", "install", "--python", str(tmp_path), "--no-deps", "einops"])
    assert [call for call, environment in calls if environment] == [
        [sys.executable, "-m", "venv", "--clear", str(tmp_path)],
        [str(python), "-m", "pip", "install", "--no-deps", "einops"],
    ]
