"""What a metric evaluates: a prompt with what is known about it, a prediction, and how a method explained it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from heta_lens._util.short_repr import short_repr
from heta_lens.attribution import Attribution
from heta_lens.data.instance import Instance
from heta_lens.metrics.candidate_tokens import ordinary
from heta_lens.metrics.evidence_positions import evidence_positions
from heta_lens.metrics.robustness import Explain
from heta_lens.metrics.shared_measurements import SharedMeasurements
from heta_lens.prediction.prediction import Prediction


@dataclass(frozen=True)
class ExplainedPrompt:
    """A prompt as one method explained it.

    ``ready`` gives the method, prepared for a prompt; ``ask`` turns another instance into a prediction of the same
    model. ``measurements`` are shared by all methods that explain this prediction; without them it has its own.
    """

    def __repr__(self) -> str:
        return short_repr(self)

    instance: Instance
    prediction: Prediction
    attribution: Attribution
    ready: Callable[[Instance, Prediction], Explain]
    ask: Callable[[Instance], Prediction]
    measurements: SharedMeasurements | None = None

    @cached_property
    def shared(self) -> SharedMeasurements:
        """The measurements of this very prediction."""
        if self.measurements is not None and self.measurements.prediction is self.prediction:
            return self.measurements
        return SharedMeasurements(self.prediction)

    @cached_property
    def scores(self) -> Float[Tensor, "pos"]:
        return self.attribution.scores.detach().cpu().double()

    @cached_property
    def explain(self) -> Explain:
        """The method for this prompt."""
        return self.ready(self.instance, self.prediction)

    @cached_property
    def candidates(self) -> list[int]:
        """The tokens that are evaluated: all but special ones, whatever the method."""
        return ordinary(self.prediction)

    @property
    def constant(self) -> bool:
        """Whether all scores are equal, so that one order is as good as another."""
        return self.scores[self.candidates].unique().numel() < 2

    @property
    def without_positive_scores(self) -> bool:
        """Whether no score speaks for the target."""
        return not bool((self.scores[self.candidates] > 0).any())

    def positions(self, name: str) -> list[int]:
        return evidence_positions(self.instance, self.prediction, name)
