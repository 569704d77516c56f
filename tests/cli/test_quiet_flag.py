"""What ``--quiet`` leaves out."""

import warnings
from os import environ
from typing import Any

import pytest
import typer

from heta_lens.cli.app import bars, errors_in_a_line, note, quiet, say, with_quiet


def test_it_lasts_as_long_as_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[Any] = []

    def run() -> None:
        noted.append((quiet(), bars(), environ.get("TQDM_DISABLE")))

    monkeypatch.setenv("TQDM_DISABLE", "0")
    with_quiet(run)(be_quiet=True)
    with_quiet(run)(be_quiet=False)
    assert noted == [(True, False, "1"), (False, None, "0")] and not quiet()
    monkeypatch.delenv("TQDM_DISABLE")
    with_quiet(run)(be_quiet=True)
    assert noted[-1] == (True, False, "1") and "TQDM_DISABLE" not in environ


def test_results_and_errors_stay(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        say("a result")
        note("a file")
        with errors_in_a_line():
            warnings.simplefilter("always")
            warnings.warn("careful", UserWarning, stacklevel=1)
            raise ValueError("wrong")

    with pytest.raises(typer.Exit):
        with_quiet(run)(be_quiet=True)
    printed = capsys.readouterr()
    assert printed.out == "a result\n" and printed.err == "heta-lens: wrong\n"
