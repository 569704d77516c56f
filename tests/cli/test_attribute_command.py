"""``heta-lens demo`` and ``heta-lens attribute``, as a user types them."""

import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import heta_lens
from heta_lens import plots
from heta_lens.cli import app, attribute_command
from heta_lens.model import loading
from heta_lens.plots.message_shares import message_shares

TEXT = "Mia put the key in the drawer. Leo put the key in the box. Question: Where did Mia put the key? Answer: in the"


def run(*words: str, given: str | None = None) -> Any:
    return CliRunner().invoke(app, list(words), input=given, env={"COLUMNS": "100", "NO_COLOR": "1"})


@pytest.mark.slow
def test_demo_explains_a_story_and_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("demo")
    assert done.exit_code == 0, done.output
    assert re.search(r"heta: why ' \w+'\?", done.output)
    for part in ("score", "gate", "curvature", "information", "Underlined is what tells the answer"):
        assert part in done.output
    page = (tmp_path / "heta_lens_demo.html").read_text()
    assert "Underlined" in page
    assert "class=marked" in page


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked")
def test_demos_differ_by_seed_and_hops(tmp_path: Path) -> None:
    page = str(tmp_path / "a.html")
    said = {run("demo", *words, "--html", page).output for words in ([], ["--seed", "1"], ["--hops", "2"])}
    assert len(said) == 3
    assert run("demo", "--hops", "3").exit_code == 2


def test_a_text_of_ones_own(tmp_path: Path) -> None:
    kept, page = tmp_path / "a.safetensors", tmp_path / "a.html"
    options = "-o", "probes=3", "-o", "support=row", "--html", str(page), "--save", str(kept)
    done = run("attribute", TEXT, "--target", " box", *options)
    assert done.exit_code == 0, done.output
    assert "why ' box'?" in done.output
    assert str(page) in done.output
    assert page.stat().st_size > 1000
    attribution = heta_lens.Attribution.load(kept)
    assert attribution.options["probes"] == 3
    assert attribution.options["support"] == "row"
    assert attribution.target_text == " box"


def test_several_targets_are_one_set(tmp_path: Path) -> None:
    kept, page = tmp_path / "a.safetensors", tmp_path / "a.html"
    options = "--method", "input_x_gradient", "--html", str(page), "--save", str(kept)
    done = run("attribute", TEXT, "--target", " box", "--target", " drawer", "--target", " box", *options)
    assert done.exit_code == 0, done.output
    attribution = heta_lens.Attribution.load(kept)
    words = attribution.target_text
    assert isinstance(attribution.target, frozenset) and words in (
        "any of ' box', ' drawer'",
        "any of ' drawer', ' box'",
    )
    assert f"why {words}?" in done.output and "any of 2 tokens: p = " in done.output
    assert "any of" in page.read_text()


@pytest.mark.slow
def test_the_text_may_come_from_the_input_and_the_model_from_a_folder() -> None:
    done = run("attribute", "-", "--model", str(loading.DEMO), "-o", "probes=2", given=TEXT)
    assert done.exit_code == 0, done.output
    assert "why ' drawer'?" in done.output


# ------------------------------------------------------------------------------------------------------------- chats
ROLES = {"system": "Mia put the key in the drawer.", "user": "Question: Where did Mia put the key?"}
SAID = "{% for message in messages %}{{ message.content }} {% endfor %}"
CHAT_TEMPLATE = SAID + "{% if add_generation_prompt %}Answer: in the{% endif %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The demo model, with a chat template."""
    shutil.copytree(loading.DEMO, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return tmp_path / "model"


def test_a_question_is_asked_in_the_models_own_chat_template(folder: Path, tmp_path: Path) -> None:
    kept, page = tmp_path / "a.safetensors", tmp_path / "a.html"
    words = "--model", str(folder), "-o", "probes=2", "--save", str(kept), "--html", str(page)
    done = run("attribute", "--system", ROLES["system"], "--user", ROLES["user"], *words)
    assert done.exit_code == 0, done.output
    assert "why ' drawer'?" in done.output and "tokens of the chat template hold" in done.output
    found = heta_lens.Attribution.load(kept)
    assert [(message.role, message.text) for message in found.by_message()][:2] == [*ROLES.items()]
    for message in message_shares(found):
        assert re.search(rf"{message.role} +{message.percent} +{re.escape(f'{message.score:.4g}')} ", done.output)
    assert "<h2>messages</h2>" in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("stdin", [False, True])
def test_a_chat_may_be_in_a_file_or_in_the_input(folder: Path, tmp_path: Path, stdin: bool) -> None:
    chat = [{"role": role, "content": content} for role, content in ROLES.items()]
    (tmp_path / "chat.json").write_text(json.dumps(chat))
    file, given = ("-", json.dumps(chat)) if stdin else (str(tmp_path / "chat.json"), None)
    done = run("attribute", "--chat", file, "--model", str(folder), "--method", "recency", given=given)
    assert done.exit_code == 0, done.output
    assert re.search(r"^0 +system .*'Mia put", done.output, re.MULTILINE)
    assert re.search(r"^ +template ", done.output, re.MULTILINE)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--user", "elephant"], "this model has no token for 'elephant'"),
        (["--user", "Where", "--target", " elephant"], "' elephant'"),
    ],
    ids=str,
)
def test_what_a_chat_model_does_not_know_is_refused(folder: Path, words: list[str], message: str) -> None:
    done = run("attribute", *words, "--model", str(folder))
    assert done.exit_code == 2 and message in done.stderr and "Traceback" not in done.output


