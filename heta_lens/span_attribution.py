"""SpanAttribution: which tokens made the model write a whole stretch of tokens, one attribution for each of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import Any, NamedTuple

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from heta_lens._util import storage
from heta_lens._util.files import brief
from heta_lens._util.html_view import View
from heta_lens._util.options import check_field_names, check_types
from heta_lens.attribution import Attribution, Order, stored_fields, written_version
from heta_lens.diagnostics import Diagnostics
from heta_lens.grouped_scores import GroupedScores, Scored, ScoredList, ScoredText

# ---------------------------------------------------------------------------------------------------------- score hops
# Scores that are passed on: from tokens that a model wrote itself to the tokens that made it write them.
#
# A written token gives what it has to the tokens before it, in proportion to its own scores of them. What it gives may
# come to another written token, which passes it on in turn, so that scores arrive in hops.


class Hops(NamedTuple):
    """What stays at each token after so many hops: row 0 is what never came to a written token.

    Shares have signs: what speaks against a token that speaks for the target speaks against the target. Their sizes sum
    to 1, whatever the signs, so that ``sizes``, what speaks for the target plus what speaks against it, is what nothing
    is lost of; ``values`` is what speaks for it minus what speaks against it.
    """

    values: Float[Tensor, "hop pos"]
    sizes: Float[Tensor, "hop pos"]


def hops(scores: Float[Tensor, "pos"], written: Sequence[Float[Tensor, "_"]]) -> Hops:
    """``scores`` of a target are passed on by the ``written`` tokens, each by its scores of all tokens before it.

    A written token all of whose own scores are 0 has nothing to go by, and keeps what it has.
    """
    start, stop = len(written[0]), len(written[0]) + len(written)
    shares = torch.stack([pad(_shares(row.double()), (0, len(scores) - len(row))) for row in written])
    gives = shares.any(1)
    speaking = torch.stack([scores.double().clamp(min=0), -scores.double().clamp(max=0)])  # for the target, and against
    rows = []
    for _ in range(len(written) + 1):  # what moves, moves to the left
        moving = speaking[:, start:stop] * gives
        staying = speaking.clone()
        staying[:, start:stop] -= moving
        rows.append(staying)
        if not moving.any():
            break
        speaking = moving @ shares.clamp(min=0) + moving.flip(0) @ -shares.clamp(max=0)
    by_hop = torch.stack(rows)
    return Hops((by_hop[:, 0] - by_hop[:, 1]).to(scores), by_hop.sum(1).to(scores))


def _shares(row: Float[Tensor, "source"]) -> Float[Tensor, "source"]:
    """The row divided by the sum of its sizes, which may be so large or small that their sum is no number."""
    largest = row.abs().max()
    scaled = row / largest if largest > 0 else row
    return scaled / scaled.abs().sum().clamp(min=1)


FORMAT, VERSION = "heta_lens.span", 2


@dataclass(frozen=True, eq=False, repr=False)
class SpanAttribution(GroupedScores):
    """``steps`` explain the targets one by one, each from all tokens before it; ``tokens`` end with the last target.

    Scores of different targets are added as the paper adds them, although nothing makes their units the same: see
    ``balance``, or look at the steps. What is read by word, sentence, span of the text, message or role are these sums.

    ``reasoning`` explains the tokens of the model's own reasoning in the same way, where the span was followed through
    it. Then ``through`` is what is read, by token, word, sentence and so on; ``direct`` reads ``total``.
    """

    steps: tuple[Attribution, ...]
    tokens: tuple[str, ...]
    reasoning: tuple[Attribution, ...] = ()

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def start(self) -> int:
        """Where the span begins: as many tokens belong to the prompt."""
        return len(self.steps[0])

    @property
    def targets(self) -> tuple[str, ...]:
        """Each step's target as it is written; a contrast as both sides, a function as its name."""
        return tuple(map(_written, self.steps))

    @property
    def matrix(self) -> Float[Tensor, "target source"]:
        """A row for each target: the scores of all tokens before it, and zeros from itself on."""
        rows = [torch.nn.functional.pad(step.scores, (0, len(self.tokens) - len(step))) for step in self.steps]
        return torch.stack(rows)

    @property
    def total(self) -> Float[Tensor, "pos"]:
        """The paper's span attribution: the scores of each token before the span, summed over the targets."""
        return self.matrix[:, : self.start].sum(0)

    @property
    def through(self) -> Float[Tensor, "pos"]:
        """``total`` after every token of the reasoning has passed on what it had, which leaves 0 there.

        (One that has no scores of its own to go by keeps it.) Nothing is lost: with scores ≥ 0, the sum is that of
        ``total``. With signs it is the sum of sizes, of what speaks for the targets plus what speaks against them.
        """
        return self.hops.sum(0)

    @property
    def hops(self) -> Float[Tensor, "hop pos"]:
        """The rows that ``through`` is the sum of: straight from the answer, then by way of 1, 2, … such tokens."""
        return self._hops.values

    @property
    def hop_shares(self) -> Float[Tensor, "hop"]:
        """How much of ``through`` came in each row of ``hops``, by size."""
        sizes = self._hops.sizes.sum(1)
        return sizes / (sizes.sum() or 1)

    @property
    def direct(self) -> "SpanAttribution":
        """The same without having been followed through the reasoning."""
        return replace(self, reasoning=())

    @property
    def summed(self) -> Attribution:
        """All targets together as one attribution: ``through`` where there is a reasoning, or else ``total``."""
        return _summed(self)

    @property
    def cost(self) -> dict[str, int]:
        """What all steps took together: forwards (those that steps share once), backwards, Hessian–vector products."""
        costs = [step.diagnostics.cost for step in (*self.reasoning, *self.steps)]
        total = {kind: sum(getattr(cost, kind) or 0 for cost in costs) for kind in ("forwards", "backwards", "hvps")}
        if (costs[0].forwards_shared_by or 1) == len(costs):
            total["forwards"] -= (len(costs) - 1) * (costs[0].forwards_shared or 0)
        return total

    # ------------------------------------------------------------------------------------------------ reading it
    def top(self, k: int = 10, by: Order = "score", *, special: bool = False) -> ScoredList[Scored]:
        """The k tokens before the span with the highest totals, highest first, as in `Attribution.top`."""
        return self.summed.top(k, by, special=special)

    def to_frame(self) -> pd.DataFrame:
        """One row per pair of a target and a token before it: those of `Attribution.to_frame`, and whose they are."""
        frames = [
            step.to_frame().assign(target=target, target_position=len(step))
            for step, target in zip(self.steps, self.targets, strict=True)
        ]
        return pd.concat(frames, ignore_index=True)

    def plot(self, *, special: bool = False) -> View:
        """The answer after the prompt, and of every target what made it: a view as `Attribution.plot` gives it."""
        from heta_lens.plots.page import page  # which imports this module

        return page(self, special=special)

    # ---------------------------------------------------------------------------------------------------- keeping it
    def save(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file: tensors as they are, everything else in its JSON header."""
        value: dict[str, Any] = {"steps": list(map(stored_fields, self.steps)), "tokens": self.tokens}
        version = max(map(written_version, self.steps))
        if self.reasoning:
            value, version = value | {"reasoning": list(map(stored_fields, self.reasoning))}, VERSION
        storage.save(path, FORMAT, version, value)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "SpanAttribution":
        """Read what `save` wrote; any other file is refused."""
        return storage.load(path, FORMAT, VERSION, cls._of, cls._check)

    @classmethod
    def _check(cls, value: Mapping[str, Any]) -> None:
        """Refuse what is not a span, by the types and lengths of its fields."""
        check_field_names(cls, value)
        _check_steps(value)

    @classmethod
    def _of(cls, value: Mapping[str, Any]) -> "SpanAttribution":
        steps, reasoning = (
            tuple(_of_step(name, at, Attribution._of, step) for at, step in enumerate(value.get(name, ())))
            for name in ("steps", "reasoning")
        )
        return cls(steps, value["tokens"], reasoning)

    def __repr__(self) -> str:
        return "\n".join([repr(self.summed), *self._ways])

    @property
    def title(self) -> str:
        return self.summed.title

    @property
    def notes(self) -> list[str]:
        """How to read the scores, and how they came to the prompt through the reasoning."""
        return [*self.summed.notes, *self._ways]

    @property
    def _ways(self) -> list[str]:
        return _ways(self.hop_shares) if self.reasoning else []

    @cached_property
    def _hops(self) -> Hops:
        if not self.reasoning:
            raise ValueError("this span was not followed through a reasoning: give attribute_span through=(a, b)")
        return hops(self.total, [step.scores for step in self.reasoning])

    @property
    def _scored_text(self) -> ScoredText:
        return self.summed


def _summed(span: SpanAttribution) -> Attribution:
    """What is read of the tokens before the span, as other scores are."""
    plain = all(isinstance(step.target, int) for step in span.steps)
    texts = span.targets if plain else dict.fromkeys(span.targets)  # one function serves many steps
    chosen, first = {**(span.steps[0].diagnostics.chosen or {})}, span.steps[0]
    if span.reasoning:
        chosen["through"] = len(span.reasoning[0]), len(span.reasoning[0]) + len(span.reasoning)
    return replace(
        first,
        scores=span.through if span.reasoning else span.total,
        target=first.target if plain else frozenset(),  # whose text is shown as it is
        target_text=("" if plain else ", ").join(texts),
        parts={},
        diagnostics=Diagnostics(chosen=chosen),
        interactions=None,
    )


def _written(step: Attribution) -> str:
    text = step.target_text if isinstance(step.target_text, str) else " / ".join(step.target_text)
    return f"{text}(logits)" if callable(step.target) else text


def _ways(hop_shares: Float[Tensor, "hop"]) -> list[str]:
    """How the score came to the prompt: straight, or through how many reasoning tokens."""
    straight, once, twice, *more = [*hop_shares.tolist(), 0.0, 0.0]
    by_way = {"one": once, "two": twice, "more": sum(more)}
    return [
        f"{straight:.0%} of the score came straight from the answer, {sum(by_way.values()):.0%} through the reasoning",
        "by the reasoning tokens on the way: " + ", ".join(f"{share:.0%} {name}" for name, share in by_way.items()),
    ]


def _check_steps(value: Mapping[str, Any]) -> None:
    """Refuse steps that are no attributions, each of a token more than the one before it."""
    many = Sequence[Mapping[str, Any]]
    check_types({"steps": many, "tokens": tuple[str, ...], "reasoning": many}, value)
    if not value["steps"]:
        raise ValueError("it has no steps")
    counts = {
        name: [len(_of_step(name, at, Attribution._check, step)["tokens"]) for at, step in enumerate(value[name])]
        for name in ("steps", "reasoning")
        if name in value
    }
    _check_counts("steps", counts["steps"], len(value["tokens"]))
    if counts.get("reasoning"):
        _check_counts("reasoning", counts["reasoning"], min(counts["steps"][0], counts["reasoning"][-1] + 1))


def _of_step(name: str, at: int, make: Callable[[Mapping[str, Any]], Any], step: Mapping[str, Any]) -> Any:
    """What is made of a step, if anything; one that is wrong is named."""
    try:
        return make(step) or step
    except (ValueError, TypeError) as error:
        raise ValueError(f"{'step' if name == 'steps' else name} {at}: {error}") from None


def _check_counts(name: str, counts: Sequence[int], end: int) -> None:
    """Refuse steps that do not each have one token more, up to the last before ``end``."""
    if list(counts) != [*range(end - len(counts), end)]:
        raise ValueError(f"its {name} have {brief(counts)} tokens, and must each have one more, up to {end - 1}")
