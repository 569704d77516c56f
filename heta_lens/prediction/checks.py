"""Checks of a cache and its tokens against the live model, and trials of the ways in which a model can run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.numerics import check_finite, differences, distance, tolerance
from heta_lens._util.options import check_token
from heta_lens._util.work import count
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import out_of_memory
from heta_lens.model.hooks import EMBED, OUT, KeysValues, note, pattern_names, put, stream_name
from heta_lens.prediction.activations import Activations, check_attends_back
from heta_lens.prediction.chat import ChatPrompt

LIKELY = 10  # nats below the most likely token, within which log-probabilities are compared absolutely
TRIED = 4  # tokens with which blocks are tried


# ------------------------------------------------------------------------------------------------------------ padding
def real_parts(mask: Any, prompts: int, length: int) -> list[slice]:
    """Return the contiguous range of real tokens in every prompt, from an attention mask with 1 at real tokens."""
    rows = numbers_of(mask, "attention_mask= takes a tensor of 0 and 1, a row for each prompt")
    if rows.shape != (prompts, length):
        raise ValueError(
            f"attention_mask= must be of shape {(prompts, length)}, as the cached tokens; got {tuple(rows.shape)}"
        )
    if not ((rows == 0) | (rows == 1)).all():
        raise ValueError("attention_mask= must be 1 where a token is real and 0 where padding is, and nothing else")
    parts = []
    for number, row in enumerate(rows.bool().cpu()):
        positions = row.nonzero().flatten().tolist()
        if not positions or len(positions) != positions[-1] + 1 - positions[0]:
            raise ValueError(f"attention_mask= must be 1 in one stretch of prompt {number}: padding is at an end")
        parts.append(slice(positions[0], positions[-1] + 1))
    return parts


def numbers_of(given: Any, refusal: str) -> Tensor:
    """Return numbers as a tensor; refuse anything else."""
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(refusal) from None


def check_unpadded(ids: list[int], pad: int | None, bos: int | None) -> None:
    """Refuse a prompt of a batch without a mask that seems to be padded."""
    leading = ids[0] == pad and (pad != bos or ids[1:2] == [pad])
    if pad is not None and (leading or ids[-1] == pad):
        raise ValueError(
            f"it {'begins' if leading else 'ends'} with the padding token {pad}: pass attention_mask=, 1 where a token "
            "is real (all ones if this token is)"
        )


# ------------------------------------------------------------------------------------------------------ cached tokens
Tokens: TypeAlias = "Tensor | Sequence[int] | ChatPrompt | Vocabulary | None"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Tokens by the bits of their embedding, for the embeddings of several prompts."""

    owners: Mapping[bytes, Sequence[int]]

    @classmethod
    def of(cls, adapter: ModelAdapter, prompts: Sequence[Float[Tensor, "_ d"]]) -> "Vocabulary":
        owners: dict[bytes, list[int]] = {row: [] for embeddings in prompts for row in _bits(embeddings)}
        for token, row in enumerate(_bits(adapter.embedding_table().to(prompts[0].dtype))):
            if row in owners:
                owners[row].append(token)
        return cls(owners)

    def tokens(self, embeddings: Float[Tensor, "pos d"], needed: int) -> list[int]:
        """Return the ids with exactly these embeddings; refuse missing ids, and shared ones among the ``needed``."""
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


def _bits(table: Float[Tensor, "row d"]) -> list[bytes]:
    """Return every row's bits, which compare and hash exactly."""
    bits = table.detach().cpu().contiguous().view(torch.uint8).numpy()
    return [row.tobytes() for row in bits]


def cached_tokens(
    adapter: ModelAdapter, embeddings: Float[Tensor, "pos d"], tokens: Tokens, needed: int
) -> Int[Tensor, "pos"]:
    """Return the cached ids: the given ids, checked for shape and range, or else the ids of the embeddings."""
    if tokens is None:
        tokens = Vocabulary.of(adapter, [embeddings])
    if isinstance(tokens, Vocabulary):
        return torch.tensor(tokens.tokens(embeddings, needed), device=adapter.device)
    if isinstance(tokens, ChatPrompt):
        if len(tokens) != len(embeddings):
            raise ValueError(
                f"tokens= is a chat of {len(tokens)} tokens, and the cached prompt has {len(embeddings)}: run "
                "chat.tokens whole, or pass chat.followed_by(ids) if further ids were run after it"
            )
        tokens = tokens.tokens
    ids = numbers_of(tokens, "tokens= takes the ids the model was run on, model.to_tokens(text), not the text")
    ids = ids.to(adapter.device)
    shape, ids = tuple(ids.shape), ids[0] if ids.ndim == 2 and len(ids) == 1 else ids
    if ids.is_floating_point() or ids.dtype == torch.bool or ids.shape != embeddings.shape[:1]:
        raise ValueError(
            f"tokens= must be the ids of the cached prompt, {len(embeddings)} of them; got {ids.dtype} of "
            f"shape {shape}: pass the ids that were run, with or without BOS as there, all cached, without pos_slice="
        )
    for token in ids.tolist():
        check_token("tokens", token, adapter.vocabulary)
    return ids.long().clone()


