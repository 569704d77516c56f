"""Which prompt a command is given."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from heta_lens.cli.flags import prompt_of, with_text

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Ünd? 😀"}]


def given(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))


def test_a_text_is_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prompt_of("The cat", None, None, None) == "The cat"
    given(monkeypatch, b"The cat\n")
    assert prompt_of("-", None, None, None) == "The cat"


def test_a_text_may_come_through_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, b"The cat\n")
    assert prompt_of() == "The cat"
    given(monkeypatch, b" \n")
    with pytest.raises(ValueError, match="the text is empty"):
        prompt_of()


def test_a_person_who_would_have_to_type_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, b"The cat\n")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    with pytest.raises(ValueError, match="there is no prompt"):
        prompt_of()


@pytest.mark.parametrize(
    ("raw", "text"),
    [(b" The cat \n", " The cat "), (b"\nThe\n\n", "\nThe\n"), (b"cat\r\n", "cat"), (b"cat\r", "cat\r")],
)
def test_a_file_is_a_text_but_for_its_last_newline(raw: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(raw)
    assert prompt_of(file=tmp_path / "in.txt") == text


def test_a_question_is_a_chat() -> None:
    assert prompt_of(None, None, None, "Why?") == [{"role": "user", "content": "Why?"}]
    assert prompt_of(None, None, "Be brief.", "Ünd? 😀") == CHAT
    assert prompt_of(None, None, "", "") == [{"role": "system", "content": ""}, {"role": "user", "content": ""}]


def test_another_text_is_that_of_the_last_message() -> None:
    assert with_text("a", "b") == "b"
    chat = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    assert with_text(chat, "c") == [chat[0], {"role": "user", "content": "c"}] and chat[1]["content"] == "b"


@pytest.mark.parametrize("encode", [str.encode, lambda text: b"\xef\xbb\xbf" + text.encode()], ids=["plain", "bom"])
def test_a_file_holds_the_messages_of_a_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encode: Any) -> None:
    raw = encode(json.dumps(CHAT, ensure_ascii=False))
    (tmp_path / "chat.json").write_bytes(raw)
    assert prompt_of(None, tmp_path / "chat.json", None, None) == CHAT
    given(monkeypatch, raw)
    assert prompt_of(None, Path("-"), None, None) == CHAT


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, None, None, None), "there is no prompt: give a TEXT, or --file, or --user for a chat, or --chat"),
        ((None, None, None, None, Path("/nowhere.txt")), "--file /nowhere.txt: there is no such file"),
        (("a", None, None, None, Path("b")), "there are 2 prompts, TEXT and --file"),
        ((__file__, None, None, None), f"{__file__} is a file: --file {__file__} reads the prompt from it"),
        ((None, Path("b"), "x", None), "--system and --chat b are two chats: write the system message into the file"),
        (("a", Path("b"), None, None), "there are 2 prompts, TEXT and --chat: give one of them"),
        (("a", None, None, "c"), "there are 2 prompts, TEXT and --user"),
        (("-", Path("-"), None, None), "there are 2 prompts, TEXT and --chat"),
        (("a", Path("b"), None, "c"), "there are 3 prompts, TEXT and --chat and --user"),
        (("a", None, "s", None), "--system goes with --user"),
        ((None, None, "s", None), "--system goes with --user"),
        ((" \n", None, None, None), "the text is empty"),
        ((None, Path("/nowhere.json"), None, None), "--chat /nowhere.json: there is no such file"),
        ((None, Path("/tmp"), None, None), "/tmp is a folder"),
    ],
    ids=str,
)
def test_contradictions_are_refused(arguments: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, b"")
    with pytest.raises((ValueError, OSError), match=message):
        prompt_of(*arguments)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'[{"role": "user",\n "content": }]', r"line 2, is not valid JSON: Expecting value at character 13"),
        (b"", "line 1, is not valid JSON: Expecting value at character 1"),
        (b"\xff[]", "line 1, is not UTF-8"),
        (b'{"role": "user"}', r"messages=\{'role': 'user'\} must be a list of dicts with role and content"),
        (b"[]", "is empty: a chat has at least one message"),
        (b'[{"role": "user", "content": "a"}, {"role": "user", "content": 5}]', r"messages\[1\] has 5 as its content"),
        (b'[{"role": "user", "content": "a", "role": "b"}]', "the key 'role' is there twice"),
        (b"[NaN]", "NaN is not a number of JSON"),
        (b"[" * 200 + b"]" * 200, "it nests more than 64 levels deep"),
    ],
    ids=str,
)
def test_a_file_of_anything_else_is_refused_by_its_place(
    raw: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chat.json").write_bytes(raw)
    with pytest.raises(ValueError, match=rf"chat.json(, |: ).*{message}|chat.json, {message}"):
        prompt_of(None, tmp_path / "chat.json", None, None)
    given(monkeypatch, raw)
    with pytest.raises(ValueError, match=rf"the input(, |: ).*{message}|the input, {message}"):
        prompt_of(None, Path("-"), None, None)
