"""The one verb: `attribute`, for a token; and for the tokens of a span, and for a batch of prompts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import index
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import torch
from torch import Tensor

from heta_lens._util.file_reading import brief
from heta_lens._util.options import check_names, hint, is_whole
from heta_lens.attribution import Attribution
from heta_lens.methods.base import Method
from heta_lens.methods.cost_estimate import Estimate, estimated
from heta_lens.methods.function_method import as_method
from heta_lens.methods.method_registry import METHODS
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hook_sites import EMBED
from heta_lens.model.locking import one_at_a_time
from heta_lens.prediction.cached_activations import Activations
from heta_lens.prediction.cached_tokens import Tokens, Vocabulary
from heta_lens.prediction.chat_prompt import ChatPrompt
from heta_lens.prediction.padding_checks import check_unpadded, real_parts
from heta_lens.prediction.prediction import Prediction, predictions
from heta_lens.prediction.target import TargetLike, context_length
from heta_lens.span_attribution import SpanAttribution

MethodLike: TypeAlias = str | Method | Callable[[Prediction], Any]  # a name, a ready method or a plain function


@one_at_a_time("cache")
def attribute(
    cache: Any,
    target: TargetLike = None,
    *,
    position: SupportsIndex | None = None,
    tokens: Tokens = None,
    method: MethodLike = "heta",
    **options: Any,
) -> Attribution:
    """Which context tokens made the model predict this token?

    ``cache`` is what ``model.run_with_cache(tokens)`` returned for one prompt. ``target`` is the token to explain: its
    id; its text, leading space included (where no token is written just so, the space is toggled); None for the
    model's most likely next token; a set ``{a, b}`` of these, for the probability that any of them comes next; or a
    pair ``(a, b)`` of tokens or sets, to explain why a rather than b. It may also be a function of the logits that
    predict the next token (``Float[Tensor, "vocab"]``, not normalised, float32 or better), which returns a number as a
    tensor: that is then what is explained.
    ``position=p`` explains the token at p of the cached prompt from the tokens before it. ``tokens`` are the ids that
    were run, or the `chat` that was; without them they are read off the cached embeddings. ``method`` is a name, whose
    ``options`` are those of its class; a ready one such as ``Heta.preset("released")``; or a function of the
    `Prediction` that returns a score for each context token.

        logits, cache = model.run_with_cache(tokens)
        attribution = heta_lens.attribute(cache, target=" Paris", tokens=tokens)
        attribution.plot()
    """
    explain = method_of(method, options)
    return explain(Prediction.from_cache(cache, target, position=position, tokens=tokens))


@one_at_a_time("cache")
def estimate(
    cache: Any,
    target: TargetLike = None,
    *,
    position: SupportsIndex | None = None,
    tokens: Tokens = None,
    memory: float | int | None = None,
    method: MethodLike = "heta",
    **options: Any,
) -> Estimate:
    """What would `attribute` cost with these arguments, and what would be cheaper?

    A few runs are timed. ``memory`` is how many bytes there are to spare (by default, half of what is free); what is
    proposed fits in them.
    """
    explain = method_of(method, options)
    return estimated(explain, [Prediction.from_cache(cache, target, position=position, tokens=tokens)], memory)


@one_at_a_time("cache")
def attribute_span(
    cache: Any,
    start: SupportsIndex,
    stop: SupportsIndex | None = None,
    *,
    targets: TargetLike | list[TargetLike] = None,
    through: Sequence[SupportsIndex] | None = None,
    tokens: Tokens = None,
    method: MethodLike = "heta",
    **options: Any,
) -> SpanAttribution:
    """Which tokens made the model write the ones at ``start:stop`` of the cached prompt (by default, to its end)?

    Each is explained from all tokens before it, written ones included; they share one set of masked forwards. After
    generating, ``attribute_span(cache, prompt_length)`` explains the answer; of a `chat`, ``tokens`` may be
    ``chat.followed_by(answer)``. ``targets``, a list with an entry for
    each position, ask for other tokens than those that stand there, each as in `attribute`; None keeps the token.

    ``through=(a, b)``: the model wrote its reasoning at ``a:b``, before the answer. Its tokens are explained as well,
    and from the last to the first, each passes its score on to the tokens before it, in proportion to its own scores
    of them. `SpanAttribution.through` is then what the answer owes to the prompt, and `SpanAttribution.hops` splits it
    by the number of reasoning tokens in between. Tokens between the reasoning and the answer keep their scores.
    """
    explain = method_of(method, options)
    reasoning, answer = span_predictions(cache, start, stop, targets, through, tokens)
    steps, last = explain.each([*reasoning, *answer]), answer[-1]
    *context, written = last.prompt.ids[: len(last) + 1].tolist()
    tokens_of_all = (*steps[-1].tokens, last.adapter.tokenizer.write(written, context))
    return SpanAttribution(tuple(steps[len(reasoning) :]), tokens_of_all, tuple(steps[: len(reasoning)]))


@one_at_a_time("cache")
def estimate_span(
    cache: Any,
    start: SupportsIndex,
    stop: SupportsIndex | None = None,
    *,
    targets: TargetLike | list[TargetLike] = None,
    through: Sequence[SupportsIndex] | None = None,
    tokens: Tokens = None,
    memory: float | int | None = None,
    method: MethodLike = "heta",
    **options: Any,
) -> Estimate:
    """What would `attribute_span` cost with these arguments, and what would be cheaper? As `estimate` says it."""
    explain = method_of(method, options)
    reasoning, answer = span_predictions(cache, start, stop, targets, through, tokens)
    return estimated(explain, [*reasoning, *answer], memory, together=True)


def span_predictions(
    cache: Any,
    start: SupportsIndex,
    stop: SupportsIndex | None,
    targets: TargetLike | list[TargetLike],
    through: Sequence[SupportsIndex] | None,
    tokens: Tokens,
) -> tuple[list[Prediction], list[Prediction]]:
    """The tokens of the reasoning, and those of the answer, to be explained."""
    adapter = ModelAdapter.of(cache)
    with adapter.undisturbed():
        cached = Activations.of(cache)
        first, last = span_of(len(cached[EMBED]), start, stop)
        reasoning = range(0) if through is None else reasoning_of(len(cached[EMBED]), through, first)
        each_target = one_each("targets", targets, last - first, "position")
        by_position = dict.fromkeys(reasoning) | dict(zip(range(first, last), each_target, strict=True))
        prepared = predictions(adapter, cached, by_position, tokens=tokens, follow=True, needed=last)
    return prepared[: len(reasoning)], prepared[len(reasoning) :]


@one_at_a_time("cache")
def attribute_batch(
    cache: Any,
    targets: TargetLike | list[TargetLike] = None,
    *,
    positions: SupportsIndex | list[SupportsIndex | None] | None = None,
    tokens: Any = None,
    attention_mask: Any = None,
    method: MethodLike = "heta",
    **options: Any,
) -> list[Attribution]:
    """`attribute` for each prompt of a cache of several, with the answers that each of them alone would get.

    ``targets`` and ``positions`` are lists, an entry for each prompt, or one value for all. ``attention_mask`` is 1 at
    real tokens and 0 at padding, which may be left or right; padding is not a position, and positions count without it.
    """
    explain = method_of(method, options)
    prepared = batch_predictions(cache, targets, positions, tokens, attention_mask, explain)
    attributions = []
    for number in range(len(prepared)):
        with about(f"prompt {number} of the batch"):
            attributions.append(explain(prepared.pop(0)))  # and with it what was kept for its runs
    return attributions


@one_at_a_time("cache")
def estimate_batch(
    cache: Any,
    targets: TargetLike | list[TargetLike] = None,
    *,
    positions: SupportsIndex | list[SupportsIndex | None] | None = None,
    tokens: Any = None,
    attention_mask: Any = None,
    memory: float | int | None = None,
    method: MethodLike = "heta",
    **options: Any,
) -> Estimate:
    """What would `attribute_batch` cost with these arguments, and what would be cheaper? As `estimate` says it."""
    explain = method_of(method, options)
    return estimated(explain, batch_predictions(cache, targets, positions, tokens, attention_mask, explain), memory)


def batch_predictions(
    cache: Any,
    targets: TargetLike | list[TargetLike],
    positions: SupportsIndex | list[SupportsIndex | None] | None,
    tokens: Any,
    attention_mask: Any,
    method: Method,
) -> list[Prediction]:
    """One of each prompt, which the method can explain."""
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
                method.check(prepared[-1])
    return prepared


def method_of(method: MethodLike, options: Mapping[str, Any]) -> Method:
    """The method of this name with these options, or the ready one that was given."""
    if isinstance(method, type) or not (isinstance(method, str | Method) or callable(method)):
        raise TypeError(
            f"method={brief(method)} must be a name, as 'heta', a ready method, as METHODS['lime'](samples=500), "
            "or a function (prediction) -> scores"
        )
    if not isinstance(method, str):
        if options:
            raise TypeError(f"{', '.join(options)}: options go with a method's name; this one has its own already")
        return method if isinstance(method, Method) else as_method(method)()
    if method not in METHODS:
        raise ValueError(
            f"method={brief(method)} is not in heta_lens.METHODS{hint(method.lower(), METHODS)}: "
            "`heta-lens methods` lists them, 'heta' first"
        )
    check_names(METHODS[method], options)
    return METHODS[method](**options)


def span_of(cached: int, start: Any, stop: Any) -> tuple[int, int]:
    """The positions to be explained, counted from the front."""
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
    """The positions of the reasoning, counted from the front, which end where the answer begins or before."""
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
    """The given ids of every prompt, padding included."""
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
    """Every prompt's ids, read off the cached embeddings."""
    ids = []
    for number, row in enumerate(rows):
        with about(f"prompt {number} of the batch"):
            ids.append(vocabulary.tokens(row[EMBED], needed=0))
    return ids


def one_each(name: str, given: Any, count: int, of: str) -> list[Any]:
    """A list's entries, one for each; anything else is meant for all."""
    given = given.tolist() if isinstance(given, Tensor | np.ndarray) else given
    if not isinstance(given, list):
        return [given] * count
    if len(given) != count:
        raise ValueError(f"{name}= has {len(given)} entries for {count} {of}s: a list has one for each")
    return given


@contextmanager
def about(what: str) -> Iterator[None]:
    """Say what an error is about."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError  # a subclass may want other arguments
        raise kind(f"{what}: {error}") from error
