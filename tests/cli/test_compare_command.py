"""``heta-lens compare``, as a user types it."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heta_lens.cli import app

TEXT = "Mia put the key in the drawer. Leo put the key in the box. Question: Where did Mia put the key? Answer: in the"


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "100", "NO_COLOR": "1"})


def saved(path: Path, text: str = TEXT, method: str = "loo") -> str:
    assert run("attribute", text, "-m", method, "--save", str(path)).exit_code == 0
    return str(path)


@pytest.mark.slow
def test_attributions_are_compared(tmp_path: Path) -> None:
    one, other = saved(tmp_path / "a"), saved(tmp_path / "b", method="ixg")
    figure = tmp_path / "c.svg"
    done = run("compare", one, other, "--top", "2", "--html", str(tmp_path / "c.html"), "--figure", str(figure))
    assert done.exit_code == 0, done.output
    assert re.search(r"position +token +leave_one_out +input_x_gradient", done.stdout)
    assert re.search(r"^7 +' drawer' +9\.36 \(1\) ", done.stdout, re.MULTILINE)
    assert re.search(r"^leave_one_out +0\.\d\d", done.stdout, re.MULTILINE)
    assert "input_x_gradient" in (tmp_path / "c.html").read_text() and "<svg" in figure.read_text()
    again = run("compare", one, saved(tmp_path / "d"))
    assert re.search(r"position +token +a +d", again.stdout) and re.search(r"^a +1\.00", again.stdout, re.MULTILINE)


def test_one_of_many_prompts_is_chosen(tmp_path: Path) -> None:
    folder = str(tmp_path / "scores")
    (tmp_path / "p.csv").write_text(f"text\n{TEXT}\n{TEXT}\n")
    words = ("attribute-dataset", str(tmp_path / "p.csv"), "-m", "recency", "-m", "ixg", "--out", folder)
    assert run(*words).exit_code == 0
    done = run("compare", folder)
    assert done.exit_code == 2 and "these are of the prompts p-0, p-1: choose one with --prompt" in done.stderr
    assert run("compare", folder, "--prompt", "p-1").exit_code == 0


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a"], "a comparison takes two attributions or more, and .*a holds 1"),
        (["a", "a"], "FILE 1 .*a and FILE 2 .*a are the same file"),
        (["a", "other", "--html", "a"], "--html a is a page: give it a name that ends in one of .html"),
        (["a.html", "other", "--html", "a.html"], "FILE 1 .*a.html and --html .*a.html are the same file"),
        (["a", "other"], r"explain different texts: at position 1, ' Mia' in the first and ' Leo' in the second"),
        (["a", "nowhere"], "nowhere: there is no such file"),
    ],
    ids=str,
)
def test_mistakes_get_one_sentence(
    names: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "a", method="recency")
    saved(tmp_path / "other", "Leo put the key in the", "recency")
    (tmp_path / "a.html").write_bytes((tmp_path / "a").read_bytes())
    monkeypatch.chdir(tmp_path)
    done = run("compare", *names)
    assert done.exit_code == 2 and re.search(message, done.stderr) and "Traceback" not in done.output
