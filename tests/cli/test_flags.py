"""Flags that several commands share: models, workers, suites, methods and prompts."""

import inspect
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import heta_lens
from helpers.evaluating import run
from heta_lens.cli import app
from heta_lens.cli.flags import (
    LoadingFlags,
    MethodFlags,
    PromptFlags,
    listed,
)
from heta_lens.model import loading

# -------------------------------------------------------------------------------------------------- models and workers


def test_loading_flags_are_the_options_of_load_model() -> None:
    names = inspect.signature(heta_lens.load_model).parameters.keys() - {"model", "more"}
    assert LoadingFlags.__dataclass_fields__.keys() == names
    group: Any = get_command(app)
    for command in ("attribute", "evaluate", "reproduce"):
        flags = {option for parameter in group.commands[command].params for option in parameter.opts}
        assert {f"--{name.replace('_', '-')}" for name in names} <= flags


def test_loading_flags_reach_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[dict[str, Any]] = []
    demo = heta_lens.load_demo_model()
    monkeypatch.setattr(loading, "load_model", lambda _, **options: loads.append(options) or demo)
    flags = ["--dtype", "bfloat16", "--device-map", "auto", "--max-memory", '{"cpu": "8GB"}', "--trust-remote-code"]
    done = run("attribute", "Mia put the key in the", "--method", "random", *flags)
    assert done.exit_code == 0, done.output
    used = {"dtype": "bfloat16", "device_map": "auto", "max_memory": {"cpu": "8GB"}, "trust_remote_code": True}
    assert loads == [used]


# ------------------------------------------------------------------------------------------------------------- methods


def test_options_of_a_method_and_of_a_preset() -> None:
    (lime,) = MethodFlags(["lime samples=90"], ["penalty=2"]).methods().values()
    assert vars(lime)["samples"] == 90 and vars(lime)["penalty"] == 2
    ((label, method),) = MethodFlags(["careful"], ["mask=mean"]).methods().items()
    assert (label, method.name, vars(method)["mask"]) == ("careful", "heta", "mean")
    assert [method.name for method in MethodFlags(["careful,fast,heta"]).methods().values()] == [
        "heta",
        "attn_lrp",
        "heta",
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (MethodFlags(["loo,lime"], ["samples=3"]), "--option samples=3 is of one method, and there are 2"),
        (MethodFlags(["lime samples=90"], ["samples=91"]), "option 'samples' is given twice"),
        (MethodFlags(["lime 'samples"]), "No closing quotation"),
        (MethodFlags(["limes"]), "did you mean 'lime'"),
        (MethodFlags(None, ["tokens=3"]), "tokens"),
    ],
    ids=str,
)
def test_contradictory_methods_are_refused(flags: MethodFlags, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        flags.methods()


# ------------------------------------------------------------------------------------------------------------- prompts

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Ünd? 😀"}]


def give(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))


@pytest.mark.parametrize("text", ["-", None])
def test_a_text_comes_from_the_input(text: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, b"The cat\n")
    assert PromptFlags(text).read() == "The cat" and PromptFlags("A:\n").read() == "A:\n"
    give(monkeypatch, b" \n")
    with pytest.raises(ValueError, match="the text is empty"):
        PromptFlags(text).read()


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "bom"])
def test_a_file_holds_the_messages_of_a_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: bytes) -> None:
    raw = mark + json.dumps(CHAT, ensure_ascii=False).encode()
    (tmp_path / "chat.json").write_bytes(raw)
    assert PromptFlags(chat=tmp_path / "chat.json").read() == CHAT
    give(monkeypatch, raw)
    assert PromptFlags(chat=Path("-")).read() == CHAT


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (PromptFlags(), "the text is empty"),
        (PromptFlags(file=Path("/nowhere.txt")), "/nowhere.txt: there is no such file"),
        (PromptFlags(__file__), f"{__file__} is a file: --file {__file__} reads the prompt from it"),
        (PromptFlags("a", file=Path("b")), "there are 2 prompts, TEXT and --file"),
        (PromptFlags("a", chat=Path("b"), user="c"), "there are 3 prompts, TEXT and --chat and --user"),
        (PromptFlags(chat=Path("b"), system="x"), "--system goes with --user"),
        (PromptFlags("a", system="s"), "--system goes with --user"),
        (PromptFlags(chat=Path("/nowhere.json")), "/nowhere.json: there is no such file"),
    ],
    ids=str,
)
def test_contradictory_prompts_are_refused(flags: PromptFlags, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, b"")
    with pytest.raises((ValueError, OSError), match=message):
        flags.read()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'[{"role": "user",\n "content": }]', r"line 2, is not valid JSON: Expecting value at character 13"),
        (b"\xff[]", "line 1, is not UTF-8"),
        (b'{"role": "user"}', r"messages=\{'role': 'user'\}"),
        (b'[{"role": "user", "content": "a"}, {"role": "user", "content": 5}]', r"messages\[1\] has 5"),
    ],
    ids=str,
)
def test_a_file_of_anything_else_is_refused_by_its_place(
    raw: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chat.json").write_bytes(raw)
    with pytest.raises(ValueError, match=rf"chat.json(, |: ).*{message}|chat.json, {message}"):
        PromptFlags(chat=tmp_path / "chat.json").read()
    give(monkeypatch, raw)
    with pytest.raises(ValueError, match=rf"the input(, |: ).*{message}|the input, {message}"):
        PromptFlags(chat=Path("-")).read()


def test_methods_are_split_at_commas_outside_of_brackets_of_options() -> None:
    names = listed(["random,context_cite query=((0,5),(7,9)), GIM", "lime mask=[a,b],ig"], [])
    assert names == ["random", "context_cite query=((0,5),(7,9))", "GIM", "lime mask=[a,b]", "ig"]
    with pytest.raises(ValueError, match="'' names nothing: leave the option out"):
        listed([""], ["heta"])
