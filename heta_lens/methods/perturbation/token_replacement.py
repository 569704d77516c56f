"""What may stand where a token is taken out: any of its kind, what a language model expects, or a masked one."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.text_spans import Span
from heta_lens.model.token_matching import appended
from heta_lens.model.tokenizer import locate
from heta_lens.prediction.prediction import Prediction

END = Span(-1, -1)  # what follows the last token

Replacer: TypeAlias = Callable[[Tensor, Tensor, np.random.Generator], Tensor]
"""Of a context's ids, some of its positions and a source of chance: the ids that go to these positions."""


def check_replacer(name: str, value: Any) -> None:
    if not (callable(value) or (isinstance(value, str) and value in REPLACERS)):
        raise ValueError(
            f"{name}={value!r} is not one of {', '.join(REPLACERS)}, nor a function (ids, positions, generator) -> ids"
        )


def replaced(
    ids: Int[Tensor, "pos"],
    positions: Int[Tensor, "place"],
    replacer: Replacer,
    generator: np.random.Generator,
    size: int,
) -> Int[Tensor, "pos"]:
    """The context with other tokens, of ``size`` there are, at some positions."""
    result = ids.clone()
    if len(positions):
        returned = replacer(ids, positions, generator)
        try:
            others = torch.as_tensor(returned)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"the replacer gave {returned!r}, which are not ids") from None
        if others.shape != positions.shape:
            raise ValueError(f"the replacer gave ids of shape {tuple(others.shape)} for {len(positions)} positions")
        if others.is_floating_point() or not bool(((others >= 0) & (others < size)).all()):
            raise ValueError(f"the replacer gave {others.tolist()}, but ids are whole numbers from 0 to {size - 1}")
        result[positions] = others.to(ids)
    return result


# ----------------------------------------------------------------------------------------------- any of the same kind
def unigram(prediction: Prediction) -> Replacer:
    """Any ordinary token of the same kind, all equally likely; of any kind, for a token that is not ordinary."""
    kinds = np.array(token_kinds(prediction))
    ordinary = np.flatnonzero(kinds != "")
    pools = {kind: np.flatnonzero(kinds == kind) if kind else ordinary for kind in np.unique(kinds)}
    return partial(_of_its_kind, kinds, pools)


def _of_its_kind(
    kinds: np.ndarray,
    pools: dict[Any, np.ndarray],
    ids: Int[Tensor, "pos"],
    positions: Int[Tensor, "place"],
    generator: np.random.Generator,
) -> Int[Tensor, "place"]:
    return torch.tensor([int(generator.choice(pools[kinds[token]])) for token in ids[positions].tolist()])


def token_kinds(prediction: Prediction) -> list[str]:
    """Every token's kind: whether a space leads it, and what it is made of; "" for a special, unknown or blank one."""
    tokenizer, size = prediction.adapter.tokenizer, prediction.adapter.vocabulary
    if tokenizer.wrapped is None:
        return ["token"] * size
    written = appended(
        tokenizer.decode, prediction.ids[-1:].tolist(), range(size)
    )  # the first of a text may lack its space
    special = tokenizer.special(range(size))
    kinds = ["" if hidden else kind(piece) for (_, piece), hidden in zip(written, special, strict=True)]
    if tokenizer.unknown is not None and tokenizer.unknown < size:
        kinds[tokenizer.unknown] = ""  # which writes no word
    return kinds


def kind(piece: str) -> str:
    shown = piece.strip()
    if not shown:
        return "space" if piece else ""
    made_of = "digits" if shown.isdigit() else "letters" if any(map(str.isalpha, shown)) else "signs"
    return ("led " if piece[0].isspace() else "") + made_of


# ---------------------------------------------------------------------------------------------- what the model expects
@torch.no_grad()
def language_model(prediction: Prediction) -> Replacer:
    """What the explained model expects after the tokens before; for the first, anything ordinary."""
    logits = prediction.prompt.logits_of(prediction.ids[None], read=range(len(prediction)))[0]
    return partial(_expected, logits, unigram(prediction))


