"""SpanAttribution: the tokens that made the model write a whole stretch of tokens, with an attribution per target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from heta_lens._util.target_kinds import described, of_logits
from heta_lens.attribution import Attribution, Result
from heta_lens.diagnostics import Diagnostics


@dataclass(frozen=True, eq=False, repr=False)
class SpanAttribution(Result):
    """Attributions of the tokens of a span: each of the ``steps`` explains a target from all tokens before the target.

    ``tokens`` end with the last target. Scores of different targets are added as the paper adds them, although nothing
    makes their units the same: see ``balance``, or look at the steps. Words, sentences, spans, messages and roles are
    read from these sums.

    ``reasoning`` explains the tokens of the model's own reasoning in the same way, if the span was followed through
    the reasoning. Then tokens, words and so on are read from ``through``; ``direct`` reads ``total``.
    """

    kind: ClassVar[str] = "heta_lens.span"

    steps: tuple[Attribution, ...]
    tokens: tuple[str, ...]
    reasoning: tuple[Attribution, ...] = ()

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def start(self) -> int:
        """The position of the span's first token: the number of tokens of the prompt."""
        return len(self.steps[0])

    @property
    def targets(self) -> tuple[str, ...]:
        """The texts of the targets: a contrast with two sides, a function with a name."""
        written = [step.target_text for step in self.steps]
        texts = [
            text if isinstance(text, str) else " rather than ".join(side.strip(" ") or side for side in text)
            for text in written
        ]
        return tuple(
            of_logits(step.target) if callable(step.target) else text
            for text, step in zip(texts, self.steps, strict=True)
        )

    @property
    def matrix(self) -> Float[Tensor, "target source"]:
        """A row for each target: the scores of all tokens before the target, and zeros from the target on."""
        return torch.stack([pad(step.scores, (0, len(self.tokens) - len(step))) for step in self.steps])

    @property
    def total(self) -> Float[Tensor, "pos"]:
        """The paper's span attribution: the scores of each token before the span, summed over the targets."""
        return self.matrix[:, : self.start].sum(0)

    @property
    def through(self) -> Float[Tensor, "pos"]:
        """``total`` after every token of the reasoning has passed its score on, which leaves 0 at the reasoning.

        (A token of the reasoning whose own scores are all 0 keeps its score.) Nothing is lost: with scores ≥ 0, the sum
        is the sum of ``total``. With signs the sum of sizes stays the same: the score for the targets plus the score
        against the targets.
        """
        return self.hops.sum(0)

    @property
    def hops(self) -> Float[Tensor, "hop pos"]:
        """The rows whose sum is ``through``: straight from the answer, then by way of 1, 2, … reasoning tokens."""
        return self._hops.values

    @property
    def hop_shares(self) -> Float[Tensor, "hop"]:
        """The share of ``through`` in each row of ``hops``, by size."""
        sizes = self._hops.sizes.sum(1)
        return sizes / (sizes.sum() or 1)

    @cached_property
    def _hops(self) -> "Hops":
        if not self.reasoning:
            raise ValueError("this span was not followed through a reasoning: give attribute_span through=(a, b)")
        return hops(self.total, [step.scores for step in self.reasoning])

    @property
    def direct(self) -> "SpanAttribution":
        """The same span as if it had not been followed through the reasoning."""
        return replace(self, reasoning=())

    @property
    def summed(self) -> Attribution:
        """The targets together as an attribution, with the scores of ``through`` after a reasoning, else ``total``."""
        first, chosen = self.steps[0], {**(self.steps[0].diagnostics.chosen or {})}
        target, text = first.target, first.target_text
        if all(isinstance(step.target, int) for step in self.steps):
            text = "".join(self.targets)
        elif len(asked := dict.fromkeys(described(step.target, step.target_text) for step in self.steps)) > 1:
            target, text = frozenset(), ", ".join(asked)  # titles write the text of a set without quotes
        if self.reasoning:
            chosen["through"] = len(self.reasoning[0]), len(self.reasoning[0]) + len(self.reasoning)
        return replace(
            first,
            scores=self.through if self.reasoning else self.total,
            target=target,
            target_text=text,
            parts={},
            diagnostics=Diagnostics(
                chosen=chosen, user_hooks=first.diagnostics.user_hooks, masked_together=_masked_together(self.steps)
            ),
            interactions=None,
        )

    @property
    def stored(self) -> dict[str, Any]:
        steps = {name: [step.stored for step in getattr(self, name)] for name in ("steps", "reasoning")}
        return {**steps, "tokens": self.tokens}

    @classmethod
    def of_fields(cls, stored: Mapping[str, Any]) -> "SpanAttribution":
        steps, reasoning = (tuple(map(Attribution.of_fields, stored[name])) for name in ("steps", "reasoning"))
        return cls(steps, stored["tokens"], reasoning)

    def to_frame(self) -> pd.DataFrame:
        """Return the rows of `Attribution.to_frame` for each target, with the target and the target's position."""
        frames = [
            step.to_frame().assign(target=target, target_position=len(step))
            for step, target in zip(self.steps, self.targets, strict=True)
        ]
        return pd.concat(frames, ignore_index=True)


def _masked_together(steps: Sequence[Attribution]) -> Sequence[tuple[int, int, float]] | None:
    """Return the undivided spans before the first target, and the largest move of a target by each span."""
    searches = [step.diagnostics.masked_together for step in steps]
    if searches.count(None) == len(searches):
        return None
    within, together = len(steps[0]), list[tuple[int, int, float]]()
    for start, stop, moved in sorted(span for search in searches for span in search or () if span[0] < within):
        first, last, most = together.pop() if together and start < together[-1][1] else (start, stop, moved)
        together.append((first, min(max(last, stop), within), max(most, moved)))
    return together


class Hops(NamedTuple):
    """The scores that stay at each token after a number of hops; row 0 never came to a token of the reasoning.

    Shares have signs: a token that speaks against a token that speaks for the target speaks against the target. The
    sizes of a token's shares sum to 1, whatever the signs. So ``sizes``, the score for the target plus the score
    against the target, keep their sum from hop to hop; ``values`` are the score for minus the score against.
    """

    values: Float[Tensor, "hop pos"]
    sizes: Float[Tensor, "hop pos"]


def hops(scores: Float[Tensor, "pos"], written: Sequence[Float[Tensor, "_"]]) -> Hops:
    """Split a target's ``scores`` by the number of ``written`` tokens that a score passed through.

    A written token with a row of scores passes the target's score on to the earlier tokens, in proportion to the row.
    Written tokens among the earlier tokens pass the score on in turn. A written token with a row of zeros keeps the
    score.
    """
    start, stop = len(written[0]), len(written[0]) + len(written)
    rows = torch.stack([pad(row.double(), (0, len(scores) - len(row))) for row in written])
    shares = rows / rows.abs().sum(1, keepdim=True).clamp(min=1e-300)
    gives = shares.any(1)
    # A row for the score that speaks for the target, and a row for the score that speaks against the target.
    speaking = torch.stack([scores.double().clamp(min=0), -scores.double().clamp(max=0)])
    found = []
    for _ in range(len(written) + 1):  # every pass moves scores to the left
        moving = speaking[:, start:stop] * gives
        staying = speaking.clone()
        staying[:, start:stop] -= moving
        found.append(staying)
        if not moving.any():
            break
        speaking = moving @ shares.clamp(min=0) + moving.flip(0) @ -shares.clamp(max=0)
    by_hop = torch.stack(found)
    return Hops((by_hop[:, 0] - by_hop[:, 1]).to(scores), by_hop.sum(1).to(scores))
