"""Padding: found, named and never run."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens import ActivationCache

from helpers import zoo
from helpers.asking import cache_of
from helpers.batches import CHEAP, LENGTHS, PAD, Batch, padded, prompts, run
from helpers.comparing import alike
from heta_lens import attribute, attribute_batch
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.tokenizer import TokenizerWrapper

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*has no effect with:UserWarning"),
]
SIDES = ("left", "right")


@pytest.fixture
def model() -> Any:
    return zoo.bridge("llama", torch.float32)


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize(
    "as_mask",
    [
        Tensor.tolist,
        Tensor.numpy,
        Tensor.float,
        Tensor.int,
        Tensor.bool,
        partial(Tensor.to, dtype=torch.uint8),
        partial(Tensor.to, dtype=torch.bfloat16),
    ],
    ids=["list", "numpy", "float", "int", "bool", "uint8", "bfloat16"],
)
def test_a_mask_may_be_any_table_of_noughts_and_ones(model: Any, as_mask: Callable[[Tensor], Any]) -> None:
    batch = Batch(model, "left")
    found = batch.explain(attention_mask=as_mask(batch.mask))
    assert [len(one) for one in found] == list(LENGTHS)


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("side", "edge"), [("left", "begins"), ("right", "ends")])
@pytest.mark.usefixtures("unchecked")
def test_padding_that_no_mask_tells_of_is_noticed(
    model: Any, side: str, edge: str, masked: bool, tokens: bool, forwards: Any
) -> None:
    rows, mask = padded(prompts(model, (8, 5)), side)
    cache = run(model, rows, mask if masked else None)
    runs = forwards(model)
    with pytest.raises(ValueError, match=rf"^prompt 1 .* {edge} with the padding token {PAD}: pass attention_mask="):
        attribute_batch(cache, tokens=rows if tokens else None)
    assert runs == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[1, 5, 6, 7], [1, 8, 9, 5]], ""),  # a beginning of text
        ([[1, 5, 1, 1], [1, 8, 9, 1]], "prompt 0 of the batch ends"),
        ([[1, 5, 6, 7], [1, 1, 8, 9]], "prompt 1 of the batch begins"),
        ([[5, 6, 7, 8], [5, 1, 1, 8]], ""),  # neither end
    ],
)
@pytest.mark.parametrize("build", zoo.models("bridge-gpt2|hooked-gpt2"))
def test_a_beginning_of_text_that_is_also_padding_is_taken_for_a_token(
    build: Any, rows: list[list[int]], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(torch.float32)
    monkeypatch.setattr(TokenizerWrapper, "pad", 1)
    monkeypatch.setattr(TokenizerWrapper, "bos", 1)
    ids = torch.tensor(rows)
    cache = run(model, ids, torch.ones_like(ids))
    if words:
        with pytest.raises(ValueError, match=words):
            attribute_batch(cache, **CHEAP)
    for number, one in enumerate(attribute_batch(cache, attention_mask=torch.ones_like(ids), **CHEAP)):
        alike(one, attribute(cache_of(model, ids[number : number + 1]), tokens=ids[number], **CHEAP))
    if not words:
        assert [len(one) for one in attribute_batch(cache, **CHEAP)] == [4, 4]


def test_what_a_beginning_of_text_is_is_read_off_the_tokenizer() -> None:
    tokenizer = zoo.tokenizer()
    assert (TokenizerWrapper(tokenizer).pad, TokenizerWrapper(tokenizer).bos) == (
        tokenizer.pad_token_id,
        tokenizer.bos_token_id,
    )
    assert (TokenizerWrapper(None).pad, TokenizerWrapper(None).bos) == (None, None)


def test_padding_inside_a_prompt_is_a_token_like_any_other(model: Any) -> None:
    ids = zoo.prompt(model, 6).repeat(2, 1)
    ids[1, 3] = PAD
    found = attribute_batch(run(model, ids), **CHEAP)
    assert [len(one) for one in found] == [6, 6]
    assert found[1].tokens[3] == model.tokenizer.decode([PAD])


def test_a_mask_of_ones_lets_a_prompt_end_with_padding(model: Any) -> None:
    ids = zoo.prompt(model, 6).repeat(2, 1)
    ids[:, -1] = PAD
    found = attribute_batch(run(model, ids), attention_mask=torch.ones(2, 6), **CHEAP)
    assert found[0].tokens[-1] == model.tokenizer.decode([PAD])


def test_values_at_padding_are_nobodys_business(model: Any) -> None:
    batch = Batch(model)
    hidden = batch.mask == 0
    spoiled = {name: activation.clone() for name, activation in batch.cache.cache_dict.items()}
    for name, activation in spoiled.items():
        if name.endswith("pattern"):
            activation.masked_fill_(hidden[:, None, :, None], torch.nan)
        else:
            activation[hidden] = torch.nan
    cache = ActivationCache(spoiled, model)
    found = attribute_batch(cache, tokens=batch.rows, attention_mask=batch.mask, **CHEAP)
    for one, expected in zip(found, batch.explain(), strict=True):
        assert torch.equal(one.scores, expected.scores)


@pytest.mark.parametrize("side", SIDES)
def test_a_mask_that_is_not_that_of_the_run_is_noticed(model: Any, side: str) -> None:
    rows, mask = padded(prompts(model, (8, 5)), side)
    with pytest.raises(ValueError, match=r"^prompt 1 .*not what the cache holds.*attention_mask"):
        attribute_batch(run(model, rows, mask), attention_mask=torch.ones_like(mask), tokens=rows, **CHEAP)


def test_padding_is_never_run(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, seen = Batch(model, "left"), []
    run_adapter = ModelAdapter.run
    monkeypatch.setattr(
        ModelAdapter,
        "run",
        lambda adapter, ids, *given, **how: seen.append(ids) or run_adapter(adapter, ids, *given, **how),
    )
    batch.explain()
    assert seen
    assert not any((ids == PAD).any() for ids in seen)
