"""Which prompt a command is given: a text, a question with or without a system prompt, or a file of chat messages."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from heta_lens.cli.flag_groups import with_flags

Prompt: TypeAlias = str | list[Mapping[str, Any]]  # a text, or the messages of a chat

TEXT = "The prompt, up to where the model goes on; - reads it from the input, as does a pipe without TEXT."
CHAT = "A chat instead of a text: a JSON file, a list of messages with role and content; - reads it from the input."
USER = "A chat instead of a text: the message that the model answers."
FLAGS: dict[str, Any] = {
    "text": Annotated[str | None, typer.Argument(help=TEXT)],
    "file": Annotated[Path | None, typer.Option("--file", metavar="FILE", help="A file that has the text.")],
    "chat": Annotated[Path | None, typer.Option("--chat", metavar="FILE", help=CHAT)],
    "system": Annotated[str | None, typer.Option(help="The system prompt of a chat; goes with --user.")],
    "user": Annotated[str | None, typer.Option(help=USER)],
}
"""What a prompt is given by."""

with_prompt_flags = with_flags(FLAGS, "prompt_flags")
"""Gives a command these flags; it gets those that were used as ``prompt_flags``, for `prompt_of`."""


def prompt_of(
    text: str | None = None,
    chat: Path | None = None,
    system: str | None = None,
    user: str | None = None,
    file: Path | None = None,
) -> Prompt:
    """The one prompt that was given; contradictions are refused before anything is read."""
    given = {"TEXT": text, "--chat": chat, "--user": user, "--file": file}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ValueError(f"there are {len(names)} prompts, {' and '.join(names)}: give one of them")
    if system is not None and chat is not None:
        raise ValueError(f"--system and --chat {chat} are two chats: write the system message into the file")
    if system is not None and user is None:
        raise ValueError("--system goes with --user, which is the message that the model answers: give that too")
    if chat is not None:
        return _messages(chat)
    if user is not None:
        messages = [("system", system), ("user", user)]
        return [{"role": role, "content": content} for role, content in messages if content is not None]
    if text is not None and os.path.isfile(text):
        way = f"heta-lens show {text} shows a saved attribution" if text.endswith(".safetensors") else ""
        raise ValueError(f"{text} is a file: {way or f'--file {text} reads the prompt from it'}")
    prompt = _file_text(file) if file is not None else _piped() if text is None else _typed(text)
    if not prompt.strip():
        raise ValueError("the text is empty: give the prompt that the model is to continue")
    return prompt


def with_text(prompt: Prompt, text: str) -> Prompt:
    """The same prompt with another text; of a chat, with another message at its end."""
    return text if isinstance(prompt, str) else [*prompt[:-1], {**prompt[-1], "content": text}]


def _file_text(path: Path) -> str:
    """What is in the file, without the newline that ends its last line."""
    from heta_lens._util.file_reading import read_text

    return _without_newline(read_text(path, f"--file {path}: there is no such file"))


def _typed(text: str) -> str:
    return _without_newline(sys.stdin.read()) if text == "-" else text


def _piped() -> str:
    """The input, if a person is not to type it."""
    prompt = "" if sys.stdin is None or sys.stdin.isatty() else _without_newline(sys.stdin.read())
    if not prompt:
        ways = "give a TEXT, or --file, or --user for a chat, or --chat with a file of messages"
        raise ValueError(f"there is no prompt: {ways}")
    return prompt


def _without_newline(text: str) -> str:
    return text.removesuffix("\r\n" if text.endswith("\r\n") else "\n")


def _messages(path: Path) -> list[Mapping[str, Any]]:
    """The messages in a JSON file, or in the input for ``-``; what is wrong is named with its place."""
    from heta_lens._util.file_reading import NotJSON, decoded, parse_json, read_text
    from heta_lens.model.chat_template import checked_messages

    stdin = str(path) == "-"
    name = "the input" if stdin else str(path)
    text = decoded(sys.stdin.buffer.read(), name) if stdin else read_text(path, f"--chat {path}: there is no such file")
    try:
        return checked_messages(parse_json(text))
    except NotJSON as error:
        line = text.count("\n", 0, error.position) + 1
        raise ValueError(f"{name}, line {line}, is not valid JSON: {error}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None
