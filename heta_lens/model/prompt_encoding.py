"""A prompt's text as tokens, refused where the model has none for it or reads fewer; and the word it says next."""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from heta_lens.model.tokenizer import TokenizerWrapper


def encode(model: Any, text: str) -> Int[Tensor, "1 pos"]:
    """The tokens of a prompt; words that the tokenizer has no token for are refused by name."""
    check_text(text)
    ids = model.to_tokens(text, truncate=False)
    longest = model.cfg.n_ctx
    if ids.shape[1] > longest:
        raise ValueError(f"the text is {ids.shape[1]} tokens long, and this model reads {longest} at most")
    refuse_unknown(model, text)
    return ids


def check_text(text: str) -> None:
    """Refuse what no tokenizer reads."""
    if not text.strip():
        raise ValueError("the text is empty: give the prompt that the model is to continue")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the text is not valid UTF-8 at character {error.start}") from None


def refuse_unknown(model: Any, text: str) -> None:
    """Refuse words that the tokenizer has no token for, by name."""
    if unknown := unknown_words(model.tokenizer, text):
        known = f"it knows {len(model.tokenizer)}, each a word after a blank, or a mark like '.'"
        named = ", ".join(map(repr, unknown))
        raise ValueError(f"this model has no token for {named}: {known}; --model chooses one with a larger vocabulary")


@torch.no_grad()
def next_word(model: Any, text: str) -> str:
    """The model's most likely token after a text."""
    return model.tokenizer.decode([int(model(encode(model, text))[0, -1].argmax())])


def unknown_words(tokenizer: Any, text: str) -> list[str]:
    """The parts of the text for which the tokenizer has only its unknown token."""
    unknown = TokenizerWrapper(tokenizer).unknown
    if unknown is None:
        return []
    encoded = tokenizer(text, return_offsets_mapping=True)
    pairs = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    parts = [text[slice(*span)].strip() for token, span in pairs if token == unknown]
    return [part for part in dict.fromkeys(parts) if part]
