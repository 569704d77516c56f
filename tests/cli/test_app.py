"""The command as a whole: help, version, startup, output modes and errors."""

import json
import platform
import subprocess
import sys
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from os import environ
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from helpers import ROOT
from helpers.evaluating import run
from heta_lens.cli import app
from heta_lens.cli.app import as_json, bars, command, note, quiet, say

SCHEMAS = json.loads((ROOT / "docs" / "command_output.schema.json").read_text())


def test_help_shows_every_summary_whole() -> None:
    main: Any = typer.main.get_command(app)
    for words, group in {(): main, ("causal",): main.commands["causal"]}.items():
        shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80", "NO_COLOR": "1"}).output
        assert "..." not in shown.partition("Commands:")[2]
        for name, each in group.commands.items():
            first = (each.help or "").splitlines()[0]
            assert 0 < len(first) <= 50 and f"  {name} " in shown and first in shown


def test_every_command_has_a_schema() -> None:
    main: Any = typer.main.get_command(app)
    parts = {name: getattr(each, "commands", {"": None}) for name, each in main.commands.items()}
    names = [f"{name} {part}".strip() for name in parts for part in parts[name]]
    assert sorted(SCHEMAS["properties"]["command"]["enum"]) == sorted(names) and len(SCHEMAS["allOf"]) == len(names)


def test_the_version_is_given_with_those_that_numbers_depend_on() -> None:
    said = run("--version").stdout
    assert said.startswith(f"heta-lens {version('heta-lens')} ") and said.count("\n") == 1
    assert f"Python {platform.python_version()}" in said
    assert all(f"{name} {version(name)}" in said for name in ("torch", "transformers", "transformer-lens"))


LIGHT = """
import sys
from heta_lens.__main__ import main
sys.argv[1:] = {words!r}
try:
    main()
except SystemExit as end:
    print("exit", end.code)
print("heavy", sorted({{"torch", "transformers", "transformer_lens", "scipy", "pandas"}} & sys.modules.keys()))
"""


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["atribute", "Tom"], 2),
        (["evaluate", "--help"], 0),
        (["attribute", " "], 2),
        (["attribute", "a", "--span", "3", "--target", "b"], 2),
    ],
    ids=str,
)
def test_help_and_typing_errors_import_nothing_heavy(words: list[str], code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LIGHT.format(words=words)], capture_output=True, text=True, check=True
    )
    assert ended.stdout.endswith(f"exit {code}\nheavy []\n")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["a\x1b[2J[red]b", "a\u202eb", "a\x9b1mb"])
def test_a_quoted_name_cannot_steer_the_terminal(name: str, tmp_path: Path) -> None:
    done = run("report", str(tmp_path / name))
    assert done.exit_code == 2 and "heta-lens: " in done.output and ("[red]b" in done.output) == ("red" in name)
    assert not set(done.output) & set("\x1b\u202e\x9b")


# --------------------------------------------------------------------------------------- a command of dataclasses


@dataclass(frozen=True)
class Size:
    """Flags of a test."""

    height: Annotated[int | None, typer.Option()] = None
    loud: Annotated[bool, typer.Option("--loud")] = False
    hidden: str = "not a flag"


def called(*words: str, ending: BaseException | None = None, resumes: bool = False) -> tuple[Any, list[Any]]:
    """The result of a command, and the values of every call."""
    group, calls = typer.Typer(), []

    @command("test", group, resumes=resumes)
    def test(*, text: Annotated[str, typer.Argument()], number: int = 1, size: Size) -> None:
        calls.append((text, number, size, quiet(), bars(), environ.get("TQDM_DISABLE"), as_json()))
        say("a result")
        note("a file")
        warnings.simplefilter("always")
        warnings.warn("careful", UserWarning, stacklevel=1)
        if ending is not None:
            raise ending

    return CliRunner().invoke(group, [*words]), calls


def test_quiet_lasts_as_long_as_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TQDM_DISABLE", "0")
    assert called("a", "--quiet")[1][0][3:6] == (True, False, "1")
    assert called("a")[1][0][3:5] == (False, None) and not quiet()


@pytest.mark.parametrize(
    ("ending", "resumes", "code", "error"),
    [
        (ValueError("wrong"), False, 2, "wrong"),
        (KeyError("odd"), False, 1, "KeyError: 'odd'"),
        (KeyboardInterrupt(), False, 130, "interrupted"),
        (KeyboardInterrupt(), True, 130, "interrupted: what is finished is kept, and the same command resumes"),
        (typer.Exit(1), False, 1, None),
        (None, False, 0, None),
    ],
    ids=str,
)
def test_json_is_printed_however_a_command_ends(
    ending: BaseException | None, resumes: bool, code: int, error: str | None
) -> None:
    done, calls = called("a", "--json", ending=ending, resumes=resumes)
    assert done.exit_code == code and calls[0][6] and not as_json()
    assert json.loads(done.stdout) == {"schema": 1, "command": "test"} | ({} if error is None else {"error": error})
    assert done.stderr.startswith("a result\na file\nheta-lens: careful\n")
