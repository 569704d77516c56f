"""Real models, made from GGUF files by `make real-models`, write what llama.cpp writes from the same files.

llama.cpp rounds activations to 8 bits before it multiplies them by quantised weights. It then decides otherwise only
where two tokens are nearly as likely; with the weights in float32 it rounds nothing.
"""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from benchmarks.real_models import MODELS, PACKAGED
from helpers.oracles_llama_cpp import PROMPTS, SAVED, STEPS

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("unchecked")]
CASES = json.loads(SAVED.read_text(encoding="utf-8"))
each_model = pytest.mark.parametrize("packaged", PACKAGED, ids=lambda packaged: packaged.name)


def cases(packaged: Any, way: str) -> Iterator[tuple[str, list[int], dict[str, Any]]]:
    """Yield every prompt with its ids and what llama.cpp wrote."""
    file = CASES[packaged.file]
    return zip(PROMPTS, file["ids"], file[way], strict=True)


@cache
def loaded(name: str) -> Any:
    if not (MODELS / name).exists():
        pytest.skip("make real-models makes it")
    return heta_lens.load_model(MODELS / name)


@cache
@torch.no_grad()
def log_probs(name: str, ids: tuple[int, ...], written: tuple[int, ...]) -> Tensor:
    """The log-probabilities with which the model goes on, after the prompt and after each token that is written."""
    logits = loaded(name)(torch.tensor([ids + written[:-1]]))
    return logits[0, len(ids) - 1 :].log_softmax(-1)


@each_model
def test_tokens_are_the_same(packaged: Any) -> None:
    tokenizer = loaded(packaged.name).tokenizer
    starts = [] if packaged.name.startswith("SmolLM2") else [tokenizer.bos_token_id]
    for prompt, ids in zip(PROMPTS, CASES[packaged.file]["ids"], strict=True):
        assert starts + tokenizer.encode(prompt, add_special_tokens=False) == ids, prompt


@each_model
def test_greedy_continuations_are_the_same(packaged: Any) -> None:
    assert max(map(len, CASES[packaged.file]["ids"])) > 512  # the local window of Gemma 3
    for prompt, ids, case in cases(packaged, "float32"):
        ours = log_probs(packaged.name, tuple(ids), tuple(case["written"]))
        assert len(case["written"]) == STEPS
        assert ours.argmax(-1).tolist() == case["written"], prompt
        picked = ours[range(STEPS), case["written"]]
        torch.testing.assert_close(picked, torch.tensor(case["log_probs"]), atol=0.01, rtol=0)


@each_model
def test_quantised_weights_are_read_as_llama_cpp_reads_them(packaged: Any) -> None:
    errors = []
    for prompt, ids, case in cases(packaged, "quantised"):
        ours = log_probs(packaged.name, tuple(ids), tuple(case["written"]))
        margins = torch.tensor(case["margins"])
        same = ours.argmax(-1) == torch.tensor(case["written"])
        assert same[margins > 0.2].all(), prompt
        errors.append((ours[range(STEPS), case["written"]] - torch.tensor(case["log_probs"])).abs())
    assert torch.cat(errors).mean() < 0.06


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct"])
def test_chats_use_the_template_of_the_file(name: str) -> None:
    chat = heta_lens.chat(loaded(name), [{"role": "user", "content": "The capital of France?"}])
    assert chat.text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert chat.text.endswith("<|im_end|>\n<|im_start|>assistant\n")
