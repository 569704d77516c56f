"""Prompts of different length in one batch: which positions are real, and which are padding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.numerics import check_finite, differences, distance, tolerance
from heta_lens._util.options import check_tokens
from heta_lens._util.work import count
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import out_of_memory
from heta_lens.model.hooks import EMBED, OUT, KeysValues, note, pattern_names, put, stream_name
from heta_lens.prediction.activations import Activations, check_attends_back
from heta_lens.prediction.chat import ChatPrompt


def real_parts(mask: Any, prompts: int, length: int) -> list[slice]:
    """Where each prompt's own tokens are, by an attention mask that is 1 there: one contiguous range per row."""
    try:
        rows = torch.as_tensor(mask)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError("attention_mask= takes a tensor of 0 and 1, a row for each prompt") from None
    if rows.shape != (prompts, length):
        raise ValueError(
            f"attention_mask= must be of shape {(prompts, length)}, as the cached tokens; got {tuple(rows.shape)}"
        )
    if not ((rows == 0) | (rows == 1)).all():
        raise ValueError("attention_mask= must be 1 where a token is real and 0 where padding is, and nothing else")
    return [_range(row, number) for number, row in enumerate(rows.long().cpu())]


def _range(row: Int[Tensor, "pos"], number: int) -> slice:
    positions = row.nonzero().flatten()
    if not len(positions):
        raise ValueError(f"attention_mask= leaves nothing of prompt {number}: all of it is padding")
    start, stop = int(positions[0]), int(positions[-1]) + 1
    if stop - start != len(positions):
        hole = start + int((row[start:stop] == 0).nonzero()[0])
        raise ValueError(f"attention_mask= leaves out position {hole} inside prompt {number}: padding is at an end")
    return slice(start, stop)


def check_unpadded(rows: list[list[int]], pad: int | None, bos: int | None) -> None:
    """Refuse a batch that seems to be padded where no mask says so."""
    for number, ids in enumerate(rows):
        leading = ids[0] == pad and (pad != bos or ids[1:2] == [pad])
        if pad is not None and (leading or ids[-1] == pad):
            raise ValueError(
                f"prompt {number} of the batch {'begins' if leading else 'ends'} with the padding token {pad}: pass "
                "attention_mask=, 1 where a token is real (all ones if this token is)"
            )


# ------------------------------------------------------------------------------------------------------- cached tokens
# The token ids of a cached prompt: given by the caller and checked, or recovered from the cached embeddings.


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


# --------------------------------------------------------------------------------------------------------- cache check
# Whether the live model still does what was cached: one forward run, compared with everything in the cache.


class Replay(NamedTuple):
    """The check run: the model's embeddings and logits now, and their largest distance from the cache."""

    embeddings: Float[Tensor, "pos d"]
    logits: Float[Tensor, "read vocab"]
    mismatch: float


def check_causal(adapter: ModelAdapter, cached: Activations) -> None:
    """Refuse a model whose tokens attend to later ones; not every encoder says in its config that it is one."""
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


@torch.no_grad()
def replay(
    adapter: ModelAdapter, cached: Activations, ids: Int[Tensor, "pos"], read: Sequence[int], given: bool
) -> Replay:
    """Run the cached prompt once more and compare everything that was cached; logits are read at ``read``.

    ``given``: the ids were given by the caller, not recovered from the cache.
    """
    whole = bool(adapter.user_hooks())
    comparison = Comparison(adapter, cached, ids, [*read], given, whole)
    watched = {name: partial(comparison.compare, name) for name in cached.tensors}
    logits = adapter.run(rearrange(ids, "pos -> 1 pos"), watched, read=comparison.read, whole=whole)[0]
    for position, bad in zip(read, ~(logits < torch.inf).all(-1), strict=True):
        if bad:
            raise ValueError(f"the model's own logits are not finite at position {position}: nothing can be explained")
    return Replay(comparison.embeddings[0], logits, max(comparison.distances))


@dataclass(frozen=True, eq=False)
class Comparison:
    """A run's activations against the cached ones; collects the embeddings and every activation's distance."""

    adapter: ModelAdapter
    cached: Activations
    ids: Int[Tensor, "pos"]
    read: list[int]
    given: bool
    whole: bool  # whether all positions are unembedded, as the user's hooks expect
    embeddings: list[Tensor] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)

    def compare(self, name: str, activation: Tensor) -> None:
        now, then = activation[0], self.cached.tensors[name]
        if name == OUT:  # only the rows that are read
            now, then = now[self.read] if self.whole else now, then[self.read]
        else:
            check_finite(then, partial(self._not_finite, name), axis=1 if name.endswith("pattern") else 0)
        if name == EMBED:
            self.embeddings.append(now.clone())
            check_embeddings(self.adapter, self.ids, now, then, self.given)
        patterns = any(other.endswith("pattern") for other in self.cached.tensors)  # they show the prompt is complete
        try:
            self.distances.append(_check_same(name, now, then, self.adapter.rounding, sliced=not patterns))
        except ValueError as error:
            raise (_padded(self.adapter, name, self.ids) or error) from None

    def _not_finite(self, name: str, position: int, _: float) -> str:
        token = self.adapter.tokenizer.write(int(self.ids[position]))
        return f"the cached {name} is not finite at position {position}, token {token!r}"


def _padded(adapter: ModelAdapter, name: str, ids: Int[Tensor, "pos"]) -> ValueError | None:
    """The likely reason why another run differs, where the prompt begins or ends with padding."""
    try:
        check_unpadded([ids.tolist()], adapter.tokenizer.pad, adapter.tokenizer.bos)
    except ValueError:
        return ValueError(
            f"{name} is not what the cache holds: the prompt begins or ends with the padding token "
            f"{adapter.tokenizer.pad}, so the cache was probably taken with an attention_mask; give the same one to "
            "attribute_batch(cache, attention_mask=...)"
        )
    return None


