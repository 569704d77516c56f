"""The token ids of a cached prompt: given by the caller and checked, or recovered from the cached embeddings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.finite_values import check_finite
from heta_lens._util.options import check_tokens
from heta_lens._util.tolerance import differences, tolerance
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hook_sites import EMBED
from heta_lens.prediction.chat_prompt import ChatPrompt

Tokens: TypeAlias = "Tensor | Sequence[int] | ChatPrompt | Vocabulary | None"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Which tokens have the embeddings of some prompts: the model's table is read once for all of them."""

    owners: Mapping[bytes, Sequence[int]]

    @classmethod
    def of(cls, adapter: ModelAdapter, prompts: Sequence[Float[Tensor, "_ d"]]) -> "Vocabulary":
        owners: dict[bytes, list[int]] = {row: [] for embeddings in prompts for row in _bits(embeddings)}
        for token, row in enumerate(_bits(adapter.embedding_table().to(prompts[0].dtype))):
            if row in owners:
                owners[row].append(token)
        return cls(owners)

    def tokens(self, embeddings: Float[Tensor, "pos d"], needed: int) -> list[int]:
        """The ids with exactly these embeddings; an error if there are none, or several for the first ``needed``."""
        check_finite(embeddings, lambda position, _: f"the cached {EMBED} is not finite at position {position}")
        owners = [self.owners[row] for row in _bits(embeddings)]
        for position, ids in enumerate(owners):
            if not ids or (position < needed and len(ids) > 1):
                problem = f"tokens {[*ids[:5]]} share" if ids else "no token of this model has"
                other = "" if ids else ", and see that cache.model is the model it was taken from, unchanged"
                raise ValueError(
                    f"{problem} the cached embedding at position {position}: pass tokens=, the ids you ran{other}"
                )
        return [ids[0] for ids in owners]

    def has_all(self, embeddings: Float[Tensor, "pos d"]) -> bool:
        """Whether every one of these embeddings is that of a token."""
        try:
            return bool(self.tokens(embeddings, needed=0))
        except ValueError:
            return False


def _bits(table: Float[Tensor, "row d"]) -> list[bytes]:
    """Every row's bits, which compare and hash exactly."""
    bits = table.detach().cpu().contiguous().view(torch.uint8).numpy()
    return [row.tobytes() for row in bits]


def cached_tokens(
    adapter: ModelAdapter, embeddings: Float[Tensor, "pos d"], tokens: Tokens, needed: int
) -> Int[Tensor, "pos"]:
    """The ids that were cached: those given, checked for shape and range, or else those the embeddings belong to."""
    if tokens is None:
        tokens = Vocabulary.of(adapter, [embeddings])
    if isinstance(tokens, Vocabulary):
        return torch.tensor(tokens.tokens(embeddings, needed), device=adapter.device)
    if isinstance(tokens, ChatPrompt):
        _check_whole(tokens, len(embeddings))
        tokens = tokens.tokens
    try:
        ids = torch.as_tensor(tokens, device=adapter.device)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        raise TypeError("tokens= takes the ids the model was run on, model.to_tokens(text), not the text") from None
    shape, ids = tuple(ids.shape), ids[0] if ids.ndim == 2 and len(ids) == 1 else ids
    if ids.is_floating_point() or ids.dtype == torch.bool or ids.shape != embeddings.shape[:1]:
        raise ValueError(
            f"tokens= must be the ids of the cached prompt, {len(embeddings)} of them; got {ids.dtype} of shape {shape}"
            f"{_length_hint(ids, len(embeddings), adapter.tokenizer.bos)}"
        )
    check_tokens("tokens", ids.tolist(), adapter.vocabulary)
    return ids.long().clone()


def _check_whole(chat: ChatPrompt, cached: int) -> None:
    """Refuse a chat of another length than the cached prompt, which may end with what the model wrote."""
    if len(chat) < cached:
        raise ValueError(
            f"tokens= is a chat of {len(chat)} tokens, and the cached prompt has {cached}: pass "
            "tokens=chat.followed_by(ids), with the ids that were run after it"
        )
    if len(chat) > cached:
        raise ValueError(
            f"tokens= is a chat of {len(chat)} tokens, and the cached prompt has only {cached}: run chat.tokens whole"
        )


def _length_hint(ids: Tensor, cached: int, bos: int | None) -> str:
    """The likely reason why there are more or fewer tokens than were cached."""
    begins = ids.ndim == 1 and ids.tolist()[:1] == [bos]
    if begins and len(ids) == cached + 1:
        return " (the first is BOS, which a prompt cached with prepend_bos=False lacks: pass the ids that were run)"
    if ids.ndim == 1 and bos is not None and not begins and len(ids) == cached - 1:
        return " (does the cached prompt begin with BOS? pass model.to_tokens(text), which adds it too)"
    if ids.ndim == 1 and len(ids) > cached:
        return " (was only a part cached, by pos_slice=? leave it out)"
    return ""


def check_embeddings(adapter: ModelAdapter, ids: Tensor, now: Tensor, then: Tensor, given: bool) -> None:
    """Wrong tokens change some rows of the embeddings, other weights change all of them."""
    off = differences(now, then).amax(-1) > max(tolerance(now.dtype, then.dtype), adapter.rounding) * then.abs().max()
    if not off.any():
        return
    first = int(off.nonzero()[0])
    if given and len(ids) == 1:
        raise ValueError(
            f"tokens= do not match the cache: token {int(ids[0])} has another embedding than the one that is cached; "
            "leave tokens= out, or take the cache again if the model's weights or hooks have changed"
        )
    if given and not off.all():
        raise ValueError(
            f"tokens= do not match the cache: the embedding of token {int(ids[first])} at position {first} "
            "is not the cached one"
        )
    if given and Vocabulary.of(adapter, [then]).has_all(then):
        raise ValueError("tokens= do not match the cache: they are those of another prompt; pass the ids that were run")
    raise ValueError(
        "the embeddings are not what the cache holds: the model's weights, or the hooks on it, have changed since the "
        "cache was taken, or cache.model is not the model it was taken from"
        + (", or tokens= are those of another prompt" if given else "")
    )
