"""What ``--quiet`` leaves out."""

import warnings
from typing import Any

import pytest
import typer

from heta_lens.cli.errors_and_messages import errors_in_a_line, note, say
from heta_lens.cli.quiet_flag import bars, quiet, with_quiet


def test_it_lasts_as_long_as_the_command() -> None:
    noted: list[Any] = []

    def run() -> None:
        noted.append((quiet(), bars()))

    with_quiet(run)(be_quiet=True)
    with_quiet(run)(be_quiet=False)
    assert noted == [(True, False), (False, None)] and not quiet()


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
