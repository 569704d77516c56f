"""Which prompt a command is given: a text, a question with or without a system prompt, or a file of chat messages."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

Prompt: TypeAlias = str | list[Mapping[str, Any]]  # a text, or the messages of a chat


def prompt_of(text: str | None, chat: Path | None, system: str | None, user: str | None) -> Prompt:
    """The one prompt that was given; contradictions are refused before anything is read."""
    given = {"TEXT": text, "--chat": chat, "--user": user}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ValueError(f"{' and '.join(names)} are {len(names)} prompts: give one of them")
    if system is not None and user is None:
        raise ValueError("--system goes with --user, which is the message that the model answers: give that too")
    if chat is not None:
        return _messages(chat)
    if user is not None:
        said = [("system", system), ("user", user)]
        return [{"role": role, "content": content} for role, content in said if content is not None]
    return _text(text)


def _text(text: str | None) -> str:
    if text is None:
        raise ValueError("there is no prompt: give a TEXT, or --user for a chat, or --chat with a file of messages")
    prompt = sys.stdin.read().removesuffix("\n") if text == "-" else text
    if not prompt.strip():
        raise ValueError("the text is empty: give the prompt that the model is to continue")
    return prompt


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
