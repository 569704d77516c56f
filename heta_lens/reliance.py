"""Context reliance: which tokens of an answer depend on a passage of the prompt, and on which of its tokens.

Both steps are those of PECoRe (Sarti et al., ICLR 2024), as inseq's ``attribute-context`` takes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any, SupportsIndex, TypeAlias

import pandas as pd
import torch
from jaxtyping import Float, Int
from rich.cells import cell_len, set_cell_size
from torch import Tensor

from heta_lens._util.files import brief
from heta_lens._util.html_view import View
from heta_lens._util.numerics import kl
from heta_lens._util.options import check_at_least, check_token, is_whole
from heta_lens._util.text import tokens_of
from heta_lens.attribution import Attribution, Scored, ScoredList, ends
from heta_lens.methods.base import refusal
from heta_lens.methods.registry import MethodLike, method_of
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import lean_names_filter
from heta_lens.model.lock import one_at_a_time
from heta_lens.model.tokenizer import check_length, locate
from heta_lens.prediction.cache import Activations, Rules, Tokens
from heta_lens.prediction.chat import ChatPrompt, PromptLike, read_prompt
from heta_lens.prediction.generation import continuation
from heta_lens.prediction.prediction import Prediction, predictions
from heta_lens.span_attribution import SpanAttribution

Context: TypeAlias = str | tuple[SupportsIndex, SupportsIndex]


@dataclass(frozen=True, eq=False, repr=False)
class ContextReliance:
    """How much each token of an answer depends on the context, and the attributions of those that do.

    - ``tokens``: the prompt and the answer, which begins at ``start``
    - ``answer``: the answer's text, in which several tokens may write one character
    - ``context``: the passage is at ``context[0]:context[1]``
    - ``divergences``: for each token of the answer, KL(without the context ‖ with it) of the prediction, in nats
    - ``threshold``: tokens with at least this divergence are explained
    - ``instead``: the model's most likely token without the context
    - ``changes``: True where the most likely token differs with the context, also below the threshold
    - ``steps``: an attribution for each token that depends on the context, against the token without the context
    """

    tokens: tuple[str, ...]
    start: int
    answer: str
    context: tuple[int, int]
    divergences: Float[Tensor, "answer"]
    threshold: float
    instead: tuple[str, ...]
    changes: tuple[bool, ...]
    steps: tuple[Attribution, ...]

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the tokens that depend on the context."""
        return tuple(map(len, self.steps))

    def sources(self, k: int = 3) -> dict[int, ScoredList[Scored]]:
        """Return, for each token that depends on the context, the k tokens of the context with the highest scores."""
        inside = range(*self.context)
        outside = [[row for row in range(len(step)) if row not in inside] for step in self.steps]
        found = zip(self.steps, outside, strict=True)
        return {len(step): step.without(rows).top(k) for step, rows in found}

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each token of the answer."""
        positions = range(self.start, len(self.tokens))
        return pd.DataFrame(
            {
                "position": positions,
                "token": self.tokens[self.start :],
                "divergence": self.divergences.tolist(),
                "depends": [position in self.positions for position in positions],
                "instead": self.instead,
                "changes": self.changes,
            }
        )

    @property
    def title(self) -> str:
        count, (first, stop) = len(self.divergences), self.context
        found = f"{len(self.steps)} of {count} tokens of the answer depend on the context at {first}–{stop - 1}"
        return f"{found}; the most likely token changes at {more} more" if (more := len(self._marked)) else found

    @property
    def _marked(self) -> set[int]:
        """The positions below the threshold at which the most likely token changes."""
        return {self.start + at for at, changes in enumerate(self.changes) if changes} - {*self.positions}

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The table that is printed, under ``COLUMNS``."""
        found, sources = list[tuple[str, ...]](), self.sources()
        for position, token, divergence, _, instead, _ in self.to_frame().itertuples(index=False):
            found_in = [source for source in sources.get(position, ()) if source.score > 0]
            scored = [f"{text!r} at {ends(places)} ({score:.3g})" for text, score, places in found_in]
            without = f"{instead!r}{' *' * (position in self._marked)}"
            found.append((str(position), repr(token), f"{divergence:.3g}", without, ", ".join(scored)))
        return found

    @property
    def rule(self) -> str:
        below = "; * below that, but the most likely token changes" * bool(self._marked)
        return f"threshold: KL(without it ‖ with it) ≥ {self.threshold:.3g} nats{below}"

    def __repr__(self) -> str:
        rows = [COLUMNS, *self.rows]
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(set_cell_size, row, widths)).rstrip() for row in rows]
        return "\n".join([self.title, *lines, self.rule])

    def plot(self) -> View:
        """Return the page of the tokens that depend on the context, with the tokens that each is from."""
        from heta_lens.plots import page
        from heta_lens.plots.titles_and_notes import bare

        span = SpanAttribution(self.steps, self.tokens[: len(self.steps[-1]) + 1])
        moved = ((self.tokens[at], float(self.divergences[at - self.start])) for at in self.positions)
        nats = ", ".join(f"“{bare(token)}” by {moves:.3g} nats" for token, moves in moved)
        return page(span, note=f"{self.title}: {nats}")

    def _repr_html_(self) -> str:
        return self.plot().fragment


