"""What is refused before weights are read."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from heta_lens.cli.questions import Question, Span, check_before_loading, loaded_for
from heta_lens.model import loading

TEXT = "Mia put the key in the drawer. Question: Where did Mia put the key? Answer: in the"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """The demo model without its weights."""
    shutil.copytree(loading.DEMO, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    return str(tmp_path / "model")


def count() -> int:
    """How many tokens the text has for the loaded model."""
    return loading.load_demo_model().to_tokens(TEXT).shape[1]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (Question(position=50), "--position 50 is outside of the text, which has at most 22 tokens"),
        (Question(position=-50), "--position -50 is outside of the text"),
        (Question(span=Span(3, 90)), "--span 90 is outside of the text"),
        (Question(span=Span(-2), through=(1, 99)), "--through 99 is outside of the text"),
        (Question(span=Span(40), generate=5), "--span 40 is outside of the text, which has at most 27 tokens"),
        (Question(" the key"), "target=' the key' is not a single token of this model but 2"),
        (Question((" key", {" drawer", " box box"})), "target=' box box' is not a single token"),
        (Question(10**6), "target=1000000 "),
    ],
    ids=["beyond", "before", "span", "through", "beyond what is written", "two tokens", "in a set", "no id"],
)
def test_a_question_that_does_not_fit(
    folder: str, question: Question, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert count() == 22
    monkeypatch.setattr(loading, "load_model", pytest.fail)
    with pytest.raises(ValueError, match=message):
        loaded_for(folder, TEXT, question)


@pytest.mark.parametrize(
    ("text", "message"), [("a \udcff", "not valid UTF-8 at character 2"), (" ", "the text is empty")]
)
def test_a_text_that_no_tokenizer_reads(folder: str, text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load_model", pytest.fail)
    with pytest.raises(ValueError, match=message):
        loaded_for(folder, text, Question())


def test_a_text_that_is_too_long(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load_model", pytest.fail)
    with pytest.raises(ValueError, match=r"the text is \d+ tokens long, and this model reads \d+ at most"):
        loaded_for(folder, "the key " * 3000, Question())


@pytest.mark.parametrize(
    "question",
    [
        Question(),
        Question(position=21),
        Question(position=-22),
        Question(span=Span(19, 22)),
        Question(span=Span(-3, 26), generate=4),
        Question((" drawer", {"box", 5})),
        Question(len),
    ],
    ids=["next", "last", "first", "span", "written", "contrast of sets", "function"],
)
def test_a_question_that_may_fit_loads_the_model(
    folder: str, question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load_model", lambda name, **given: (name, given))
    assert loaded_for(folder, TEXT, question, dtype="float32") == (folder, {"dtype": "float32"})


@pytest.mark.parametrize("prompt", [TEXT, [{"role": "user", "content": TEXT}]], ids=["text", "chat"])
def test_what_cannot_be_read_is_left_to_loading(prompt: Any, tmp_path: Path) -> None:
    check_before_loading(str(tmp_path), prompt, Question(position=50))
    check_before_loading("demo", prompt, Question(position=50))
