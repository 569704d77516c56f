"""The verb `attribute`, for a token, a span or a batch of prompts, and `estimate` for the cost."""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, SupportsIndex

from heta_lens.attribution import Attribution
from heta_lens.methods.cost import Estimate, estimated
from heta_lens.methods.registry import MethodLike, method_of
from heta_lens.model.lock import holding, one_at_a_time
from heta_lens.prediction.cache import Tokens
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.spans_and_batches import about, batch_predictions, prompts_in, span_predictions
from heta_lens.prediction.target import TargetLike
from heta_lens.span_attribution import SpanAttribution


def attribute(
    cache: Any,
    target: TargetLike = None,
    *,
    position: SupportsIndex | None = None,
    tokens: Tokens = None,
    method: MethodLike = "heta",
    **options: Any,
) -> Attribution:
    """Score how much every context token mattered for the predicted token.

    ``cache`` is the cache that ``model.run_with_cache(tokens)`` returned for one prompt.

    ``target`` is the token to explain: an id, or a text, leading space included (if the text is no token, the leading
    space is added or removed); by default the model's most likely next token. A set ``{a, b}`` of tokens stands for the
    probability that any of them comes next, and a pair ``(a, b)`` of tokens or sets for the question why a rather than
    b. A function gets the next token's logits (``Float[Tensor, "vocab"]``, not normalised, float32 or better), and
    returns the number to explain as a tensor.

    ``position=p`` explains the token at p of the cached prompt by the tokens before p. ``tokens`` are the ids that were
    run, or the `chat`; by default, ids are read off the cached embeddings. ``method`` is the name of a method or a
    `preset`, with ``options`` of its class; a ready method such as ``Heta.preset("released")``; or a function of the
    `Prediction` that returns a score for every context token.

    Example:
        >>> model = heta_lens.load_demo_model()
        >>> tokens = model.to_tokens("Leo put the key in the box. Question: Where did Leo put the key? Answer: in the")
        >>> logits, cache = model.run_with_cache(tokens)
        >>> attribution = heta_lens.attribute(cache, " box", tokens=tokens, method="leave_one_out")
        >>> [token.text for token in attribution.top(2)]
        [' box', ' the']
    """
    explain, begun = method_of(method, options), perf_counter()
    with holding(cache):
        result = explain(Prediction.from_cache(cache, target, position=position, tokens=tokens, rules=explain.rules))
    cost = replace(result.diagnostics.cost, seconds=perf_counter() - begun)  # all that was waited, with the checks
    return replace(result, diagnostics=replace(result.diagnostics, cost=cost))


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
    """Explain the tokens at ``start:stop`` of the cached prompt (by default, to the end), such as a model's answer.

    Every token of the span is explained by all tokens before it, with one set of masked forwards for the whole span.
    After generating, ``attribute_span(cache, prompt_length)`` explains the answer; for a `chat`, ``tokens`` may be
    ``chat.followed_by(answer)``. ``targets``, a list with an entry per position, replaces the written tokens, in
    the forms of `attribute`; None keeps the written token.

    ``through=(a, b)``: the model wrote its reasoning at ``a:b``, before the answer. Reasoning tokens are explained as
    well, and from the last to the first, a reasoning token passes its score on to the tokens before it, in proportion
    to their scores. `SpanAttribution.through` is then the score of the prompt's tokens, and `SpanAttribution.hops`
    splits this score by the number of reasoning tokens in between. Tokens between the reasoning and the answer keep
    their scores.

    Example:
        >>> answer = heta_lens.attribute_span(cache, -2, tokens=tokens, method="fast")
        >>> answer.matrix.shape  # a row per token of the answer, a column per token of the text
        torch.Size([2, 22])
    """
    explain = method_of(method, options)
    reasoning, answer = span_predictions(cache, start, stop, targets, through, tokens, explain.rules)
    steps, last = explain.each([*reasoning, *answer]), answer[-1]
    *context, written = last.prompt.ids[: len(last) + 1].tolist()
    tokens_of_all = (*steps[-1].tokens, last.tokenizer.write(written, context))
    return SpanAttribution(tuple(steps[len(reasoning) :]), tokens_of_all, tuple(steps[: len(reasoning)]))


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
    """Run `attribute` for every prompt of a cache of several prompts, with the same scores as for each prompt alone.

    ``targets`` and ``positions`` are lists with an entry per prompt, or a value for all prompts. ``attention_mask`` is
    1 at real tokens and 0 at padding, on the left or right; positions count without padding.

    Example:
        >>> text = "{0} put the key in the {1}. Question: Where did {0} put the key? Answer: in the"
        >>> batch = model.to_tokens([text.format("Leo", "box"), text.format("Mia", "drawer")])
        >>> logits, cache = model.run_with_cache(batch)
        >>> [each.target_text for each in heta_lens.attribute_batch(cache, tokens=batch, method="fast")]
        [' box', ' drawer']
    """
    explain = method_of(method, options)
    prepared = batch_predictions(cache, targets, positions, tokens, attention_mask, explain.check)
    attributions = []
    for number in range(len(prepared)):
        with about(f"prompt {number} of the batch"):
            attributions.append(explain(prepared.pop(0)))  # and with it what was kept for its runs
    return attributions


@one_at_a_time("cache")
def estimate(
    cache: Any,
    target: TargetLike | list[TargetLike] = None,
    *,
    position: SupportsIndex | slice | list[SupportsIndex | None] | None = None,
    through: Sequence[SupportsIndex] | None = None,
    tokens: Any = None,
    attention_mask: Any = None,
    memory: float | int | None = None,
    method: MethodLike = "heta",
    **options: Any,
) -> Estimate:
    """Estimate the cost of `attribute`, `attribute_span` or `attribute_batch`, and of cheaper options.

    The arguments are those of `attribute`. ``position=slice(start, stop)`` asks for a span, all of its targets
    together, and a cache of several prompts for a batch, with lists of targets and positions where prompts differ.

    A few runs are timed. ``memory`` is the number of bytes to spare, by default half of the free memory; the proposed
    options fit in this memory.
    """
    explain = method_of(method, options)
    if isinstance(position, slice):
        if attention_mask is not None or position.step is not None:
            raise ValueError(f"position={position} is a span of one prompt: leave attention_mask= and a step out")
        reasoning, answer = span_predictions(cache, position.start, position.stop, target, through, tokens)
        return estimated(explain, [*reasoning, *answer], memory, together=True)
    if through is not None:
        raise ValueError(f"through={through} follows a span: give its place too, position=slice(start, stop)")
    if isinstance(target, list) or isinstance(position, list) or attention_mask is not None or prompts_in(cache) > 1:
        predictions = batch_predictions(cache, target, position, tokens, attention_mask, explain.check)
    else:
        predictions = [Prediction.from_cache(cache, target, position=position, tokens=tokens)]
    return estimated(explain, predictions, memory)