COLUMNS = ("position", "token", "nats", "without it", "from the context")


@one_at_a_time("model")
def context_reliance(
    model: Any,
    prompt: PromptLike,
    context: Context,
    answer: "str | Int[Tensor, '*batch pos'] | Sequence[int] | int" = 20,
    *,
    threshold: float = 1.0,
    method: MethodLike = "fast",
    **options: Any,
) -> ContextReliance:
    """Find the tokens of an answer that depend on a context, and explain each by the tokens of the prompt.

    A token depends on the context if its prediction moves when the context is deleted: if KL(without ‖ with) is at
    least the mean over the answer plus ``threshold`` standard deviations. One token is always reported; a low KL then
    means that the passage mattered little. Each reported token is explained by ``method``, with ``options``: why this
    token, rather than the token that the model would have written without the context?

    ``prompt`` is a text, the messages of a chat, a `chat` or ids. ``context`` is a passage that occurs once in the
    prompt, or positions ``(start, stop)``. ``answer`` is a text, ids, or the number of tokens that the model may write.
    Hooks on the model stay on, and see the shorter prompt too.

    Example:
        >>> leo, mia = "Leo put the key in the box.", "Mia put the key in the bag."
        >>> story = f"{leo} {mia} Question: Where did Leo put the key? Answer: in the"
        >>> reliance = heta_lens.context_reliance(model, story, leo, answer=1)
        >>> reliance.answer, reliance.instead  # with the context, and without it
        (' box', (' bag',))
    """
    explain, adapter = method_of(method, options), ModelAdapter(model)
    if "contrast" not in explain.takes:
        raise refusal(explain, "contrast", "of the written token and the token without the context")
    check_at_least("threshold", threshold, 0)
    tokens = read_prompt(model, prompt)
    ids = tokens.tokens if isinstance(tokens, ChatPrompt) else tokens
    first, stop = _places(adapter, ids[0], context)
    written = _answer(adapter, ids, answer)
    whole = torch.cat([ids, ids.new_tensor([written])], 1)
    check_length(model, whole.shape[1], "prompt and answer are")
    asked = tokens.followed_by(written) if isinstance(tokens, ChatPrompt) else whole
    predicted = _predicted(adapter, whole, asked, ids.shape[1], explain.rules)
    deleted = torch.cat([whole[:, :first], whole[:, stop:]], 1)
    before = _predicted(adapter, deleted, deleted, ids.shape[1] - (stop - first))

    both = zip(before, predicted, strict=True)
    divergences = torch.stack([kl(one.log_probs, other.log_probs) for one, other in both])
    spread = float(divergences.std()) if len(divergences) > 1 else 0.0
    least = min(float(divergences.mean()) + threshold * spread, float(divergences.max()))
    instead, likely = ([int(one.log_probs.argmax()) for one in each] for each in (before, predicted))
    chosen = [at for at, divergence in enumerate(divergences.tolist()) if divergence >= least]
    steps = explain.each([_rather(predicted[at], instead[at]) for at in chosen])
    every = whole[0].tolist()
    return ContextReliance(
        tuple(adapter.tokenizer.write(token, every[:place]) for place, token in enumerate(every)),
        ids.shape[1],
        adapter.tokenizer.decode(every)[len(adapter.tokenizer.decode(every[: ids.shape[1]])) :],
        (first, stop),
        divergences,
        least,
        tuple(adapter.tokenizer.write(token, one.ids.tolist()) for token, one in zip(instead, before, strict=True)),
        tuple(one != other for one, other in zip(instead, likely, strict=True)),
        tuple(steps),
    )


