"""Options shared by subcommands: dataclasses whose fields are flags, and aliases of single options."""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from typer import Argument, Option

from heta_lens.cli.app import add, bars, note

if TYPE_CHECKING:
    from heta_lens import Method

MODELS = "demo (knows the words of its stories), a name on the Hugging Face hub, a folder, or a GGUF file."
RETRY = "Run again what raised an error or was not finite (by default it stays failed)."

Model = Annotated[str, Option(help=MODELS)]
Page = Annotated[Path | None, Option("--html", metavar="FILE", help="Also write a standalone HTML page.")]
Retry = Annotated[bool, Option("--retry-failed", help=RETRY)]
EXPORT = "Also write all scores, a row per token, to scores.csv, scores.jsonl or scores.parquet."
Export = Annotated[Literal["csv", "jsonl", "parquet"] | None, Option("--export", help=EXPORT)]
Source = Annotated[
    str,
    Argument(help="A .jsonl, .json, .csv or .parquet file, hf:NAME of a data set, or a suite, such as recall."),
]
Revision = Annotated[str | None, Option(help="A branch, tag or commit of the hub.")]
TrustRemoteCode = Annotated[bool, Option("--trust-remote-code", help="Run code that comes with it.")]

COMMA = re.compile(r",(?=\s*[A-Za-z_])(?![^(\[{]*[)\]}])")  # before a name, outside of an option's brackets


def given(**values: Any) -> dict[str, Any]:
    """Return the given values, without None and False."""
    return {name: value for name, value in values.items() if value is not None and value is not False}


def used(flags: Any) -> dict[str, Any]:
    """Return the given flags of a dataclass."""
    return given(**vars(flags))


def listed(names: Iterable[str] | None, default: list[str]) -> list[str]:
    """Return names given repeatedly or with commas; a comma in brackets belongs to an option."""
    parts = [part.strip() for entry in names or default for part in COMMA.split(entry)]
    if names and not any(parts):
        raise ValueError(f"{', '.join(map(repr, names))} names nothing: leave the option out, or give a name")
    return [*filter(None, parts)]


LIMIT = "How many prompts (recall, which has no end: 100; fit-at2: 300)."
OF_SUITE = "An option of the suite, like hops=2; may be repeated."


@dataclass(frozen=True)
class SuiteFlags:
    """The choice among the prompts of a source."""

    path: Annotated[Path | None, Option(help="The file that a suite is read from.")] = None
    split: Annotated[str | None, Option(help="Which part of a suite (test) or data set (train).")] = None
    limit: Annotated[int | None, Option(min=1, help=LIMIT)] = None
    seed: Annotated[int, Option(help="Which prompts are drawn.")] = 0
    option: Annotated[list[str] | None, Option("--option", "-o", metavar="NAME=VALUE", help=OF_SUITE)] = None

    def options(self) -> dict[str, Any]:
        """Return the options of the suite as keywords."""
        from heta_lens._util.options import keywords

        options = keywords(self.option or [])
        for name in options.keys() & vars(self).keys():
            raise ValueError(f"-o {name}={options[name]} is no option of a suite: give --{name} {options[name]}")
        return options


MAPS = {"device_map", "max_memory", "quantization_config"}
PLACES = {"device", "device_map", "n_devices", "max_memory"}


@dataclass(frozen=True)
class LoadingFlags:
    dtype: Annotated[str | None, Option(help="float32 (default on a CPU), bfloat16, float16 or float64.")] = None
    device: Annotated[str | None, Option(help="cpu, cuda, cuda:1 …; by default a GPU if there is one.")] = None
    device_map: Annotated[str | None, Option(metavar="MAP", help="Split the model: auto, balanced, or JSON.")] = None
    n_devices: Annotated[int | None, Option(min=1, help="Split it evenly over so many GPUs.")] = None
    max_memory: Annotated[str | None, Option(metavar="LIMITS", help="What each device may hold, as JSON.")] = None
    quantization_config: Annotated[
        str | None, Option(metavar="CONFIG", help="8bit or 4bit (bitsandbytes), or JSON as transformers has it.")
    ] = None
    gguf_file: Annotated[str | None, Option(metavar="NAME", help="The GGUF file in the folder --model.")] = None
    revision: Revision = None
    trust_remote_code: TrustRemoteCode = False

    def options(self) -> dict[str, Any]:
        """Return the given options for `load_model`, checked before a model is loaded."""
        from heta_lens.model.loading import boot_options, read_map

        options = {name: read_map(value) if name in MAPS else value for name, value in used(self).items()}
        boot_options(options)
        return options