def test_a_model_without_a_chat_template_says_so() -> None:
    done = run("attribute", "--user", "Where")
    assert done.exit_code == 2 and "this model's tokenizer has no chat template" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no prompt"),
        ([TEXT, "--user", "Where"], "TEXT and --user are 2 prompts"),
        (["--chat", "a.json", "--user", "Where"], "--chat and --user are 2 prompts"),
        (["--system", "Where"], "--system goes with --user"),
        (["--chat", "/nowhere.json"], "--chat /nowhere.json: there is no such file"),
    ],
    ids=str,
)
def test_a_prompt_that_is_none_is_refused_before_a_model_is_loaded(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load_model", lambda _: pytest.fail("a model was loaded"))
    done = run("attribute", *words)
    assert done.exit_code == 2 and message in done.stderr


# ---------------------------------------------------------------------------------------------------------- mistakes
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["Mia put the elephant in the"], "no token for 'elephant'"),
        ([TEXT, "--target", " elephant"], "' elephant'"),
        ([TEXT, "-o", "probes"], "'probes' is not of the form NAME=VALUE"),
        ([TEXT, "-o", "probes=0"], "probes=0"),
        ([TEXT, "-o", "probs=3"], "probs"),
        ([TEXT, "--model", "/nowhere/at/all"], "/nowhere/at/all"),
        ([TEXT, "--model", "/tmp"], "heta-lens: "),
        ([" "], "the text is empty"),
        ([TEXT, "-o", "target=box"], "--target and --method say it"),
        ([TEXT, "--html", "/nowhere/a.html"], "/nowhere/a.html cannot be written"),
        ([TEXT, "--save", "/tmp"], "/tmp cannot be written"),
        ([TEXT, "--html", "a.out", "--save", "a.out"], "--html a.out and --save a.out are the same file"),
        ([TEXT, "--html", "a.out", "--save", "./a.out"], "--html a.out and --save a.out are the same file"),
        ([TEXT, "-o", "probes=100000000000"], "heta-lens: "),
    ],
    ids=str,
)
def test_mistakes_get_one_sentence(words: list[str], message: str) -> None:
    done = run("attribute", *words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize("words", [[" "], [TEXT, "-o", "probs=3"], [TEXT, "--method", "limes"]], ids=str)
def test_mistakes_are_refused_before_a_model_is_loaded(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load_model", lambda _: pytest.fail("a model was loaded"))
    assert run("attribute", *words).exit_code == 2


def test_another_method_explains(tmp_path: Path) -> None:
    kept = tmp_path / "a.safetensors"
    done = run("attribute", TEXT, "--method", "lime", "-o", "samples=80", "--save", str(kept))
    assert done.exit_code == 0 and "lime: why" in done.stdout
    found = heta_lens.Attribution.load(kept)
    assert found.method == "lime" and found.signed and found.options["samples"] == 80


def test_a_warning_gets_one_sentence_too() -> None:
    with warnings.catch_warnings(action="always"):
        done = run("attribute", TEXT, "--method", "reagent", "-o", "top=200")
    assert done.exit_code == 0, done.output
    assert re.fullmatch(r"heta-lens: the top=200 tokens that suffice are all \d+ there are.*: lower top\n", done.stderr)


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        (["variant=transition_only"], ""),
        (["variant=transition_only", "seed=1"], "seed=1 has no effect with variant='transition_only'"),
        (["variant=transition_only", "balance=sum"], "balance='sum' has no effect with variant='transition_only'"),
        (["variant=gs"], ""),
    ],
    ids=str,
)
def test_only_options_that_were_given_are_warned_of(given: list[str], warned: str, tmp_path: Path) -> None:
    kept = tmp_path / "a.safetensors"
    with warnings.catch_warnings(action="always"):
        done = run("attribute", TEXT, "--save", str(kept), *(word for one in given for word in ("-o", one)))
    assert done.exit_code == 0, done.output
    assert done.stderr.count("has no effect") == bool(warned) and warned in done.stderr
    assert heta_lens.Attribution.load(kept).options["balance"] == ("sum" if "balance=sum" in given else "none")


def test_a_method_that_does_not_exist_is_named() -> None:
    done = run("attribute", TEXT, "--method", "limes")
    assert done.exit_code == 2 and "did you mean 'lime'?" in done.stderr


@pytest.mark.slow
def test_a_final_newline_is_not_part_of_the_prompt(tmp_path: Path) -> None:
    kept = tmp_path / "a.safetensors"
    assert run("attribute", "-", "-o", "probes=2", "--save", str(kept), given=TEXT + "\n").exit_code == 0
    assert heta_lens.Attribution.load(kept).text.endswith("Answer: in the")


@pytest.mark.slow
def test_files_are_written_before_anything_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no terminal")

    monkeypatch.setattr(plots, "terminal", fail)
    kept, page = tmp_path / "a.safetensors", tmp_path / "a.html"
    done = run("attribute", TEXT, "-o", "probes=2", "--save", str(kept), "--html", str(page))
    assert done.exit_code == 2
    assert kept.exists()
    assert page.exists()


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked")
def test_demo_says_when_the_model_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = str(tmp_path / "a.html")
    assert "as the model says" in run("demo", "--html", page).output
    explained = attribute_command._explained
    wrong = lambda model, text, _, method: explained(model, text, [" bag"], method)  # noqa: E731
    monkeypatch.setattr(attribute_command, "_explained", wrong)
    assert "which the model gets wrong" in run("demo", "--html", page).output
