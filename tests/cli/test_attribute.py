"""``attribute`` and ``demo``, as a user types them."""

import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from helpers.evaluating import demo, run
from heta_lens import Attribution, SpanAttribution
from heta_lens.model import loading
from heta_lens.plots.scales import percent_of

TEXT = "Mia put the key in the drawer. Leo put the key in the box. Question: Where did Mia put the key? Answer: in the"


def attributed(*words: str, given: str | None = None) -> Any:
    done = run("attribute", *words, given=given)
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "a.safetensors"


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model must not be loaded."""
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))


def test_a_text_of_ones_own(tmp_path: Path, kept: Path) -> None:
    page = tmp_path / "a.html"
    options = "-o", "probes=3", "-o", "support=row", "--html", str(page), "--save", str(kept)
    done = attributed(TEXT, "--target", " box", *options)
    assert "why ' box'?" in done.output and str(page) in done.output and page.stat().st_size > 1000
    attribution = Attribution.load(kept)
    assert (attribution.options["probes"], attribution.options["support"]) == (3, "row")
    assert attribution.target_text == " box"


def test_the_prompt_may_be_in_a_file_or_come_through_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text(TEXT + "\n")
    ways: list[tuple[list[str], str | None]] = [([TEXT], None), ([], TEXT + "\n"), (["-"], TEXT)]
    ways += [(["--file", str(tmp_path / "in.txt")], None), ([TEXT, "--model", str(loading.DEMO)], None)]
    assert len({attributed(*words, "-m", "recency", given=given).stdout for words, given in ways}) == 1


def test_warnings_are_a_line_and_quiet_leaves_them_out(tmp_path: Path) -> None:
    words = TEXT, "-m", "lime", "-o", "samples=5", "--html", str(tmp_path / "a.html")
    with warnings.catch_warnings(action="always"):
        loud, still = attributed(*words), attributed(*words, "-q")
    assert "a.html" in loud.stdout and "heta-lens: samples=5 are fewer than" in loud.stderr
    assert all(line.startswith("heta-lens: ") for line in loud.stderr.splitlines())
    assert "a.html" not in still.stdout and still.stderr == "" and "lime: why" in still.stdout


# --------------------------------------------------------------------------------------------------------------- chats

ROLES = {"system": "Mia put the key in the drawer.", "user": "Question: Where did Mia put the key?"}
SAID = "{% for message in messages %}{{ message.content }} {% endfor %}"
CHAT_TEMPLATE = SAID + "{% if add_generation_prompt %}Answer: in the{% endif %}"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """The demo model, with a chat template."""
    shutil.copytree(loading.DEMO, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return str(tmp_path / "model")


def test_a_question_is_asked_in_the_models_chat_template(folder: str, tmp_path: Path, kept: Path) -> None:
    page = tmp_path / "a.html"
    words = "--model", folder, "-o", "probes=2", "--save", str(kept), "--html", str(page)
    done = attributed("--system", ROLES["system"], "--user", ROLES["user"], *words)
    assert "why ' drawer'?" in done.output and "tokens of the chat template hold" in done.output
    found = Attribution.load(kept)
    assert [(message.role, message.text) for message in found.by_message()][:2] == [*ROLES.items()]
    assert not re.search(r"template +[\d.]+% ", done.output)
    for message in found.by_message()[:2]:
        assert re.search(rf"{message.role} +{percent_of(found.scores, message.score)} ", done.output)
    assert "drawer" in page.read_text() and "template" in page.read_text()


def test_a_chat_is_answered_and_the_answer_explained(folder: str, kept: Path) -> None:
    words = "--generate", "2", "-m", "ixg", "--by", "message", "--save", str(kept)
    done = attributed("--user", ROLES["user"], "--model", folder, *words)
    assert "written: " in done.stdout and re.search(r"user: Question: Where", done.stdout)
    assert len(SpanAttribution.load(kept)) == 2


# ----------------------------------------------------------------------------------------------------------- questions


def test_a_contrast(kept: Path) -> None:
    words = "--target", " box", "--against", " drawer", "--against", " bag", "-m", "ixg", "--save", str(kept)
    assert "why ' box' rather than any of" in attributed(TEXT, *words).stdout
    first, second = Attribution.load(kept).target
    assert isinstance(first, int) and isinstance(second, frozenset) and len(second) == 2


def test_a_function_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "margins_of_mine.py").write_text("def margin(logits):\n    return logits[7] - logits[8]\n")
    monkeypatch.chdir(tmp_path)
    done = attributed(TEXT, "--target-function", "margins_of_mine:margin", "-m", "ixg")
    assert "why margin(logits)?" in done.stdout


def test_the_last_tokens_of_a_text_are_explained_as_an_answer(tmp_path: Path, kept: Path) -> None:
    page = tmp_path / "a.html"
    done = attributed(TEXT, "--span", "-2:", "-m", "ixg", "--save", str(kept), "--html", str(page))
    assert "why ' in the'?" in done.stdout and re.search(r"^28 +' in' ", done.stdout, re.MULTILINE)
    assert SpanAttribution.load(kept).targets == (" in", " the")
    assert "in the" in page.read_text() and "matrix" in page.read_text()


def test_the_model_writes_an_answer_which_is_explained(kept: Path) -> None:
    done = attributed(TEXT, "--generate", "2", "-m", "ixg", "--save", str(kept))
    span = SpanAttribution.load(kept)
    assert "written:  drawer." in done.stdout and span.targets == (" drawer", ".")
    assert span.start == demo().to_tokens(TEXT).shape[1]


def test_an_answer_is_followed_through_the_reasoning(kept: Path) -> None:
    attributed(TEXT, "--span", "-1", "--through", "-4:-1", "-m", "ixg", "--save", str(kept))
    assert len(SpanAttribution.load(kept).reasoning) == 3


# ------------------------------------------------------------------------------------------------------------- methods


def test_several_methods_are_compared(tmp_path: Path) -> None:
    files = "--html", str(tmp_path / "a.html"), "--save", str(tmp_path / "a.safetensors")
    done = attributed(TEXT, "-m", "loo,ixg", "-m", "lime samples=90", "--top", "2", *files)
    assert re.search(r"position +token +loo +ixg +lime samples=90", done.stdout)
    assert re.search(r"^7 +' drawer' +9\.\d+ \(1\) ", done.stdout, re.MULTILINE)
    assert "rank correlation" in done.stdout
    methods = ("loo", "ixg", "lime_samples=90")
    assert {path.name for path in tmp_path.iterdir()} == {"a.html", *(f"a-{method}.safetensors" for method in methods)}
    assert Attribution.load(tmp_path / "a-loo.safetensors").method == "leave_one_out"


def test_figures_of_a_method_and_of_several(tmp_path: Path) -> None:
    for name in ("a.svg", "b.tex"):
        assert name in attributed(TEXT, "-m", "loo", "--figure", str(tmp_path / name)).output
    assert "<svg" in (tmp_path / "a.svg").read_text() and "\\" in (tmp_path / "b.tex").read_text()
    done = attributed(TEXT, "-m", "loo,recency", "--figure", str(tmp_path / "c.tex"), "--json")
    assert json.loads(done.stdout)["figure"] == str(tmp_path / "c.tex")
    tex = (tmp_path / "c.tex").read_text()
    assert tex.count(r"\begingroup") == 2 and r"\textbf{loo:" in tex and r"\textbf{recency:" in tex
    assert len([*tmp_path.iterdir()]) == 3


# ------------------------------------------------------------------------------------------------------------ mistakes


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["Mia put the elephant in the"], "no token for 'elephant'"),
        ([TEXT, "--target", " elephant"], "' elephant'"),
        ([TEXT, "--model", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--user", "Where"], "this model's tokenizer has no chat template"),
        ([TEXT, "--span", "0:3", "-m", "loo"], "begins with the first token, which has no context"),
        ([TEXT, "--generate", "5000", "-m", "loo"], "the prompt and 5000 more tokens are 5030 tokens long"),
    ],
    ids=str,
)
def test_mistakes_get_one_sentence(words: list[str], message: str) -> None:
    done = run("attribute", *words)
    assert done.exit_code == 2 and message in done.stderr and "Traceback" not in done.output


@pytest.mark.usefixtures("unchecked", "unloaded")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([" "], "the text is empty"),
        ([TEXT, "-o", "probes=0"], "probes=0"),
        ([TEXT, "-m", "tdd direction=up"], "direction='up' is not one of 'backward', 'forward'"),
        ([TEXT, "--by", "message"], "--by message is for a chat, and this prompt is a text"),
        ([TEXT, "-m", "loo,lime", "--by", "word"], "--by word lists the groups of one method, and there are 2"),
        ([TEXT, "--figure", "a.gif"], "--figure a.gif cannot be written"),
        ([TEXT, "-m", "reagent", "--target", " a", "--target", " b"], "method='reagent' explains one token"),
    ],
    ids=str,
)
def test_mistakes_are_refused_before_a_model_is_loaded(words: list[str], message: str) -> None:
    done = run("attribute", *words)
    assert done.exit_code == 2 and message in done.stderr


# ---------------------------------------------------------------------------------------------------------------- demo


@pytest.mark.slow
def test_demo_explains_a_story_and_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("demo", "--json")
    document = json.loads(done.stdout)
    explained = document["attribution"]
    scores = dict(zip(explained["position"], explained["score"], strict=True))
    assert explained["target_text"] == document["answer"]
    assert max(scores, key=scores.__getitem__) in document["evidence"]
    assert "The model answers box; the evidence: " in (tmp_path / "heta_lens_demo.html").read_text()
