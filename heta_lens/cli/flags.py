"""Flags that say how a model is loaded, the same for every command that loads one."""

import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from heta_lens.cli.app import add, bars, listed, say, with_flags

if TYPE_CHECKING:
    from heta_lens import Method
    from heta_lens.evaluation.run_folder import Record, Shard


LOADING_FLAGS: dict[str, Any] = {
    "dtype": Annotated[str | None, typer.Option(help="float32 (default on a CPU), bfloat16, float16 or float64.")],
    "device": Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …; by default a GPU if there is one.")],
    "device_map": Annotated[str | None, typer.Option(metavar="MAP", help="Split the model: auto, balanced, or JSON.")],
    "n_devices": Annotated[int | None, typer.Option(min=1, help="Split it evenly over so many GPUs.")],
    "max_memory": Annotated[
        str | None, typer.Option(metavar="LIMITS", help="What each device may hold, as in 0=20GB,cpu=60GB.")
    ],
    "quantization_config": Annotated[
        str | None, typer.Option(metavar="CONFIG", help="8bit or 4bit (bitsandbytes), or JSON as transformers has it.")
    ],
    "gguf_file": Annotated[str | None, typer.Option(metavar="NAME", help="The GGUF file in the folder --model.")],
    "revision": Annotated[str | None, typer.Option(help="A branch, tag or commit of the hub.")],
    "trust_remote_code": Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with it.")],
}
"""The options of `load_model`."""


with_loading_flags = with_flags(LOADING_FLAGS, "loading")
"""Gives a command these flags; it gets those that were used as ``loading``."""

with_hub_flags = with_flags({name: LOADING_FLAGS[name] for name in ("revision", "trust_remote_code")}, "hub")
"""The same, of what is read from the hub only."""


def loading_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags as options of `load_model`, checked before anything is loaded."""
    if not given:
        return {}
    from heta_lens.model.loading import boot_options, read_map

    options = {**given, **{name: read_map(given[name]) for name in given.keys() & MAPS}}
    boot_options(options)
    return options


def facts_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """What a run notes of how its model is loaded: not where, which makes no other evaluation of it."""
    kept = {name: value for name, value in options.items() if name not in PLACES}
    return {"loading": kept} if kept else {}


PLACES = {"device", "device_map", "n_devices", "max_memory"}
MAPS = {"device_map", "max_memory", "quantization_config"}


# -------------------------------------------------------------------------------------------------------- worker flags
# Flags that say how many workers share the prompts of a command, and where.


WORKER_FLAGS: dict[str, Any] = {
    "engine": Annotated[str | None, typer.Option(help="local: this machine (default); ray: a Ray cluster.")],
    "workers": Annotated[int | None, typer.Option(min=1, help="How many, each with a model of its own (1).")],
    "threads": Annotated[int | None, typer.Option(min=1, help="Threads per worker; by default the cores are divided.")],
    "gpus": Annotated[float | None, typer.Option(min=0, help="GPUs per worker of Ray; 0.5 if two share one.")],
    "address": Annotated[str | None, typer.Option(help="Of a Ray cluster that runs; by default Ray starts here.")],
    "retries": Annotated[
        int | None, typer.Option(min=0, help="How often to run a method again after its worker died (2).")
    ],
    "shard": Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Only these prompts, as 0/3; auto/3: as SLURM or RANK says."),
    ],
}

with_worker_flags = with_flags(WORKER_FLAGS, "distribution")
"""Gives a command these flags; it gets those that were used as ``distribution``."""


def distribution_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags as arguments of `evaluate`."""
    from heta_lens.evaluation import Shard, Workers

    named = {"count" if name == "workers" else name: value for name, value in given.items() if name != "shard"}
    shard = Shard.read(given["shard"]) if "shard" in given else None
    workers = Workers(**named)
    if workers.here and "retries" in given:
        raise ValueError(f"--retries {workers.retries} is for several workers, of which one may die: give --workers")
    return {"workers": workers, "shard": shard}


def results_folder(out: Path, shard: "Shard | None") -> Path:
    """Where the results of this process are."""
    return out / shard.folder if shard else out


# ----------------------------------------------------------------------------------------------------- suite arguments
# The options of a suite, as commands are given them.


SOURCE = "A .jsonl, .json, .csv or .parquet file, hf:NAME of a data set, or a suite, such as recall."
OF_SUITE = "An option of the suite, like hops=2; may be repeated."
INSTEAD = {
    "name": "the suite is the first argument",
    **{name: f"use --{name}" for name in ("path", "split", "limit", "seed")},
    "says": "it is what the model of --model answers",
}


def suite_options(given: list[str]) -> dict[str, Any]:
    """``["hops=2"]`` as keywords; what the command has an option of its own for is refused."""
    from heta_lens._util.options import keywords

    options = keywords(given)
    for name, value in options.items():
        if name in INSTEAD:
            raise ValueError(f"-o {name}={value} is not an option of a suite: {INSTEAD[name]}")
    return options


# ---------------------------------------------------------------------------------------------------- method arguments
# Which methods explain: ``--method`` with ``--option``, or several methods with their options.


METHOD = "fast, careful or any of heta-lens methods (heta); several with commas or repeated, as 'lime samples=99'."
OPTIONS = "An option of the one method, like probes=20; may be repeated."
METHOD_FLAGS: dict[str, Any] = {
    "method": Annotated[list[str] | None, typer.Option("--method", "-m", metavar="METHOD", help=METHOD)],
    "option": Annotated[list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help=OPTIONS)],
}
"""What methods are chosen by."""

