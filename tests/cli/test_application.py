"""The command as a whole: its help, its version, and what it does before anything heavy is imported."""

import re
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from helpers.paths import ROOT
from heta_lens.cli import app
from heta_lens.cli.app import EXIT_CODES

DOCUMENTED = (ROOT / "docs" / "command_line.md").read_text()


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "100", "NO_COLOR": "1"})


def test_help_names_every_command() -> None:
    shown = run("--help").output
    names = "demo", "attribute", "show", "compare", "causal", "evaluate", "report", "reproduce", "methods", "metrics"
    for name in names:
        assert f"  {name} " in shown


def test_the_version_is_the_installed_one() -> None:
    result = run("--version")
    assert result.exit_code == 0 and result.output == f"heta-lens {version('heta-lens')}\n"


def test_help_says_what_the_exit_codes_mean() -> None:
    shown = " ".join(run("--help").output.split())
    assert EXIT_CODES in shown
    assert all(f"| {code} |" in DOCUMENTED for code in re.findall(r"[:;] (\d+) ", EXIT_CODES))


def test_a_shell_can_complete_it() -> None:
    shell = {"_HETA_LENS_COMPLETE": "complete_bash", "COMP_WORDS": "heta-lens cau", "COMP_CWORD": "1"}
    done = CliRunner().invoke(app, [], env=shell, prog_name="heta-lens")
    assert done.output.split() == ["causal"]
    assert "--show-completion" in run("--help").output


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["attribute", "Tom", "--model", "a", "--model", "b"], "--model"),
        (["attribute", "Tom", "--html", "a.html", "--html=b.html"], "--html"),
        (["evaluate", "recall", "--out", "a", "--out", "b"], "--out"),
        (["demo", "--seed", "1", "--seed", "1"], "--seed"),
    ],
)
def test_an_option_of_one_value_is_given_once(words: list[str], name: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert f"{name} was given 2 times, and takes one value" in " ".join(result.output.replace("│", " ").split())


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
        (["attribute", "--help"], 0),
        (["evaluate", "--help"], 0),
        (["attribute", " "], 2),
        (["attribute", "a", "--span", "3", "--target", "b"], 2),
        (["causal", "patch", "--help"], 0),
    ],
    ids=str,
)
def test_help_and_typing_errors_import_nothing_heavy(words: list[str], code: int) -> None:
    command = [sys.executable, "-c", LIGHT.format(words=words)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.endswith(f"exit {code}\nheavy []\n")


def test_help_shows_every_summary_whole() -> None:
    groups = {(): typer.main.get_command(app), ("causal",): typer.main.get_command(app).commands["causal"]}  # type: ignore[attr-defined]
    for words, group in groups.items():
        shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80", "NO_COLOR": "1"}).output
        assert "..." not in shown.partition("Commands:")[2]
        for name, each in group.commands.items():
            first = (each.help or "").splitlines()[0]
            assert 0 < len(first) <= 50 and first in shown, name


def test_a_command_that_takes_one_method_does_not_promise_several() -> None:
    one, several = (" ".join(run(*words, "--help").output.split()) for words in (["causal", "validate"], ["attribute"]))
    assert "One method, as heta-lens methods lists them" in one
    assert "several with commas" in several and "several with commas" not in one
