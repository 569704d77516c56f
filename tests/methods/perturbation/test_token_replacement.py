"""Tokens that may replace others: of the same kind, or as a language model expects them."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from helpers import zoo
from helpers.asking import predict
from helpers.replacements import TARGET, N, plain_logits
from heta_lens.methods.reagent import MaskedLM, Reagent, drawn, kind, language_model, replaced, unigram

ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))
pytestmark = pytest.mark.filterwarnings("ignore:none of . probes found .* tokens that suffice:UserWarning")


@pytest.mark.usefixtures("unchecked")
def test_a_replacer_is_one_of_ours_or_a_function() -> None:
    for wrong in ("bert", 3):
        with pytest.raises(ValueError, match=f"replacer={wrong!r} is not one of unigram, lm, nor a function"):
            Reagent(replacer=wrong)


@ONE_EACH
def test_any_token_of_the_same_kind_may_replace_one(build: Callable[..., Any]) -> None:
    model = build()
    tokenizer = model.tokenizer
    asked = predict(model, zoo.prompt(model, N), TARGET)
    replacer, generator = unigram(asked), np.random.default_rng(0)
    for text in (" cat", "at", ",", " "):
        (token,) = tokenizer.encode(text, add_special_tokens=False)
        many = torch.full((500,), token)
        written = {tokenizer.decode([other]) for other in replacer(many, torch.arange(500), generator).tolist()}
        every = [tokenizer.decode([other]) for other in range(4, model.cfg.d_vocab)]
        assert written == {other for other in every if kind(other) == kind(text)}, text
    begins = torch.full((1500,), tokenizer.bos_token_id)
    found = Counter(replacer(begins, torch.arange(1500), generator).tolist())
    assert sorted(found) == list(range(4, model.cfg.d_vocab)) and max(found.values()) < 50


def test_kinds_of_tokens() -> None:
    kinds = {"cat": "letters", " cat": "led letters", "don't": "letters", "42": "digits", " 4": "led digits"}
    kinds |= {"4th": "letters", "?!": "signs", " (": "led signs", "\n": "space", "": ""}
    assert {piece: kind(piece) for piece in kinds} == kinds


def test_without_a_tokenizer_any_token_may_replace_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("gpt2")
    monkeypatch.setattr(model, "tokenizer", None)
    asked = predict(model, zoo.prompt(model, N), TARGET)
    found = unigram(asked)(torch.full((1500,), 9), torch.arange(1500), np.random.default_rng(0))
    assert set(found.tolist()) == set(range(model.cfg.d_vocab))


@ONE_EACH
def test_the_model_itself_draws_what_it_expects(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    asked = predict(model, ids, TARGET)
    expected = plain_logits(model, ids).softmax(-1)
    replacer, generator = language_model(asked), np.random.default_rng(0)
    found = torch.stack([replacer(asked.ids, torch.tensor([0, 2, 5]), generator) for _ in range(1000)])
    for column, place in ((1, 2), (2, 5)):
        shares = torch.bincount(found[:, column], minlength=model.cfg.d_vocab) / 1000
        assert (shares - expected[place - 1]).abs().max() < 0.06
    assert found[:, 0].min() >= 4 and len(found[:, 0].unique()) > 60
    assert drawn(torch.tensor([[0.0, 50.0, 0.0]]), generator).tolist() == [1]


def test_what_is_replaced_is_only_what_was_asked() -> None:
    ids, generator = torch.arange(5), np.random.default_rng(0)
    fixed = replaced(ids, torch.tensor([1, 3]), lambda ids, at, generator: [7, 8], generator, 90)  # noqa: ARG005
    assert fixed.tolist() == [0, 7, 2, 8, 4] and ids.tolist() == [0, 1, 2, 3, 4]
    never = replaced(ids, torch.tensor([], dtype=torch.long), lambda *_: 1 / 0, generator, 90)
    assert never.tolist() == ids.tolist()


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "dog", "tower", "the", "paris", "##s", "zebra", "."]


def bert() -> tuple[Any, Any]:
    """A tiny one that fills every mask with nearly the same: words are as likely as its output bias says."""
    wordpiece = Tokenizer(models.WordPiece({word: token for token, word in enumerate(WORDS)}, unk_token="[UNK]"))
    wordpiece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=wordpiece, model_max_length=20,
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
    )  # fmt: skip
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=20,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        return transformers.BertForMaskedLM(config).eval(), tokenizer


@ONE_EACH
def test_a_masked_language_model_fills_in(build: Callable[..., Any]) -> None:
    model = build()
    own, (masked, tokenizer) = model.tokenizer, bert()
    ids = torch.tensor([own.bos_token_id, *own.encode("The cat dog tower", add_special_tokens=False)])
    assert [own.decode([token]) for token in ids.tolist()][-3:] == [" cat", " dog", " tower"]
    replacer, seen = MaskedLM(masked, tokenizer, own), []
    masked.register_forward_pre_hook(
        lambda _, __, given: seen.append(tokenizer.decode(given["input_ids"][0])), with_kwargs=True
    )

    def only(word: str) -> list[str]:
        masked.cls.predictions.bias.data = torch.tensor([80.0 * (one == word) for one in WORDS])
        places = torch.tensor([len(ids) - 3, len(ids) - 1])
        return [own.decode([token]) for token in replacer(ids, places, np.random.default_rng(0)).tolist()]

    assert only("dog") == [" dog", " dog"]
    assert only("##s") == ["s", "s"]
    assert seen[0].lower().endswith("[mask] dog [mask]") and "<bos>" not in seen[0]
    masked.cls.predictions.bias.data = torch.tensor([80.0 * word.startswith("[") for word in WORDS])
    found = [int(replacer(ids, torch.tensor([2]), np.random.default_rng(seed))[0]) for seed in range(30)]
    assert len(set(found)) > 3 and not set(found) & set(own.all_special_ids)
    assert found == [int(replacer(ids, torch.tensor([2]), np.random.default_rng(seed))[0]) for seed in range(30)]
    asked = predict(model, ids[None], TARGET)
    assert Reagent(replacer=replacer, probes=2, max_steps=2, top=2)(asked).scores.isfinite().all()
    with pytest.raises(ValueError, match="the masked language model is in training mode"):
        MaskedLM(masked.train(), tokenizer, own)
    masked.eval()
    with pytest.raises(ValueError, match=r"reads 22 of 22 masks in \d+ tokens, of which it takes 20"):
        replacer(ids[-1:].repeat(22), torch.arange(22), np.random.default_rng(0))