# -------------------------------------------------------------------------------------------------------- cache check
def check_causal(adapter: ModelAdapter, cached: Activations) -> None:
    """Refuse a cache in which tokens attend to later tokens; the configs of encoders do not always tell."""
    for layer, name in enumerate(pattern_names(adapter.layers)):
        pattern = cached.tensors.get(name)
        if pattern is None:
            continue
        queries, keys = pattern.shape[1:]
        if queries != keys:
            raise ValueError(
                f"the cache holds {queries} of the prompt's {keys} positions: it was taken with pos_slice=; "
                "call run_with_cache without it"
            )
        check_attends_back(adapter, layer, pattern)


@dataclass(eq=False)
class Replay:
    """The cached prompt run once more: the model's embeddings and logits now, and the largest distance from the cache.

    Every activation is compared with the cached one while the run goes on; logits are read at ``read``. ``given``: the
    ids were given by the caller, not recovered from the cache.
    """

    adapter: ModelAdapter
    cached: Activations
    ids: Int[Tensor, "pos"]
    read: list[int]
    given: bool
    mismatch: float = 0.0

    @torch.no_grad()
    def __post_init__(self) -> None:
        self.whole = bool(self.adapter.user_hooks())  # all positions are unembedded, as the user's hooks expect
        watched = {name: partial(self._compare, name) for name in self.cached.tensors}
        self.logits = self.adapter.run(self.ids[None], watched, read=self.read, whole=self.whole)[0]
        for position, bad in zip(self.read, ~(self.logits < torch.inf).all(-1), strict=True):
            if bad:
                raise ValueError(
                    f"the model's own logits are not finite at position {position}: nothing can be explained"
                )

    def _compare(self, name: str, activation: Tensor) -> None:
        now, then = activation[0], self.cached.tensors[name]
        if name == OUT:  # the rows that are read
            now, then = now[self.read] if self.whole else now, then[self.read]
        else:
            write = self.adapter.tokenizer.write
            check_finite(
                then,
                lambda at, _: f"the cached {name} is not finite at position {at}, token {write(int(self.ids[at]))!r}",
                axis=1 if name.endswith("pattern") else 0,
            )
        if name == EMBED:
            self.embeddings: Float[Tensor, "pos d"] = now.clone()
            self._check_embeddings(now, then)
        self._check_values(name, now, then)

    def _check_embeddings(self, now: Tensor, then: Tensor) -> None:
        """Refuse different embeddings: wrong tokens change single rows, wrong weights change every row."""
        allowed = max(tolerance(now.dtype, then.dtype), self.adapter.rounding) * then.abs().max()
        off = differences(now, then).amax(-1) > allowed
        if self.given and off.any() and not off.all():
            first = int(off.nonzero()[0])
            raise ValueError(
                f"tokens= do not match the cache: the embedding of token {int(self.ids[first])} at position {first} "
                "is not the cached one"
            )
        if off.any():
            raise ValueError(
                "the embeddings are not what the cache holds: the model's weights, or the hooks on it, have changed "
                "since the cache was taken, or cache.model is not the model it was taken from"
                + (", or tokens= are those of another prompt" if self.given else "")
            )

    def _check_values(self, name: str, now: Tensor, then: Tensor) -> None:
        """Note the largest difference relative to the largest entry; refuse differences above the tolerance."""
        off, allowed = distance(now, then, self.adapter.rounding)
        if off > allowed:
            raise ValueError(
                f"{name} is not what the cache holds (off by {off:.1e} of its size): the model's weights, or the hooks "
                "on it, have changed since the cache was taken; or it was taken with an attention_mask, which "
                "attribute_batch(cache, attention_mask=...) takes, or with pos_slice=; take it again"
            )
        self.mismatch = max(self.mismatch, off)


