"""All code on the pages runs: Python blocks of a page from top to bottom, and every command, on stand-ins.

Hubs cannot be reached in tests, so that local models and small files stand for what pages name, few prompts for many,
and one metric for all. Pages whose outputs are tested too have tests of their own.
"""

import json
import re
import shlex
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import heta_lens
from helpers import ROOT, chats
from helpers.asking import doubts_allowed
from helpers.gguf_files import small_llama, write_gguf
from heta_lens.cli import app
from heta_lens.data import recall
from heta_lens.data.suites import suite

ELSEWHERE = {
    "five_minutes": "test_readme.py", "components": "test_readme.py", "Through the model's own reasoning": "test_reasoning_page.py",
    "extending": "test_extending.py", "A Ray cluster": "tests/whole/test_ray_evaluation.py",
}  # fmt: skip
OF_PARTS = ("models", "workers", "evaluation")  # pages whose parts stand alone


def parts() -> Iterator[tuple[str, str]]:
    """The pages that are run here, or their parts, each with its text."""
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if page.stem in OF_PARTS:
            yield from re.findall(r"^## (.*)\n((?s:.*?))(?=^## |\Z)", text, re.MULTILINE)
        else:
            yield page.stem, text


PAGES = {name: text for name, text in parts() if name not in ELSEWHERE}
STAND_INS = {
    " Paris": " jar", '"gpt2"': '"demo"', "--model gpt2": "--model demo", "--model NAME": "--model chat",
    "Qwen/Qwen2.5-3B-Instruct": "chat", '"folder"': '"chat"', "path/to/a/smaller/model": "demo",
    " --quantization-config 8bit": "", "The capital of France is": "The key is in the",
    "hf:NAME --split validation": "recall", "Workers(4)": "Workers(1)", "--workers 4": "--workers 1",
}  # fmt: skip
NOT_RUN = {
    "curated --path heta_qa_dataset_2000.json": "released with the paper",
    "longra --path": "released by its authors",
    "--scores inseq.json": "saved by another library; see test_external_scores.py",
    "merge all results-a": "of another evaluation",
    "auto/16": "in an array of jobs",
    "heta-lens app": "until Ctrl-C; see tests/web",
}
CODE = re.compile(r"^```(python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def code(page: str, kind: str) -> list[str]:
    found = [block for language, block in CODE.findall(PAGES[page]) if language == kind]
    return [replaced(block) for block in found]


def replaced(block: str) -> str:
    for name, stand_in in STAND_INS.items():
        block = block.replace(name, stand_in)
    return re.sub(r"(--limit |limit=|facts=)\d+", r"\g<1>2", block)


def commands(page: str) -> Iterator[str]:
    lines = [line for block in code(page, "sh") for line in block.splitlines() if line.startswith("heta-lens ")]
    for line in lines:
        if not any(part in line for part in NOT_RUN):
            few = {"--metrics": "morf", "--limit": "2"} if line.startswith("heta-lens evaluate ") else {}
            more = [f" {flag} {value}" for flag, value in few.items() if flag not in line]
            yield line.partition(" | ")[0] + "".join(more)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that pages name, and models that are loaded by the names that stand for theirs."""
    stories = [story for story, _ in zip(recall.stories("test", facts=2), range(2), strict=False)]
    records = "".join(
        json.dumps({"id": str(number), "text": story.text, "answer": story.answer}) + "\n"
        for number, story in enumerate(stories)
    )
    for name in ("prompts.jsonl", "mine.jsonl"):
        (tmp_path / name).write_text(records, encoding="utf-8")
    rows = [f'"{story.text}","{story.answer}"' for story in stories]
    for name, heads in {"questions.csv": "question,label", "prompts.csv": "text,answer"}.items():
        (tmp_path / name).write_text("\n".join([heads, *rows]) + "\n", encoding="utf-8")
    (tmp_path / "messages.json").write_text(json.dumps([{"role": "user", "content": "Where?"}]), encoding="utf-8")
    (tmp_path / "models" / "gguf").mkdir(parents=True)
    write_gguf(small_llama(), tmp_path / "models" / "gguf" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    load = heta_lens.load_model
    stand_in = lambda name, **options: chats.bridge() if name == "chat" else load(name, **options)  # noqa: E731
    for place in ("heta_lens.load_model", "heta_lens.model.loading.load_model"):
        monkeypatch.setattr(place, stand_in)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names() -> dict[str, Any]:
    """What pages take as given: a model, a prompt's tokens and their cache."""
    model = heta_lens.load_demo_model()
    tokens = model.to_tokens(next(recall.stories("test", facts=2)).text)
    _, cache = model.run_with_cache(tokens)
    known = {"model": model, "tokens": tokens, "cache": cache, "attribute": heta_lens.attribute}
    return {"heta_lens": heta_lens, "torch": torch, **known}


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked", "folder")
@pytest.mark.parametrize("page", [page for page in PAGES if code(page, "python")])
def test_python_runs_from_top_to_bottom(page: str) -> None:
    known = names()
    if page == "Chats":
        known["model"] = chats.bridge()
    if page == "Many prompts":
        Path("scores.parquet").write_bytes(parquet())
    if page == "Evaluating methods":
        heta_lens.evaluation.evaluate("demo", suite("recall", limit=2), ["recency"], ["morf"], "results")
    with doubts_allowed():
        for block, number in zip(code(page, "python"), count(), strict=False):
            exec(compile(block, f"{page}, block {number}", "exec"), known)


@pytest.mark.nightly
@pytest.mark.usefixtures("unchecked", "folder")
@pytest.mark.parametrize("page", [page for page in PAGES if [*commands(page)]])
def test_every_command_runs(page: str) -> None:
    for command in commands(page):
        with doubts_allowed():
            done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, f"{command}: {done.output}"


def parquet() -> bytes:
    """What the command before it writes there."""
    scores = heta_lens.attribute_dataset("demo", "recall", ["recency"], out="kept", limit=2)
    scores.save("kept.parquet")
    return Path("kept.parquet").read_bytes()


def test_code_is_marked_as_what_it_is() -> None:
    for name, text in PAGES.items():
        plain = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        assert not re.search(r"^    (heta-lens |import |from heta_lens|heta_lens\.)", plain, re.MULTILINE), name


@pytest.mark.parametrize("part", [*NOT_RUN, *STAND_INS])
def test_what_is_not_run_or_replaced_is_still_on_a_page(part: str) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    assert part in pages
