"""``heta-lens attribute``, as a user types it."""

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
from heta_lens._util import work
from heta_lens.cli import app
from heta_lens.model import loading
from heta_lens.plots.scales import message_shares

TEXT = "Mia put the key in the drawer. Leo put the key in the box. Question: Where did Mia put the key? Answer: in the"


def run(*words: str, given: str | None = None) -> Any:
    return CliRunner().invoke(app, list(words), input=given, env={"COLUMNS": "100", "NO_COLOR": "1"})


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


@pytest.mark.parametrize("quiet", [True, False])
def test_long_work_is_reported_in_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch, quiet: bool) -> None:
    monkeypatch.setattr(work, "FIRST", 0.01)
    done = run("attribute", TEXT, "-o", "probes=8", *(["--quiet"] if quiet else []))
    assert done.exit_code == 0, done.output
    assert bool(re.search(r"(working for|done after) 0:00:0\d", done.stderr)) != quiet
    assert "done after" not in done.stdout and "why" in done.stdout


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
    assert f"why {words}?" in done.output and "any of 2 tokens: p " in done.output
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
    *shares, template = message_shares(found)
    assert template.template and not re.search(r"template +[\d.]+% ", done.output)
    for message in shares:
        assert re.search(rf"{message.role} +{message.percent} ", done.output)
    assert "drawer" in page.read_text() and "template" in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("stdin", [False, True])
