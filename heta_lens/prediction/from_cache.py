"""The predictions of a cache: the tokens of a span that a model wrote, and the prompts of a batch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import index
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from heta_lens._util.files import brief
from heta_lens._util.options import is_whole
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import EMBED
from heta_lens.prediction.activations import Activations
from heta_lens.prediction.chat import ChatPrompt
from heta_lens.prediction.checks import Tokens, Vocabulary, check_unpadded, real_parts
from heta_lens.prediction.prediction import Prediction, predictions
from heta_lens.prediction.target import TargetLike, context_length


def span_predictions(
    cache: Any,
    start: SupportsIndex,
    stop: SupportsIndex | None,
    targets: TargetLike | list[TargetLike],
    through: Sequence[SupportsIndex] | None,
    tokens: Tokens,
) -> tuple[list[Prediction], list[Prediction]]:
    """Make the predictions of the reasoning's tokens, and of the answer's tokens."""
    adapter = ModelAdapter.of(cache)
    with adapter.undisturbed():
        cached = Activations.of(cache)
        first, last = span_of(len(cached[EMBED]), start, stop)
        reasoning = range(0) if through is None else reasoning_of(len(cached[EMBED]), through, first)
        each_target = one_each("targets", targets, last - first, "position")
        by_position = dict.fromkeys(reasoning) | dict(zip(range(first, last), each_target, strict=True))
        prepared = predictions(adapter, cached, by_position, tokens=tokens, follow=True, needed=last)
    return prepared[: len(reasoning)], prepared[len(reasoning) :]


def batch_predictions(
    cache: Any,
    targets: TargetLike | list[TargetLike],
    positions: SupportsIndex | list[SupportsIndex | None] | None,
    tokens: Any,
    attention_mask: Any,
    check: Callable[[Prediction], None],
) -> list[Prediction]:
    """Make a prediction per prompt of a batch; ``check`` refuses predictions that cannot be explained."""
    adapter, prepared = ModelAdapter.of(cache), []
    with adapter.undisturbed():
        rows = Activations.of_each(cache)
        count, length = len(rows), len(rows[0][EMBED])
        mask = torch.ones(count, length) if attention_mask is None else attention_mask
        by_prompt = [
            real_parts(mask, count, length),
            one_each("targets", targets, count, "prompt"),
            one_each("positions", positions, count, "prompt"),
        ]
        ids = None if tokens is None else batch_tokens(tokens, (count, length))
        known = ids or Vocabulary.of(adapter, [row[EMBED] for row in rows])
        if attention_mask is None:
            whole = recovered(known, rows) if isinstance(known, Vocabulary) else known
            check_unpadded(whole, adapter.tokenizer.pad, adapter.tokenizer.bos)
        for number, (part, target, position) in enumerate(zip(*by_prompt, strict=True)):
            with about(f"prompt {number} of the batch"):
                cached = rows[number].part(part)
                n = context_length(len(cached[EMBED]), position)
                own = known if isinstance(known, Vocabulary) else known[number][part]
                prepared += predictions(adapter, cached, {n: target}, tokens=own, follow=position is not None)
                check(prepared[-1])
    return prepared


def span_of(cached: int, start: Any, stop: Any) -> tuple[int, int]:
    """Return start and stop of the positions to explain, counted from the front."""
    for name, place in (("start", start), ("stop", stop)):
        if not (is_whole(place) or (name == "stop" and place is None)):
            raise TypeError(f"{name}={place!r} must be a whole number: a place in the cached prompt")
    first, last = index(start), cached if stop is None else index(stop)
    first, last = (place + cached if place < 0 else place for place in (first, last))
    if not 0 <= first <= cached or not 0 <= last <= cached:
        raise ValueError(
            f"the span {start}:{'' if stop is None else stop} is beyond the cached prompt of {cached} tokens"
        )
    if first >= last:
        raise ValueError(f"the span {start}:{'' if stop is None else stop} is empty: it has no token to explain")
    if first == 0:
        raise ValueError("the span begins with the first token, which has no context: nothing comes before it")
    return first, last


def reasoning_of(cached: int, through: Any, answer: int) -> range:
    """Return the positions of the reasoning, counted from the front; the reasoning ends before the answer."""
    if not (isinstance(through, tuple | list) and len(through) == 2 and all(map(is_whole, through))):
        raise TypeError(f"through={brief(through)} must be a pair (a, b): the reasoning is at a:b of the cached prompt")
    start, stop = (index(place) + cached if index(place) < 0 else index(place) for place in through)
    where = f"through=({through[0]}, {through[1]})"
    if start >= stop:
        raise ValueError(f"{where} is empty: it has no token to follow the answer through")
    if start == 0:
        raise ValueError(f"{where} begins with the first token, which has no context: nothing comes before it")
    if start < 0 or stop > answer:
        raise ValueError(f"{where} must lie before the answer, which begins at {answer}, and after the first token")
    return range(start, stop)


def batch_tokens(tokens: Any, shape: tuple[int, int]) -> list[list[int]]:
    """Return the given ids of every prompt, padding included."""
    if isinstance(tokens, ChatPrompt):
        raise TypeError("attribute_batch takes no chat: give each chat to attribute, or the ids that were cached")
    try:
        ids = torch.as_tensor(tokens)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"tokens= takes the ids the model was run on, {shape[0]} rows of {shape[1]}") from None
    ids = ids[None] if ids.ndim == 1 and shape[0] == 1 else ids
    if ids.shape != shape:
        raise ValueError(f"tokens= must be the ids of the cached prompts, of shape {shape}; got {tuple(ids.shape)}")
    return ids.tolist()


def recovered(vocabulary: Vocabulary, rows: Sequence[Activations]) -> list[list[int]]:
    """Return every prompt's ids, from the cached embeddings."""
    ids = []
    for number, row in enumerate(rows):
        with about(f"prompt {number} of the batch"):
            ids.append(vocabulary.tokens(row[EMBED], needed=0))
    return ids


def one_each(name: str, given: Any, count: int, of: str) -> list[Any]:
    """Return a list with an entry for each prompt or position; a value that is no list is repeated."""
    given = given.tolist() if isinstance(given, Tensor | np.ndarray) else given
    if not isinstance(given, list):
        return [given] * count
    if len(given) != count:
        raise ValueError(f"{name}= has {len(given)} entries for {count} {of}s: a list has one for each")
    return given


@contextmanager
def about(what: str) -> Iterator[None]:
    """Prefix errors with the name of their prompt or position."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError  # a subclass may want other arguments
        raise kind(f"{what}: {error}") from error
