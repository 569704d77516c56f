"""Environments: uv with pip's settings."""

import importlib.util
import subprocess
import sys
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