def _places(adapter: ModelAdapter, ids: Int[Tensor, "pos"], context: Any) -> tuple[int, int]:
    """Return where the context begins and ends; refuse a context that is not in the prompt, or all of it."""
    if isinstance(context, str):
        found = tokens_of(context, *locate(adapter.tokenizer.decode, ids.tolist()))
        start, stop = found[0], found[-1] + 1
    elif isinstance(context, tuple | list) and len(context) == 2 and all(map(is_whole, context)):
        start, stop = (index(place) + len(ids) * (index(place) < 0) for place in context)
    else:
        raise TypeError(f"context={brief(context)} must be a passage of the prompt, or positions (start, stop)")
    least = int(int(ids[0]) == adapter.tokenizer.bos)  # models need the token that begins a text
    if not least <= start < stop <= len(ids):
        raise ValueError(
            f"context=({start}, {stop}) must be positions start < stop, from {least} to {len(ids)}, the prompt's end"
        )
    if stop - start == len(ids):
        raise ValueError(
            "the context is the whole prompt: without it, there is nothing that the model could go on from"
        )
    return start, stop


def _answer(adapter: ModelAdapter, ids: Int[Tensor, "1 pos"], given: Any) -> list[int]:
    """Return the tokens of the answer, written by the model if how many are ``given``."""
    answer: Any = torch.tensor(given) if isinstance(given, list | tuple) and all(map(is_whole, given)) else given
    if isinstance(answer, Tensor) and answer.ndim:
        written = answer.flatten().tolist()
        if 0 < len(written) == answer.shape[-1] and all(map(is_whole, written)):
            for token in written:
                check_token("answer", token, adapter.vocabulary)
            return written
    elif is_whole(answer):
        check_at_least("answer", index(answer), 1)
        return continuation(adapter, ids, index(answer))
    elif isinstance(answer, str) and answer:
        return Prediction.from_cache(adapter.cache(ids, lean_names_filter), tokens=ids).spell(answer)
    raise TypeError(f"answer={brief(answer)} must be a text, the ids of one, or how many tokens the model may write")


def _predicted(
    adapter: ModelAdapter, ids: Int[Tensor, "1 pos"], tokens: Tokens, start: int, rules: Rules | None = None
) -> Sequence[Prediction]:
    """Make the predictions of all tokens from ``start`` on."""
    cached, targets = Activations.of(adapter.cache(ids, lean_names_filter)), dict.fromkeys(range(start, ids.shape[1]))
    with adapter.undisturbed():
        return predictions(adapter, cached, targets, tokens=tokens, follow=True, rules=rules)


def _rather(prediction: Prediction, instead: int) -> Prediction:
    """Return the question why the written token, rather than another."""
    written = prediction.target
    assert isinstance(written, int)
    return prediction if written == instead else replace(prediction, target=(written, instead))
