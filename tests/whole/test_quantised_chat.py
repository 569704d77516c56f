"""From a folder with a chat model in 8 bits to a picture of which message mattered: in six lines, or one command."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

import heta_lens
from helpers import chats
from helpers.browser import values
from heta_lens.attribution import TEMPLATE
from heta_lens.cli import app

MESSAGES = [
    {"role": "system", "content": "Answer in one word."},
    {"role": "user", "content": "I live in Paris. Where do I live?"},
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a model hub has it: weights in 8 bits with their scales, a tokenizer and a chat template."""
    pytest.importorskip("bitsandbytes")
    plain, saved = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("int8")
    tokenizer = chats.tokenizer("qwen2.5")
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(plain)
    config = BitsAndBytesConfig(load_in_8bit=True)
    AutoModelForCausalLM.from_pretrained(plain, quantization_config=config, device_map="cpu").save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    return saved


@pytest.mark.thorough
def test_in_six_lines(folder: Path, tmp_path: Path) -> None:
    model = heta_lens.load_model(folder)
    chat = heta_lens.chat(model, MESSAGES)
    _, cache = model.run_with_cache(chat.tokens, names_filter=heta_lens.names_filter)
    attribution = heta_lens.attribute(cache, tokens=chat)
    attribution.plot().save(tmp_path / "messages.html")
    assert attribution.options["model"]["quantised"]
    assert [message.role for message in attribution.by_message()] == ["system", "user", TEMPLATE]
    view = attribution.plot()
    assert (tmp_path / "messages.html").read_text(encoding="utf-8") == view.page
    assert sum(values(view)["score"]) == pytest.approx(sum(message.score for message in attribution.by_message()))


def test_in_one_command(folder: Path, tmp_path: Path) -> None:
    messages, page = tmp_path / "messages.json", tmp_path / "page.html"
    messages.write_text(json.dumps(MESSAGES))
    command = ["attribute", "--model", str(folder), "--chat", str(messages), "--html", str(page), "-o", "probes=2"]
    run = CliRunner().invoke(app, command)
    assert run.exit_code == 0, run.output
    for content in (message["content"] for message in MESSAGES):
        assert f"'{content}'" in run.stdout
    assert "system" in page.read_text() and "template" in run.stdout