def facts_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the loading options without devices, to identify an evaluation."""
    kept = {name: value for name, value in options.items() if name not in PLACES}
    return {"loading": kept} if kept else {}


@dataclass(frozen=True)
class WorkerFlags:
    engine: Annotated[str | None, Option(help="local: this machine (default); ray: a Ray cluster.")] = None
    workers: Annotated[int | None, Option(min=1, help="How many, each with a model of its own (1).")] = None
    threads: Annotated[int | None, Option(min=1, help="Threads per worker; by default the cores are divided.")] = None
    gpus: Annotated[float | None, Option(min=0, help="GPUs per worker of Ray; 0.5 if two share one.")] = None
    address: Annotated[str | None, Option(help="Of a Ray cluster; by default RAY_ADDRESS, or Ray starts here.")] = None
    shard: Annotated[
        str | None, Option(metavar="I/N", help="Only these prompts, as 0/3; auto/3: as SLURM or RANK says.")
    ] = None

    def options(self) -> dict[str, Any]:
        """Return the arguments ``workers`` and ``shard`` of `evaluate`."""
        from heta_lens.evaluation import Shard, Workers

        options = used(self)
        shard = options.pop("shard", None)
        workers = Workers(options.pop("workers", 1), **options)
        return {"workers": workers, "shard": None if shard is None else Shard.read(shard)}


def write_export(folder: Path, kind: str | None) -> None:
    add(exported=[])
    if kind is not None:
        from heta_lens import load_scores

        file = folder / f"scores.{kind}"
        load_scores(folder).save(file)
        add(exported=[file])
        note(file)


METHOD = "fast, careful or any of heta-lens methods (heta); several with commas or repeated, as 'lime samples=99'."
OPTIONS = "An option of the one method, like probes=20; may be repeated."


@dataclass(frozen=True)
class MethodFlags:
    method: Annotated[list[str] | None, Option("--method", "-m", metavar="METHOD", help=METHOD)] = None
    option: Annotated[list[str] | None, Option("--option", "-o", metavar="NAME=VALUE", help=OPTIONS)] = None

    def methods(self) -> "dict[str, Method]":
        """Return the methods by label, with options, checked before a model is loaded."""
        options, names = self.option or [], listed(self.method, ["heta"])
        if options and len(names) > 1:
            way = f"write it behind its method, -m '{names[0]} {options[0]}'"
            raise ValueError(f"--option {options[0]} is of one method, and there are {len(names)}: {way}")
        return {label: _method(label, options) for label in names}

    def one(self) -> "tuple[str, Method]":
        """Return the label and the method, for commands of a single method."""
        (chosen, *more) = self.methods().items()
        if more:
            raise ValueError(f"this command takes one method, and --method names {1 + len(more)}: give one")
        return chosen


def _method(label: str, options: list[str]) -> "Method":
    """Return the method or preset of ``"lime"`` or ``"lime samples=200"``, with more options."""
    from heta_lens._util.options import keywords
    from heta_lens.methods.registry import method_of

    name, *written = shlex.split(label)
    method = method_of(name, keywords([*written, *options]))
    return method if bars() is None else replace(method, progress=bars())


Prompt: TypeAlias = str | list[Mapping[str, Any]]
"""A text, or the messages of a chat."""

TEXT = "The prompt, up to where the model goes on; - reads it from the input, as does a pipe without TEXT."
CHAT = "A chat instead of a text: a JSON file, a list of messages with role and content; - reads it from the input."
USER = "A chat instead of a text: the message that the model answers."


@dataclass(frozen=True)
class PromptFlags:
    """A prompt: a text, a question with or without a system prompt, or a file of chat messages."""

    text: Annotated[str | None, Argument(help=TEXT)] = None
    file: Annotated[Path | None, Option("--file", metavar="FILE", help="A file that has the text.")] = None
    chat: Annotated[Path | None, Option("--chat", metavar="FILE", help=CHAT)] = None
    system: Annotated[str | None, Option(help="The system prompt of a chat; goes with --user.")] = None
    user: Annotated[str | None, Option(help=USER)] = None

    def read(self) -> Prompt:
        """Return the prompt; refuse contradictory flags before a file is read."""
        prompts = {"TEXT": self.text, "--chat": self.chat, "--user": self.user, "--file": self.file}
        names = [name for name, value in prompts.items() if value is not None]
        if len(names) > 1:
            raise ValueError(f"there are {len(names)} prompts, {' and '.join(names)}: give one of them")
        if self.system is not None and self.user is None:
            raise ValueError("--system goes with --user, which is the message that the model answers: give that too")
        if self.chat is not None:
            return _messages(self.chat)
        if self.user is not None:
            system = [] if self.system is None else [{"role": "system", "content": self.system}]
            return [*system, {"role": "user", "content": self.user}]
        text = self._text()
        if not text.strip():
            raise ValueError("the text is empty: give the prompt that the model is to continue")
        return text

    def _text(self) -> str:
        from heta_lens._util.files import decoded, read_text

        if self.file is not None:
            return _without_end(read_text(self.file, f"--file {self.file}: there is no such file"))
        if self.text is None and (sys.stdin is None or sys.stdin.isatty()):
            raise ValueError("there is no prompt: give a TEXT, or --file, --user, or --chat with a file of messages")
        if self.text in (None, "-"):
            return _without_end(decoded(sys.stdin.buffer.read(), "the input"))
        if os.path.isfile(self.text):
            raise ValueError(f"{self.text} is a file: --file {self.text} reads the prompt from it")
        return self.text


def _without_end(text: str) -> str:
    """Return a file's text without its last line end, which editors and commands write."""
    return text.removesuffix("\n").removesuffix("\r")


def with_text(prompt: Prompt, text: str) -> Prompt:
    """Return the prompt with another text, or the chat with another last message."""
    return text if isinstance(prompt, str) else [*prompt[:-1], {**prompt[-1], "content": text}]


def _messages(path: Path) -> list[Mapping[str, Any]]:
    """Return the messages of a JSON file, or of the input for ``-``; an error names the place."""
    from heta_lens._util.files import decoded, invalid_json, read_text
    from heta_lens.model.tokenizer import checked_messages

    stdin = str(path) == "-"
    name = "the input" if stdin else str(path)
    text = decoded(sys.stdin.buffer.read(), name) if stdin else read_text(path, f"--chat {path}: there is no such file")
    try:
        return checked_messages(json.loads(text))
    except json.JSONDecodeError as error:
        raise invalid_json(name, error) from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None
