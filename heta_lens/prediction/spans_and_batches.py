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
from heta_lens.prediction.cache import Activations, Rules, Tokens, numbers_of, recovered_tokens
from heta_lens.prediction.chat import ChatPrompt
from heta_lens.prediction.prediction import Prediction, predictions
from heta_lens.prediction.target import TargetLike, context_length


def span_predictions(
    cache: Any,
    start: SupportsIndex,
    stop: SupportsIndex | None,
    targets: TargetLike | list[TargetLike],
    through: Sequence[SupportsIndex] | None,
    tokens: Tokens,
    rules: Rules | None = None,
) -> tuple[list[Prediction], list[Prediction]]:
    """Make the predictions of the reasoning's tokens, and of the answer's tokens."""
    adapter = ModelAdapter.of(cache)
    with adapter.undisturbed():
        cached = Activations.of(cache)
        length = len(cached[EMBED])
        where, last = f"the span {start}:{'' if stop is None else stop}", length if stop is None else stop
        span = _counted(where, start, last, length, length, f"is beyond the cached prompt of {length} tokens")
        reasoning = range(0) if through is None else reasoning_of(length, through, span.start)
        each_target = one_each("targets", targets, len(span), "position")
        by_position = dict.fromkeys(reasoning) | dict(zip(span, each_target, strict=True))
        prepared = predictions(adapter, cached, by_position, tokens=tokens, follow=True, rules=rules)
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
        parts = real_parts(mask, count, length)
        each_target = one_each("targets", targets, count, "prompt")
        places = one_each("positions", positions, count, "prompt")
        ids = None if tokens is None else batch_tokens(tokens, (count, length))
        prompts = [row.part(part) for row, part in zip(rows, parts, strict=True)]
        recovered = recovered_tokens(adapter, [prompt[EMBED] for prompt in prompts])
        own: list[list[int]] = []
        for number, part in enumerate(parts):
            with about(f"prompt {number} of the batch"):
                own.append(next(recovered) if ids is None else ids[number][part])
                if attention_mask is None:
                    check_unpadded(own[-1], adapter.tokenizer.pad, adapter.tokenizer.bos)
        for number, (prompt, target, place) in enumerate(zip(prompts, each_target, places, strict=True)):
            with about(f"prompt {number} of the batch"):
                n = context_length(len(own[number]), place)
                follow = place is not None
                prepared += predictions(adapter, prompt, {n: target}, tokens=own[number], follow=follow)
                check(prepared[-1])
    return prepared


def prompts_in(cache: Any) -> int:
    """Return the number of prompts in a cache."""
    ModelAdapter.of(cache)  # refuses what is no cache
    return len(Activations.of_each(cache))


def reasoning_of(cached: int, through: Any, answer: int) -> range:
    """Return the positions of the reasoning, counted from the front; the reasoning ends before the answer."""
    if not (isinstance(through, tuple | list) and len(through) == 2):
        raise TypeError(f"through={brief(through)} must be a pair (a, b): the reasoning is at a:b of the cached prompt")
    beyond = f"must lie before the answer, which begins at {answer}"
    return _counted(f"through=({through[0]}, {through[1]})", through[0], through[1], cached, answer, beyond)


def _counted(where: str, start: SupportsIndex, stop: SupportsIndex, cached: int, end: int, beyond: str) -> range:
    """Count positions from the front, and refuse positions at the first token or after the ``end``."""
    if not (is_whole(start) and is_whole(stop)):
        raise TypeError(f"{where} must have whole numbers: places in the cached prompt")
    first, last = (index(place) + cached * (index(place) < 0) for place in (start, stop))
    if not (0 <= first <= end and 0 <= last <= end):
        raise ValueError(f"{where} {beyond}")
    if first >= last:
        raise ValueError(f"{where} is empty: it has no token to explain")
    if first == 0:
        raise ValueError(f"{where} begins with the first token, which has no context: nothing comes before it")
    return range(first, last)


def batch_tokens(tokens: Any, shape: tuple[int, int]) -> list[list[int]]:
    """Return the given ids of every prompt, padding included."""
    if isinstance(tokens, ChatPrompt):
        raise TypeError("attribute_batch takes no chat: give each chat to attribute, or the ids that were cached")
    ids = numbers_of(tokens, f"tokens= takes the ids the model was run on, {shape[0]} rows of {shape[1]}")
    if ids.shape != shape:
        raise ValueError(f"tokens= must be the ids of the cached prompts, of shape {shape}; got {tuple(ids.shape)}")
    return ids.tolist()


def real_parts(mask: Any, prompts: int, length: int) -> list[slice]:
    """Return the contiguous range of real tokens in every prompt, from an attention mask with 1 at real tokens."""
    rows = numbers_of(mask, "attention_mask= takes a tensor of 0 and 1, a row for each prompt")
    if rows.shape != (prompts, length):
        raise ValueError(
            f"attention_mask= must be of shape {(prompts, length)}, as the cached tokens; got {tuple(rows.shape)}"
        )
    parts = []
    for number, row in enumerate(rows.bool().cpu()):
        positions = row.nonzero().flatten().tolist()
        if not positions or len(positions) != positions[-1] + 1 - positions[0]:
            raise ValueError(f"attention_mask= must be 1 in one stretch of prompt {number}: padding is at an end")
        parts.append(slice(positions[0], positions[-1] + 1))
    return parts


def check_unpadded(ids: list[int], pad: int | None, bos: int | None) -> None:
    """Refuse a prompt of a batch without a mask that seems to be padded."""
    leading = ids[0] == pad and (pad != bos or ids[1:2] == [pad])
    if pad is not None and (leading or ids[-1] == pad):
        raise ValueError(
            f"it {'begins' if leading else 'ends'} with the padding token {pad}: pass attention_mask=, 1 where a token "
            "is real (all ones if this token is)"
        )


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