def _check_same(name: str, now: Tensor, then: Tensor, rounding: float, *, sliced: bool) -> float:
    """The largest difference relative to the largest entry, refused above the tolerance."""
    if now.shape != then.shape:
        raise ValueError(
            f"{name} is {tuple(then.shape)} in the cache and {tuple(now.shape)} in a run of the model: take the cache "
            "of the whole prompt, without pos_slice"
        )
    relative, allowed = distance(now, then, rounding)
    if relative > allowed:
        part = ", or it holds only a part of the prompt (pos_slice=)" if sliced else ""
        raise ValueError(
            f"{name} is not what the cache holds (off by {relative:.1e} of its size): the model's weights, or the "
            "hooks on it, have changed since the cache was taken, or it was run with another attention_mask"
            f"{part}; take it again"
        )
    return relative


# -------------------------------------------------------------------------------------------------- prefix reuse check
# Whether a model really continues from kept keys and values: tried on each prompt with one run from the middle.


LIKELY = 10  # nats below the most likely token, within which an absolute difference matters to what is measured


def reusable_prefix(
    adapter: ModelAdapter,
    ids: Int[Tensor, "pos"],
    embeddings: Float[Tensor, "pos d"],
    log_probs: Float[Tensor, "vocab"],
    hooked: bool,
) -> tuple[KeysValues | None, str]:
    """Keys and values that later runs can start from, or None and why not.

    Whether a model really continues from them is measured, with one run from the middle, and not derived from its
    kind: some models ignore them silently.
    """
    if hooked:
        return None, "off: hooks on the model may depend on positions, so every run is full length"
    if len(ids) < 2:
        return None, "off: the context is a single token"
    try:
        kept = adapter.keys_values(ids[None])
        start = len(ids) // 2
        with torch.no_grad():
            past = adapter.resume(kept, start, len(ids), 1)
            resumed = adapter.run(ids[None, start:], {EMBED: put(embeddings[None, start:])}, past=past)[0, 0]
        grown = adapter.reuse.grown(past)
    except Exception as error:  # whatever a model raises when it is run in a way it does not support
        return None, f"off: this model cannot continue from kept keys and values ({type(error).__name__}: {error})"
    if len(kept) < adapter.layers:
        return None, f"off: only {len(kept)} of this model's {adapter.layers} layers keep keys and values"
    changed = _changed(kept, grown, 2 * adapter.rounding) or _changed_prediction(
        resumed.log_softmax(-1), log_probs, 2 * adapter.rounding
    )
    return (None, f"off: continuing from kept keys and values changes {changed}") if changed else (kept, "on")


def _changed(kept: KeysValues, grown: KeysValues, least: float) -> str:
    """Which layer's keys and values differ, if any do: a prediction close to certain would hide much."""
    for layer, pairs in enumerate(zip(kept, grown, strict=True)):
        for before, after in zip(*pairs, strict=True):
            if before.shape != after.shape:
                return f"those of layer {layer} (from shape {list(before.shape)} to {list(after.shape)})"
            off, allowed = distance(after, before, least)
            if not off <= allowed:
                return f"those of layer {layer} (off by {off:.1e})"
    return ""


def _changed_prediction(now: Float[Tensor, "vocab"], clean: Float[Tensor, "vocab"], allowed: float) -> str:
    """How far the prediction is off, if it is: the likely tokens in nats, all others beside the least likely."""
    likely = clean > clean.max() - LIKELY
    gap = float((now - clean)[likely].abs().max())
    if not gap <= allowed:
        return f"the prediction by {gap:.1e} nats"
    off = distance(now, clean).relative
    return "" if off <= allowed else f"the prediction of unlikely tokens (off by {off:.1e})"


# --------------------------------------------------------------------------------------------------- block alone check
# Whether the blocks of a model can run alone: tried on the first tokens of each prompt, where it costs least.


TRIED = 4  # tokens


class BlocksAlone(NamedTuple):
    """Whether every block does the same alone as in the model; and if not, why."""

    same: bool
    why: str = ""


@torch.no_grad()
def blocks_alone(adapter: ModelAdapter, ids: Int[Tensor, "pos"]) -> BlocksAlone:
    """Compare what leaves each block in a run of the model with what leaves it when it is all that runs.

    Blocks of some architectures hand each other more than the residual stream. What is left of that in the model is
    changed first, by a run of other tokens; and blocks are tried from the last down, so that none has it from below.
    """
    few = ids[None, :TRIED]
    streams = adapter.streams(few, range(adapter.layers + 1))
    adapter.run((few + 1) % adapter.vocabulary)
    count("forwards", len(few))  # for all blocks together
    for layer in reversed(range(adapter.layers)):
        left: dict[int, Tensor] = {}
        leaving = stream_name(layer + 1, layer + 1)  # also where the next block does not run
        try:
            hooks = {adapter.stream_name(layer): put(streams[layer]), leaving: note(left, layer)}
            adapter.run(few, hooks, only=layer)
            off, allowed = distance(left[layer], streams[layer + 1])
        except Exception as error:  # whatever a model raises when it is run in a way it was not made for
            if isinstance(error, RuntimeError) and out_of_memory(error):
                raise
            return BlocksAlone(False, f"block {layer} cannot run alone ({type(error).__name__}: {error})")
        if off > allowed:
            return BlocksAlone(False, f"block {layer} does something else when it runs alone (off by {off:.1e})")
    return BlocksAlone(True)
