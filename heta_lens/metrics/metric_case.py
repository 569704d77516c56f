"""Metrics, and the input of metrics: a prompt, a prediction, and a method's scores for the prediction."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from jaxtyping import Float
from torch import Tensor

from heta_lens.attribution import Attribution
from heta_lens.data.instance import Instance
from heta_lens.metrics.interventions import Drops
from heta_lens.metrics.robustness import Explain
from heta_lens.metrics.scores import evidence_positions, ordinary
from heta_lens.prediction.patching import effects
from heta_lens.prediction.prediction import Prediction


@dataclass(frozen=True, eq=False)
class MetricCache:
    """Measurements of a prediction, independent of scores: made on first use, and shared by every method."""

    prediction: Prediction

    @cached_property
    def edge_effects(self) -> Float[Tensor, "pos"]:
        """Effects on the target of patching every token."""
        return effects(self.prediction).cpu().double()

    @cached_property
    def drops(self) -> Drops:
        """Losses of the target under masked sets of tokens."""
        return Drops.of(self.prediction)


@dataclass(frozen=True)
class MetricCase:
    """A prompt, its prediction, and the explanation by a method.

    ``ready`` gives the method, prepared for a prompt; ``ask`` turns another instance into a prediction of the same
    model. Methods that explain the same prediction share ``measurements``.
    """

    instance: Instance
    prediction: Prediction
    attribution: Attribution
    ready: Callable[[Instance, Prediction], Explain]
    ask: Callable[[Instance], Prediction]
    measurements: MetricCache | None = None

    @cached_property
    def cached(self) -> MetricCache:
        """Measurements of this very prediction."""
        kept = self.measurements
        return kept if kept is not None and kept.prediction is self.prediction else MetricCache(self.prediction)

    @cached_property
    def scores(self) -> Float[Tensor, "pos"]:
        return self.attribution.scores.detach().cpu().double()

    @cached_property
    def explain(self) -> Explain:
        """Method, prepared for this prompt."""
        return self.ready(self.instance, self.prediction)

    @cached_property
    def candidates(self) -> list[int]:
        """Evaluated positions: the same for every method, the eligible ones, without special tokens."""
        return self.positions("eligible") if self.instance.eligible else ordinary(self.prediction)

    @property
    def constant(self) -> bool:
        """True if the candidates' scores are equal, and so give no order."""
        return self.scores[self.candidates].unique().numel() < 2

    @property
    def without_positive_scores(self) -> bool:
        """True if no candidate's score speaks for the target."""
        return not bool((self.scores[self.candidates] > 0).any())

    def positions(self, name: str) -> list[int]:
        """Return the tokens of the instance's spans of a name, such as ``gold`` or ``eligible``."""
        return evidence_positions(self.instance, self.prediction, name)


Value: TypeAlias = float | tuple[float, ...] | str
"""A number, a pair of numbers, or the reason for the lack of a number."""
Evaluator: TypeAlias = Callable[[MetricCase], Mapping[str, Value] | Value]
Better: TypeAlias = Literal["more", "less"]

BUILT_IN = "heta_lens"


@dataclass(frozen=True)
class Metric:
    """A way to evaluate the scores of a method on a prompt.

    - ``evaluate``: a function of a `MetricCase` that gives the value, or the values of several metrics by name
    - ``better``: the better direction; ``low``, ``high``: the bounds of a value, None without a bound
    - ``cost``: the cost beside the explanation itself; F is a forward, s a draw
    - ``variant``, ``source``: the definition of the metric, and its author
    - ``aggregate``: the ``mean`` over prompts, or, for pairs, the logarithm of the ratio of two means (``log_ratio``)
    - ``needs``: the parts of an instance that must be known
    - ``again``: the number of further runs of the method
    - ``positive``: True if only scores above 0 count
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

    def unknown(self, instance: Instance) -> tuple[str, ...]:
        """The parts that the metric needs, and that the instance lacks."""
        return tuple(need for need in self.needs if not getattr(instance, need))

    @property
    def about(self) -> dict[str, Any]:
        """Every field but the function, in types of JSON."""
        return {name: value for name, value in vars(self).items() if name != "evaluate"} | {"needs": [*self.needs]}
