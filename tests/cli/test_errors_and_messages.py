"""What commands print cannot steer the terminal."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heta_lens.cli import app


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "100", "NO_COLOR": "1"})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["a\x1b[2J[red]b", "a\u202eb", "a\x9b1mb"])
def test_nothing_that_is_quoted_steers_the_terminal(name: str, tmp_path: Path) -> None:
    done = run("report", str(tmp_path / name))
    assert done.exit_code == 2
    assert not set(done.output) & set("\x1b\u202e\x9b")
    assert all(part in done.output for part in ("heta-lens: ", *(["[red]b"] if "red" in name else [])))