def test_a_chat_may_be_in_a_file_or_in_the_input(folder: Path, tmp_path: Path, stdin: bool) -> None:
    chat = [{"role": role, "content": content} for role, content in ROLES.items()]
    (tmp_path / "chat.json").write_text(json.dumps(chat))
    file, given = ("-", json.dumps(chat)) if stdin else (str(tmp_path / "chat.json"), None)
    done = run("attribute", "--chat", file, "--model", str(folder), "--method", "recency", given=given)
    assert done.exit_code == 0, done.output
    assert re.search(r"^0 +system .*'Mia put", done.output, re.MULTILINE)
    assert "tokens of the chat template hold" in done.output


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
        ([TEXT, "--user", "Where"], "there are 2 prompts, TEXT and --user"),
        (["--chat", "a.json", "--user", "Where"], "there are 2 prompts, --chat and --user"),
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
        ([TEXT, "--html", "a.html", "--save", "a.html"], "--html a.html and --save a.html are the same file"),
        ([TEXT, "--html", "a.html", "--save", "./a.html"], "--html a.html and --save a.html are the same file"),
        ([TEXT, "--html", "a.out"], "--html a.out is a page: give it a name that ends in one of .html, .htm"),
        (
            [TEXT, "-m", "ixg,recency", "--html", "b.html", "--figure", "b.html"],
            "--html b.html and --figure b.html are the same file",
        ),
        ([TEXT, "-o", "probes=100000000000"], "heta-lens: "),
        ([TEXT, "--span", "0:3", "-m", "loo"], "the span begins with the first token"),
        ([TEXT, "--generate", "5000", "-m", "loo"], "--generate 5000 makes 5030 tokens of the prompt's 30"),
    ],
    ids=str,
)
def test_mistakes_get_one_sentence(words: list[str], message: str) -> None:
    done = run("attribute", *words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([" "], "the text is empty"),
        ([TEXT, "-o", "probs=3"], "heta has no option 'probs'"),
        ([TEXT, "--method", "limes"], "did you mean 'lime'?"),
        ([TEXT, "-m", "lime surrogate=linear"], "surrogate='linear' is not one of 'ridge', 'lasso'"),
        ([TEXT, "--by", "line"], "--by line is not one of token, word"),
        ([TEXT, "--by", "message"], "--by message is for a chat, and this prompt is a text"),
        ([TEXT, "-m", "loo,lime", "--by", "word"], "--by word lists the groups of one method, and there are 2"),
        ([TEXT, "--figure", "a.gif"], "--figure a.gif cannot be written"),
        ([TEXT, "--save", "a.png"], "name it .safetensors, or write what it shows by --figure"),
        ([TEXT, "--save", "a.json"], "name it .safetensors, or write what it shows by --json"),
        ([TEXT, "-m", "reagent", "--target", " a", "--target", " b"], "method='reagent' explains one token"),
        ([TEXT, "--span", "3", "--position", "3"], "--position is about one token, and --span about several"),
    ],
    ids=str,
)
def test_mistakes_are_refused_before_a_model_is_loaded(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    done = run("attribute", *words)
    assert done.exit_code == 2 and message in done.stderr


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


# --------------------------------------------------------------------------------------------------------- questions
def test_a_contrast(tmp_path: Path) -> None:
    kept = tmp_path / "a.safetensors"
    words = "--target", " box", "--against", " drawer", "--against", " bag", "-m", "ixg", "--save", str(kept)
    done = run("attribute", TEXT, *words)
    assert done.exit_code == 0 and "why ' box' rather than any of" in done.stdout
    first, second = heta_lens.Attribution.load(kept).target
    assert isinstance(first, int) and isinstance(second, frozenset) and len(second) == 2


def test_the_token_at_a_position_is_explained_from_those_before_it(tmp_path: Path) -> None:
    kept = tmp_path / "a.safetensors"
    done = run("attribute", TEXT, "--position", "6", "-m", "ixg", "--save", str(kept))
    assert done.exit_code == 0 and "why ' the'?" in done.stdout
    assert len(heta_lens.Attribution.load(kept)) == 6


def test_the_last_tokens_of_a_text_are_explained_as_an_answer(tmp_path: Path) -> None:
    kept, page = tmp_path / "a.safetensors", tmp_path / "a.html"
    done = run("attribute", TEXT, "--span", "-2:", "-m", "ixg", "--save", str(kept), "--html", str(page))
    assert done.exit_code == 0, done.output
    assert "why ' in the'?" in done.stdout and re.search(r"^28 +' in' ", done.stdout, re.MULTILINE)
    assert heta_lens.SpanAttribution.load(kept).targets == (" in", " the")
    assert "in the" in page.read_text() and "matrix" in page.read_text()


def test_the_model_writes_an_answer_which_is_explained(tmp_path: Path) -> None:
    kept = tmp_path / "a.safetensors"
    done = run("attribute", TEXT, "--generate", "2", "-m", "ixg", "--save", str(kept))
    assert done.exit_code == 0 and "written:  drawer." in done.stdout
    span, model = heta_lens.SpanAttribution.load(kept), heta_lens.load_demo_model()
    assert span.targets == (" drawer", ".") and span.start == model.to_tokens(TEXT).shape[1]


def test_an_answer_is_followed_through_the_reasoning(tmp_path: Path) -> None:
    kept = tmp_path / "a.safetensors"
    done = run("attribute", TEXT, "--span", "-1", "--through", "-4:-1", "-m", "ixg", "--save", str(kept))
    assert done.exit_code == 0, done.output
    assert len(heta_lens.SpanAttribution.load(kept).reasoning) == 3


def test_a_chat_is_answered_and_the_answer_explained(folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "a.safetensors"
    words = "--generate", "2", "-m", "ixg", "--by", "message", "--save", str(kept)
    done = run("attribute", "--user", ROLES["user"], "--model", str(folder), *words)
    assert done.exit_code == 0, done.output
    assert "written: " in done.stdout and re.search(r"user: Question: Where", done.stdout)
    assert len(heta_lens.SpanAttribution.load(kept)) == 2


def test_a_function_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "margins_of_mine.py").write_text("def margin(logits):\n    return logits[7] - logits[8]\n")
    monkeypatch.chdir(tmp_path)
    done = run("attribute", TEXT, "--target-function", "margins_of_mine:margin", "-m", "ixg")
    assert done.exit_code == 0 and "why margin(logits)?" in done.stdout, done.output


def test_the_prompt_may_be_in_a_file_or_come_through_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text(TEXT + "\n")
    shown = [run("attribute", TEXT, "-m", "loo"), run("attribute", "-m", "loo", given=TEXT + "\n")]
    shown.append(run("attribute", "--file", str(tmp_path / "in.txt"), "-m", "loo"))
    assert {done.exit_code for done in shown} == {0} and len({done.stdout for done in shown}) == 1


# ------------------------------------------------------------------------------------------------------ many methods
def test_several_methods_are_compared(tmp_path: Path) -> None:
    files = "--html", str(tmp_path / "a.html"), "--save", str(tmp_path / "a.safetensors")
    done = run("attribute", TEXT, "-m", "loo,ixg", "-m", "lime samples=90", "--top", "2", *files)
    assert done.exit_code == 0, done.output
    assert re.search(r"position +token +loo +ixg +lime samples=90", done.stdout)
    assert re.search(r"^7 +' drawer' +9\.\d+ \(1\) ", done.stdout, re.MULTILINE)
    assert "rank correlation" in done.stdout
    kept = {path.name for path in tmp_path.iterdir()}
    methods = ("loo", "ixg", "lime_samples=90")
    assert kept == {"a.html", *(f"a-{method}.safetensors" for method in methods)}
    assert heta_lens.Attribution.load(tmp_path / "a-loo.safetensors").method == "leave_one_out"


def test_words_are_listed_with_their_shares() -> None:
    done = run("attribute", TEXT, "-m", "loo", "--by", "word", "--top", "1")
    assert re.search(r"^ *9\.36 +\d\d\.\d% +drawer\. +7–8 *$", done.stdout, re.MULTILINE)
    assert "key" not in done.stdout


def test_quiet_leaves_out_what_is_no_result(tmp_path: Path) -> None:
    words = "attribute", TEXT, "-m", "reagent", "-o", "top=200", "--html", str(tmp_path / "a.html")
    with warnings.catch_warnings(action="always"):
        loud, still = run(*words), run(*words, "-q")
    assert "a.html" in loud.stdout and "top=200" in loud.stderr
    assert "a.html" not in still.stdout and still.stderr == "" and "reagent: why" in still.stdout


def test_a_figure(tmp_path: Path) -> None:
    for name in ("a.svg", "a.tex"):
        done = run("attribute", TEXT, "-m", "loo", "--figure", str(tmp_path / name))
        assert done.exit_code == 0 and name in done.output
    assert "<svg" in (tmp_path / "a.svg").read_text() and "\\" in (tmp_path / "a.tex").read_text()


def test_a_figure_of_several_methods(tmp_path: Path) -> None:
    done = run("attribute", TEXT, "-m", "loo,recency", "--figure", str(tmp_path / "a.tex"), "--json")
    assert json.loads(done.stdout)["figure"] == str(tmp_path / "a.tex")
    tex = (tmp_path / "a.tex").read_text()
    assert tex.count(r"\begingroup") == 2 and r"\textbf{loo:" in tex and r"\textbf{recency:" in tex
    assert [file.name for file in tmp_path.iterdir()] == ["a.tex"]


def test_an_answer_among_what_is_generated_is_followed_through_the_rest_of_it() -> None:
    length = len(heta_lens.load_demo_model().to_tokens(TEXT)[0])
    through = f"{length}:-1"
    done = run("attribute", TEXT, "-m", "ixg", "--generate", "4", "--span", "-1", "--through", through, "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    (step,) = document["steps"]
    whole = run("attribute", TEXT, "-m", "ixg", "--generate", "4", "--json")
    written = len(json.loads(whole.stdout)["steps"])
    assert len(step["token"]) == length + written - 1 and written > 1
