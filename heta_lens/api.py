"""The one verb: `attribute`, for a token; and for the tokens of a span, and for a batch of prompts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, SupportsIndex, TypeAlias

from heta_lens._util.files import brief
from heta_lens._util.options import check_names, hint
from heta_lens.attribution import Attribution
from heta_lens.methods.base import Method, as_method
from heta_lens.methods.cost import Estimate, estimated
from heta_lens.methods.registry import METHODS, PRESETS, method_and_options
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.checks import Tokens
from heta_lens.prediction.from_cache import about, batch_predictions, span_predictions
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import TargetLike
from heta_lens.span_attribution import SpanAttribution

MISNAMED = {
    **dict.fromkeys(("end", "span"), "start and stop of attribute_span?"),
    **dict.fromkeys(("pos", "token_position", "index"), "position=?"),
    **dict.fromkeys(("contrast", "against", "foil"), "a pair, target=(why_this, rather_than_this)?"),
    **dict.fromkeys(("prompt", "text", "input_ids", "ids"), "tokens=, the ids that were run?"),
    **dict.fromkeys(("label", "answer", "target_token", "target_id"), "target=?"),
}
"""What people call arguments of these functions, which would otherwise be taken for options of the method."""

MethodLike: TypeAlias = str | Method | Callable[[Prediction], Any]
"""The name of a method or preset, a ready method, or a plain function."""


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
    were run, or the `chat` that was; without them they are read off the cached embeddings. ``method`` is the name of a
    method, whose ``options`` are those of its class, or of a `preset`; a ready one such as ``Heta.preset("released")``;
    or a function of the `Prediction` that returns a score for each context token.

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
    prepared = batch_predictions(cache, targets, positions, tokens, attention_mask, explain.check)
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
    return estimated(
        explain, batch_predictions(cache, targets, positions, tokens, attention_mask, explain.check), memory
    )


def method_of(method: MethodLike, options: Mapping[str, Any]) -> Method:
    """The method or preset of this name with these options, or the ready method that was given."""
    if isinstance(method, type) or not (isinstance(method, str | Method) or callable(method)):
        raise TypeError(
            f"method={brief(method)} must be a name, as 'heta', a ready method, as METHODS['lime'](samples=500), "
            "or a function (prediction) -> scores"
        )
    if not isinstance(method, str):
        if options:
            raise TypeError(f"{', '.join(options)}: options go with a method's name; this one has its own already")
        return method if isinstance(method, Method) else as_method(method)()
    method, options = method_and_options(method, options)
    if method not in METHODS:
        names, lower = [*PRESETS, *METHODS], method.lower()
        meant = f" (did you mean {lower!r}?)" if lower in METHODS or lower in PRESETS else hint(lower, names)
        raise ValueError(
            f"method={brief(method)} is not in heta_lens.METHODS or PRESETS{meant}: `heta-lens methods` lists them"
        )
    for name in options:
        if name in MISNAMED and name not in {field.name for field in fields(METHODS[method])}:
            raise TypeError(f"{name}= is not an option of {METHODS[method].name}: did you mean {MISNAMED[name]}")
    check_names(METHODS[method], options)
    return METHODS[method](**options)
