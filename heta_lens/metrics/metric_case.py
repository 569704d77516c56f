"""What several metrics need to know of a prediction, measured once for all methods that explain it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from jaxtyping import Float
from torch import Tensor

from heta_lens._util.text import short_repr
from heta_lens.attribution import Attribution
from heta_lens.data.instance import Instance
from heta_lens.metrics.interventions import Drops
from heta_lens.metrics.robustness import Explain
from heta_lens.metrics.scores import evidence_positions, ordinary
from heta_lens.prediction.patching import effects
from heta_lens.prediction.prediction import Prediction


@dataclass(frozen=True, eq=False)
class SharedMeasurements:
    """Measurements that do not depend on the scores, each made when it is first needed."""

    prediction: Prediction

    def __repr__(self) -> str:
        return short_repr(self)

    @cached_property
    def edge_effects(self) -> Float[Tensor, "pos"]:
        """The effect that patching each token has on the target."""
        return effects(self.prediction).cpu().double()

    @cached_property
    def drops(self) -> Drops:
        """What the target loses when tokens are masked."""
        return Drops.of(self.prediction)


# ---------------------------------------------------------------------------------------------------- explained prompt
# What a metric evaluates: a prompt with what is known about it, a prediction, and how a method explained it.


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


# -------------------------------------------------------------------------------------------------------------- metric
# Metric: how an attribution is evaluated, and what must be known to read the resulting value.


Value: TypeAlias = float | tuple[float, ...] | str  # a str says why there is none
Evaluator: TypeAlias = Callable[[ExplainedPrompt], Mapping[str, Value] | float]
Better: TypeAlias = Literal["more", "less", "nearer 0"]

BUILT_IN = "heta_lens"


@dataclass(frozen=True)
class Metric:
    """One way to evaluate the scores of a method on one prompt.

    - ``evaluate``: a function of an `ExplainedPrompt` that gives the value, or the values of several metrics by name
    - ``better``: which direction is better; ``low``, ``high``: the bounds of a value, where it has some
    - ``cost``: beside the explanation itself; F is a forward, s a draw
    - ``variant``, ``source``: which reading of the metric this is, and who defined it
    - ``aggregate``: the ``mean`` over prompts, or, for pairs, the logarithm of the ratio of two means (``log_ratio``)
    - ``needs``: what must be known about a prompt
    - ``again``: how many further runs of the method the metric takes
    - ``positive``: only scores above 0 count
    - ``origin``: the distribution that provides the metric
    """

    title: str
    evaluate: Evaluator
    better: Better = "more"
    low: float | None = 0.0
    high: float | None = 1.0
    cost: str = "none"
    variant: str = ""
    source: str = ""
    aggregate: Literal["mean", "log_ratio"] = "mean"
    needs: tuple[str, ...] = ()
    again: int = 0
    positive: bool = False
    origin: str = BUILT_IN

    @property
    def about(self) -> dict[str, Any]:
        """Everything but the function, as JSON can hold it."""
        return {name: value for name, value in vars(self).items() if name != "evaluate"} | {"needs": [*self.needs]}
