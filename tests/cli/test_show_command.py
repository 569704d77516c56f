"""``heta-lens show``, as a user types it."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heta_lens.cli import app
from heta_lens.model import loading

TEXT = "Mia put the key in the drawer. Leo put the key in the box. Question: Where did Mia put the key? Answer: in the"


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "100", "NO_COLOR": "1"})


@pytest.fixture
def kept(tmp_path: Path) -> tuple[str, str]:
    """A token's attribution, and a span's."""
    token, span = str(tmp_path / "token.safetensors"), str(tmp_path / "span.safetensors")
    for words in ((token,), (span, "--generate", "2")):
        assert run("attribute", TEXT, "-m", "loo", "--save", *words).exit_code == 0
    return token, span


def test_it_shows_what_attribute_showed(kept: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = run("attribute", TEXT, "-m", "loo").stdout
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    assert run("show", kept[0]).stdout == first
    both = run("show", *kept, "--top", "1")
    assert both.exit_code == 0 and all(name in both.stdout for name in kept)
    assert "why ' drawer'?" in both.stdout and "why ' drawer.'?" in both.stdout
    assert "drawer." in run("show", kept[0], "--by", "word", "--top", "1").stdout


def test_it_writes_pages_and_figures(kept: tuple[str, str], tmp_path: Path) -> None:
    done = run("show", *kept, "--html", str(tmp_path / "a.html"), "--figure", str(tmp_path / "a.tex"))
    assert done.exit_code == 0, done.output
    written = {path.suffix for path in tmp_path.iterdir()}
    assert written == {".safetensors", ".html", ".tex"} and len([*tmp_path.iterdir()]) == 6
    assert run("show", kept[0], "--html", str(tmp_path / "b.html")).exit_code == 0
    assert (tmp_path / "b.html").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{}", "--by", "letter"], "--by letter is not one of"),
        (["{}", "--by", "role"], "--by role is for a chat"),
        (["{}", "--figure", "a.gif"], "--figure a.gif cannot be written"),
        (["{}", "{}"], "are the same file: give two files"),
        (["{}", "--html", "{}"], "is a page: give it a name that ends in one of .html, .htm"),
        (["nowhere"], "nowhere: there is no such file"),
        (["{}", "--method", "loo"], "--method loo chooses among the scores of many prompts"),
    ],
    ids=str,
)
def test_mistakes_get_one_sentence(words: list[str], message: str, kept: tuple[str, str]) -> None:
    done = run("show", *(word.format(kept[0]) for word in words))
    assert done.exit_code == 2 and message in done.stderr and "Traceback" not in done.output


def test_what_is_shown_is_not_written_over(kept: tuple[str, str], tmp_path: Path) -> None:
    page = Path(kept[0]).rename(tmp_path / "a.html")
    held = page.read_bytes()
    done = run("show", str(page), "--html", str(page))
    assert done.exit_code == 2 and "FILE 1" in done.stderr and "and --html" in done.stderr
    assert page.read_bytes() == held