# ----------------------------------------------------------------------------------------------- trials of a model
@dataclass(frozen=True, eq=False)
class Prefix:
    """The keys and values from which runs of a prompt continue, or None; and a note for the diagnostics."""

    kept: KeysValues | None
    note: str


def reusable_prefix(
    adapter: ModelAdapter,
    ids: Int[Tensor, "pos"],
    embeddings: Float[Tensor, "pos d"],
    log_probs: Float[Tensor, "vocab"],
    hooked: bool,
) -> Prefix:
    """Try to continue a run of the prompt from the middle, because several models ignore kept keys and values."""
    if hooked:
        return Prefix(None, "off: hooks on the model may depend on positions, so every run is full length")
    if len(ids) < 2:
        return Prefix(None, "off: the context is a single token")
    try:
        kept = adapter.keys_values(ids[None])
        start = len(ids) // 2
        with torch.no_grad():
            past = adapter.resume(kept, start, len(ids), 1)
            resumed = adapter.run(ids[None, start:], {EMBED: put(embeddings[None, start:])}, past=past)[0, 0]
        grown = adapter.reuse.grown(past)
    except Exception as error:  # a model may raise anything in an unsupported run
        reason = f"this model cannot continue from kept keys and values ({type(error).__name__}: {error})"
        return Prefix(None, f"off: {reason}")
    if len(kept) < adapter.layers:
        return Prefix(None, f"off: only {len(kept)} of this model's {adapter.layers} layers keep keys and values")
    allowed = 2 * adapter.rounding
    changed = _changed(kept, grown, allowed) or _changed_prediction(resumed.log_softmax(-1), log_probs, allowed)
    if changed:
        return Prefix(None, f"off: continuing from kept keys and values changes {changed}")
    return Prefix(kept, "on")


def _changed(kept: KeysValues, grown: KeysValues, least: float) -> str:
    """Name the first layer with different keys and values, which a nearly certain prediction would hide."""
    for layer, pairs in enumerate(zip(kept, grown, strict=True)):
        for before, after in zip(*pairs, strict=True):
            if before.shape != after.shape:
                return f"those of layer {layer} (from shape {list(before.shape)} to {list(after.shape)})"
            off, allowed = distance(after, before, least)
            if not off <= allowed:
                return f"those of layer {layer} (off by {off:.1e})"
    return ""


def _changed_prediction(now: Float[Tensor, "vocab"], clean: Float[Tensor, "vocab"], allowed: float) -> str:
    """Describe a different prediction: likely tokens are compared in nats, unlikely ones relative to the largest."""
    likely = clean > clean.max() - LIKELY
    gap = float((now - clean)[likely].abs().max())
    if not gap <= allowed:
        return f"the prediction by {gap:.1e} nats"
    off = distance(now, clean).relative
    return "" if off <= allowed else f"the prediction of unlikely tokens (off by {off:.1e})"


class BlocksAlone(NamedTuple):
    """A flag for blocks that compute the same alone as in the model, and the reason if blocks do not."""

    same: bool
    why: str = ""


@torch.no_grad()
def blocks_alone(adapter: ModelAdapter, ids: Int[Tensor, "pos"]) -> BlocksAlone:
    """Compare the output of each block in a run of the model with the output of the block alone, on a few tokens.

    Blocks of some architectures pass more to later blocks than the residual stream. A run of other tokens first
    replaces what is left of it in the model, and blocks are tried from the last down, so that no block below adds to
    it again.
    """
    few = ids[None, :TRIED]
    streams = adapter.streams(few, range(adapter.layers + 1))
    adapter.run((few + 1) % adapter.vocabulary)
    count("forwards", len(few))  # for all blocks together
    for layer in reversed(range(adapter.layers)):
        left: dict[int, Tensor] = {}
        leaving = stream_name(layer + 1, layer + 1)  # the output of the layer, even if the next layer does not run
        try:
            hooks = {adapter.stream_name(layer): put(streams[layer]), leaving: note(left, layer)}
            adapter.run(few, hooks, only=layer)
            off, allowed = distance(left[layer], streams[layer + 1])
        except Exception as error:  # a model may raise anything in an unsupported run
            if isinstance(error, RuntimeError) and out_of_memory(error):
                raise
            return BlocksAlone(False, f"block {layer} cannot run alone ({type(error).__name__}: {error})")
        if off > allowed:
            return BlocksAlone(False, f"block {layer} does something else when it runs alone (off by {off:.1e})")
    return BlocksAlone(True)
