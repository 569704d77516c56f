"""SpanAttribution: which tokens made the model write a whole stretch of tokens, one attribution for each of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util import tensor_storage
from heta_lens._util.file_reading import brief
from heta_lens._util.html_view import View
from heta_lens._util.type_checks import check_names, check_types
from heta_lens.attribution import Attribution, Order, stored_fields, written_version
from heta_lens.diagnostics import Diagnostics
from heta_lens.grouped_scores import GroupedScores, Scored, ScoredText

FORMAT, VERSION = "heta_lens.span", 2


@dataclass(frozen=True, eq=False, repr=False)
class SpanAttribution(GroupedScores):
    """``steps`` explain the targets one by one, each from all tokens before it; ``tokens`` end with the last target.

    Scores of different targets are added as the paper adds them, although nothing makes their units the same: see
    ``balance``, or look at the steps. What is read by word, sentence, span of the text, message or role are these sums.
    """

    steps: tuple[Attribution, ...]
    tokens: tuple[str, ...]

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
        """The paper's span attribution: each prompt token's scores, summed over the targets."""
        return self.matrix[:, : self.start].sum(0)

    @property
    def cost(self) -> dict[str, int]:
        """What all steps took together: forwards (those that steps share once), backwards, Hessian–vector products."""
        costs = [step.diagnostics.cost for step in self.steps]
        total = {kind: sum(getattr(cost, kind) or 0 for cost in costs) for kind in ("forwards", "backwards", "hvps")}
        if (costs[0].forwards_shared_by or 1) == len(self):
            total["forwards"] -= (len(self) - 1) * (costs[0].forwards_shared or 0)
        return total

    # ------------------------------------------------------------------------------------------------ reading it
    def top(self, k: int = 10, by: Order = "score") -> list[Scored]:
        """The k prompt tokens with the highest totals, highest first, as in `Attribution.top`."""
        return self._summed.top(k, by)

    def to_frame(self) -> pd.DataFrame:
        """One row a pair of a target and a token before it: those of `Attribution.to_frame`, and whose they are."""
        frames = [
            step.to_frame().assign(target=target, target_position=len(step))
            for step, target in zip(self.steps, self.targets, strict=True)
        ]
        return pd.concat(frames, ignore_index=True)

    def plot(self) -> View:
        """Circuitsvis tokens, coloured by all targets together or by the one that is pointed at; needs no network."""
        from heta_lens.plots.circuitsvis_tokens import circuitsvis  # which imports this module

        return circuitsvis(self)

    # ---------------------------------------------------------------------------------------------------- keeping it
    def save(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file: tensors as they are, everything else in its JSON header."""
        steps, version = list(map(stored_fields, self.steps)), max(map(written_version, self.steps))
        tensor_storage.save(path, FORMAT, version, {"steps": steps, "tokens": self.tokens})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "SpanAttribution":
        """Read what `save` wrote; any other file is refused."""
        return tensor_storage.load(path, FORMAT, VERSION, cls._of, cls._check)

    @classmethod
    def _check(cls, value: Mapping[str, Any]) -> None:
        """Refuse what is not a span, by the types and lengths of its fields."""
        check_names(cls, value)
        check_types({"steps": Sequence[Mapping[str, Any]], "tokens": tuple[str, ...]}, value)
        if not value["steps"]:
            raise ValueError("it has no steps")
        for at, step in enumerate(value["steps"]):
            _of_step(at, Attribution._check, step)
        counts, tokens = [len(step["tokens"]) for step in value["steps"]], len(value["tokens"])
        if counts != [*range(tokens - len(counts), tokens)]:
            raise ValueError(f"its steps have {brief(counts)} tokens, and must each have one more, up to {tokens - 1}")

    @classmethod
    def _of(cls, value: Mapping[str, Any]) -> "SpanAttribution":
        steps = [_of_step(at, Attribution._of, step) for at, step in enumerate(value["steps"])]
        return cls(tuple(steps), value["tokens"])

    def __repr__(self) -> str:
        return repr(self._summed)

    @property
    def title(self) -> str:
        return self._summed.title

    @property
    def _plain(self) -> bool:
        """Whether every target is a token."""
        return all(isinstance(step.target, int) for step in self.steps)

    @property
    def _scored_text(self) -> ScoredText:
        return self._summed

    @property
    def _summed(self) -> Attribution:
        """The totals beside the prompt's tokens, to be read like any other scores."""
        first = self.steps[0]
        texts = self.targets if self._plain else dict.fromkeys(self.targets)  # one function serves many steps
        return replace(
            first,
            scores=self.total,
            target=first.target if self._plain else frozenset(),  # whose text is shown as it is
            target_text=("" if self._plain else ", ").join(texts),
            parts={},
            diagnostics=Diagnostics(chosen=first.diagnostics.chosen),
            interactions=None,
        )


def _written(step: Attribution) -> str:
    text = step.target_text if isinstance(step.target_text, str) else " / ".join(step.target_text)
    return f"{text}(logits)" if callable(step.target) else text


def _of_step(at: int, make: Callable[[Mapping[str, Any]], Any], step: Mapping[str, Any]) -> Any:
    """What is made of a step; one that is wrong is named."""
    try:
        return make(step)
    except (ValueError, TypeError) as error:
        raise ValueError(f"step {at}: {error}") from None