def _expected(
    logits: Float[Tensor, "pos vocab"],
    first: Replacer,
    ids: Int[Tensor, "pos"],
    positions: Int[Tensor, "place"],
    generator: np.random.Generator,
) -> Int[Tensor, "place"]:
    later = positions[positions > 0]
    tokens = drawn(logits[later - 1], generator)
    return tokens if len(later) == len(positions) else torch.cat([first(ids, positions[:1], generator), tokens])


def drawn(logits: Float[Tensor, "place vocab"], generator: np.random.Generator) -> Int[Tensor, "place"]:
    """One token of each distribution."""
    reached = logits.cpu().double().softmax(-1).cumsum(-1)
    falls = torch.from_numpy(generator.random(len(logits))) * reached[:, -1]
    return (reached <= rearrange(falls, "place -> place 1")).sum(-1).clamp(max=logits.shape[1] - 1)


REPLACERS: dict[str, Callable[[Prediction], Replacer]] = {"unigram": unigram, "lm": language_model}


# ------------------------------------------------------------------------------------- what fits between its neighbours
@dataclass(frozen=True, eq=False)
class MaskedLM:
    """A Hugging Face masked language model as a replacer: ``replacer=MaskedLM(roberta, its_tokenizer, own_tokenizer)``.

    The context is written as text with masks in it. What is drawn for a mask is written with the explained model's
    ``own`` tokenizer, and the longest token of that taken; a word it cannot write leaves what stood there.
    """

    model: Any
    tokenizer: Any
    own: Any

    def __post_init__(self) -> None:
        if self.model.training:
            raise ValueError("the masked language model is in training mode, where its predictions change each time")
        for name in ("tokenizer", "own"):  # encoding resets the padding and truncation set on them
            object.__setattr__(self, name, deepcopy(getattr(self, name)))

    @torch.no_grad()
    def __call__(
        self, ids: Int[Tensor, "pos"], positions: Int[Tensor, "place"], generator: np.random.Generator
    ) -> Int[Tensor, "place"]:
        pieces, places = self._pieces(ids.tolist()), positions.tolist()
        spaces = [piece[: len(piece) - len(piece.lstrip())] for piece in pieces]
        for place in places:
            pieces[place] = spaces[place] + self.tokenizer.mask_token
        words = self._fill("".join(pieces), len(places), generator)
        tokens = [self._id(spaces[place], word) for place, word in zip(places, words, strict=True)]
        pairs = zip(places, tokens, strict=True)
        return torch.tensor([int(ids[place]) if token is None else token for place, token in pairs])

    def _pieces(self, ids: list[int]) -> list[str]:
        """The text of every token: nothing for special ones, and one of several that share a character shows it."""
        text, spans = locate(partial(self.own.decode, skip_special_tokens=False), ids)
        special = set(self.own.all_special_ids)
        return [
            "" if token in special or span == after else text[span.start : span.stop]
            for token, (span, after) in zip(ids, pairwise([*spans, END]), strict=True)
        ]

    def _fill(self, text: str, masks: int, generator: np.random.Generator) -> list[str]:
        device = next(self.model.parameters()).device
        read = self.tokenizer(text, return_tensors="pt").to(device)
        at = read["input_ids"][0] == self.tokenizer.mask_token_id
        if int(at.sum()) != masks or len(at) > self.tokenizer.model_max_length:
            raise ValueError(
                f"the masked language model reads {int(at.sum())} of {masks} masks in {len(at)} tokens, "
                f"of which it takes {self.tokenizer.model_max_length}"
            )
        logits = self.model(**read).logits[0, at]
        logits[:, self.tokenizer.all_special_ids] = -torch.inf
        return [self.tokenizer.decode([token]) for token in drawn(logits, generator).tolist()]

    def _id(self, space: str, word: str) -> int | None:
        shown = word.strip()
        joined = shown.removeprefix("##") if shown.startswith("##") else space + shown
        ids = self.own.encode(joined, add_special_tokens=False)
        lengths = [len(self.own.decode([token], skip_special_tokens=True).strip()) for token in ids]
        return ids[int(np.argmax(lengths))] if any(lengths) else None
