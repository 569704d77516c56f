"""``heta-lens methods`` and ``heta-lens metrics``: everything there is, by name."""

from typing import Any

from typer.testing import CliRunner

from heta_lens import METHODS
from heta_lens.cli import app
from heta_lens.metrics import METRICS


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "100", "NO_COLOR": "1"})


def test_every_method_is_listed() -> None:
    shown = {line.split()[0] for line in run("methods").output.splitlines() if line.strip()}
    assert {*METHODS} <= shown


def test_every_metric_is_listed() -> None:
    shown = {line.split()[0] for line in run("metrics").output.splitlines() if line.strip()}
    assert {*METRICS} <= shown
