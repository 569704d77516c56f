"""``heta-lens estimate`` prints a table of memory, and refuses in one line what it cannot read."""

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig
from typer.testing import CliRunner

from heta_lens.cli import app
from heta_lens.cli.attribute import bytes_of


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["estimate", *words], env={"COLUMNS": "120", "NO_COLOR": "1"})


@pytest.fixture
def folder(tmp_path: Path) -> str:
    LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=50,
        dtype="bfloat16",
    ).save_pretrained(tmp_path)
    return str(tmp_path)


def test_it_says_what_fits(folder: str) -> None:
    said = run("--config", folder, "--tokens", "20", "--gpu-memory", "8GB", "-o", "batch=2")
    assert said.exit_code == 0 and "bfloat16, 20 tokens; 8GB is 7.5 GiB. Predicted:" in said.output
    assert " yes " in said.output and "(2 at once)" in said.output
    assert re.search(r" yes +\d+ +161 ", said.output)  # runs: those that `estimate` counts, too


@pytest.mark.slow
def test_it_proposes_what_takes_less(folder: str) -> None:
    said = run("--config", folder, "--tokens", "20", "--gpu-memory", "0.01MB")
    assert said.exit_code == 0 and "variant='kl_only'" in said.output and " no" in said.output


@pytest.mark.usefixtures("unchecked")
def test_what_is_wrong_is_said_in_a_line(folder: str) -> None:
    for words, message in (
        (("--config", folder, "--tokens", "20", "--gpu-memory", "80"), "give a number and a unit"),
        (("--config", folder, "--tokens", "1", "--gpu-memory", "8GB"), "tokens=1 must be at least 2"),
        (("--config", folder + "/no", "--tokens", "9", "--gpu-memory", "8GB"), "no configuration"),
        (("--config", folder, "--tokens", "9", "--gpu-memory", "8GB", "-o", "variant=windy"), "variant='windy'"),
        (("--config", folder, "--tokens", "9", "--gpu-memory", "8GB", "-o", "config=x"), "no option 'config'"),
        (("--config", folder, "--tokens", "5000", "--gpu-memory", "8GB"), "tokens=5000: this model reads 2048 at most"),
    ):
        said = run(*words)
        assert said.exit_code == 2 and message in said.output and "Traceback" not in said.output


def test_sizes_have_units() -> None:
    assert [bytes_of(size) for size in ("80GB", "1.5 GiB", "2mb")] == [80 * 10**9, 3 * 2**29, 2 * 10**6]
