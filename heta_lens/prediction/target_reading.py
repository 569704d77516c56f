"""What is read of a target in logits: how likely it is, or what a function gives; and what the target is called."""

from abc import ABC, abstractmethod
from functools import cached_property

from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.target_kinds import Side, Target, any_of, described, function_name, members, sides
from heta_lens.model.adapter import ModelAdapter
from heta_lens.prediction.readout import Scale, joint_logit, log_softmax, on_scale
from heta_lens.prediction.target_function import check_connected, values_of


class TargetReading(ABC):
    """The part of a `Prediction` that is about its target."""

    target: Target

    @property
    @abstractmethod
    def ids(self) -> Int[Tensor, "pos"]: ...

    @property
    @abstractmethod
    def adapter(self) -> ModelAdapter: ...

    @property
    @abstractmethod
    def log_probs(self) -> Float[Tensor, "vocab"]: ...

    @property
    @abstractmethod
    def logits(self) -> Float[Tensor, "vocab"]: ...

    def read(self, logits: Float[Tensor, "*batch vocab"], scale: Scale) -> Float[Tensor, "*batch"]:
        """How likely the target is; for a contrast, how much more likely the first of the two.

        Of a function it is what that gives, on a scale of its own.
        """
        if callable(self.target):
            if logits.requires_grad:
                self.check_differentiable()
            return values_of(self.target, logits)
        first, *second = [on_scale(logits, tokens, scale) for tokens in sides(self.target)]
        return first - second[0] if second else first

    def check_differentiable(self) -> None:
        """Refuse a function as the target that has no gradient by the clean logits."""
        _ = self._connected  # which is found out once

    @cached_property
    def _connected(self) -> bool:
        if callable(self.target):
            check_connected(self.target, self.logits)
        return True

    def objective(
        self, logits: Float[Tensor, "*batch vocab"], log_probs: Float[Tensor, "*batch vocab"] | None = None
    ) -> Float[Tensor, "*batch"]:
        """g: the target's log-probability, a contrast's difference, or what a function gives.

        ``log_probs`` are of these logits, where they are known already.
        """
        if callable(self.target) or not all(isinstance(tokens, int) for tokens in sides(self.target)):
            return self.read(logits, "log_prob")
        log_probs = log_softmax(logits) if log_probs is None else log_probs
        first, *second = [joint_logit(log_probs, token) for token in sides(self.target)]
        return first - second[0] if second else first

    @property
    def value(self) -> Float[Tensor, ""]:
        """g of the clean prediction."""
        plain = not callable(self.target)
        return self.objective(self.log_probs if plain else self.logits, self.log_probs)

    @property
    def target_text(self) -> str | tuple[str, ...]:
        """The target as it is written after the context; of a contrast, both sides; of a function, its name."""
        if callable(self.target):
            return function_name(self.target)
        texts = tuple(map(self._written, sides(self.target)))
        return texts if isinstance(self.target, tuple) else texts[0]

    def _written(self, side: Side) -> str:
        texts = [self.adapter.tokenizer.write(token, self.ids.tolist()) for token in members(side)]
        return any_of(texts) if isinstance(side, frozenset) else texts[0]

    @property
    def target_words(self) -> str:
        """The target in words, for a title."""
        return described(self.target, self.target_text)
