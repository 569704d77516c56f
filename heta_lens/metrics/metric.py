"""Metric: how an attribution is evaluated, and what must be known to read the resulting value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from heta_lens.metrics.explained_prompt import ExplainedPrompt

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