with_method_flags = with_flags(METHOD_FLAGS, "method_flags")
"""Gives a command these flags; it gets those that were used as ``method_flags``, for `methods_of`."""

ONE = "One method, as heta-lens methods lists them (heta), with options as 'lime samples=99'; or a preset."
one = {"method": Annotated[list[str] | None, typer.Option("--method", "-m", metavar="METHOD", help=ONE)]}
with_one_method_flag = with_flags({**METHOD_FLAGS, **one}, "method_flags")
"""The same, for a command that takes one method."""


def methods_of(method_flags: Mapping[str, Any]) -> "dict[str, Method]":
    """The methods by label, with their options, checked before a model is loaded."""
    options, names = method_flags.get("option", []), listed(method_flags.get("method"), [])
    if options and len(names) > 1:
        way = f"write it behind its method, -m '{names[0]} {options[0]}'"
        raise ValueError(f"--option {options[0]} is of one method, and there are {len(names)}: {way}")
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the method {twice} is given twice: give it once, or with other options")
    methods = {label: _without_bars(_named(label, options)) for label in names or ["heta"]}
    for first, second in combinations(methods, 2):
        if _same(methods[first], methods[second]):
            raise ValueError(f"{first} and {second} are the same method: give one of them, or other options")
    return methods


def _same(first: "Method", second: "Method") -> bool:
    """Whether they are one method with the same options: methods are compared by identity otherwise."""
    from heta_lens._util.options import settings

    return type(first) is type(second) and settings(first) == settings(second)


def _named(label: str, options: Sequence[str]) -> "Method":
    """``"lime"`` with these options, or ``"lime samples=200"`` with its own ones too; or a preset by its name."""
    from heta_lens.api import method_of

    try:
        name, *own = shlex.split(label)
    except ValueError as error:
        raise ValueError(f"--method {label} is no method and its options ({error}): write 'lime samples=200'") from None
    return method_of(name, method_options([*own, *options]))


def _without_bars(method: "Method") -> "Method":
    return method if bars() is None else replace(method, progress=bars())


def method_options(given: Sequence[str]) -> dict[str, Any]:
    """``["probes=20", "support=row"]`` as keywords."""
    from heta_lens._util.options import keywords

    options = keywords(given)
    for name in options:
        if name in ("cache", "target", "tokens", "method"):
            raise ValueError(f"--option {name}=… is not an option of a method: the text, --target and --method say it")
    return options


# ---------------------------------------------------------------------------------------------------- prompt arguments
# Which prompt a command is given: a text, a question with or without a system prompt, or a file of chat messages.


Prompt: TypeAlias = str | list[Mapping[str, Any]]  # a text, or the messages of a chat

TEXT = "The prompt, up to where the model goes on; - reads it from the input, as does a pipe without TEXT."
CHAT = "A chat instead of a text: a JSON file, a list of messages with role and content; - reads it from the input."
USER = "A chat instead of a text: the message that the model answers."
PROMPT_FLAGS: dict[str, Any] = {
    "text": Annotated[str | None, typer.Argument(help=TEXT)],
    "file": Annotated[Path | None, typer.Option("--file", metavar="FILE", help="A file that has the text.")],
    "chat": Annotated[Path | None, typer.Option("--chat", metavar="FILE", help=CHAT)],
    "system": Annotated[str | None, typer.Option(help="The system prompt of a chat; goes with --user.")],
    "user": Annotated[str | None, typer.Option(help=USER)],
}
"""What a prompt is given by."""

with_prompt_flags = with_flags(PROMPT_FLAGS, "prompt_flags")
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
    from heta_lens._util.files import read_text

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
    from heta_lens._util.files import NotJSON, decoded, parse_json, read_text
    from heta_lens.model.tokenizer import checked_messages

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


# ------------------------------------------------------------------------------------------------------ failed prompts
# What is said of prompts that methods failed on, or did not apply to.


def print_failures(folder: Path, nothing: str = "no metric has a value of any prompt") -> None:
    """Nobody should have to open a report to see that there is nothing in it; ``nothing`` says so."""
    from heta_lens.evaluation.run_folder import read_records

    records = read_records(folder)
    reasons = {}
    for what in ("failed", "skipped"):
        of_records = [(record, getattr(record, what)) for record in records if getattr(record, what)]
        add(**{what: [{"prompt": r.instance, "method": r.method, "reason": why} for r, why in of_records]})
        reasons[what] = Counter(why for _, why in of_records)
    if not records:
        return  # of a shard without prompts
    empty = all(record.failed or record.skipped or _without_values(record) for record in records)
    for what, by in reasons.items():
        for reason, count in by.most_common(1):
            say(f"{by.total()} of {len(records)} {what}, most often ({count}) by: {reason}", err=True)
    if empty:
        why = (
            ""
            if any(reasons.values())
            else f": {next((why for record in records for why in record.reasons.values()), '')}"
        )
        add(error=f"{nothing}{why}")
        say(f"{nothing}{why}", err=True)
        raise typer.Exit(1)


def _without_values(record: "Record") -> bool:
    """Whether metrics were computed, and none has a value."""
    return bool(record.values) and not any(value is not None for value in record.values.values())
