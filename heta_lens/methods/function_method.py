"""A plain function ``f(prediction) -> scores`` as a method."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from heta_lens._util.file_reading import brief
from heta_lens._util.work_counting import Work
from heta_lens.attribution import Attribution
from heta_lens.methods.base import Method, Scores
from heta_lens.methods.returned_scores import checked_scores
from heta_lens.prediction.prediction import Prediction


@dataclass(frozen=True, eq=False, kw_only=True)
class FunctionMethod(Method):
    """A function as a method: without options, at an unknown cost, and signed where a score is below 0."""

    family: ClassVar = "function"
    cost: ClassVar = "not known"
    signed: ClassVar = False
    function: ClassVar[Callable[[Prediction], Any]]

    def __call__(self, prediction: Prediction) -> Attribution:
        result = super().__call__(prediction)
        return replace(result, signed=bool((result.scores < 0).any()))

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:  # noqa: ARG002
        scores = type(self).function(prediction)
        return scores if isinstance(scores, Scores) else Scores(checked_scores(self.name, scores, prediction))


def as_method(method: Any, name: str = "") -> type[Method]:
    """A method's class as it is; a function as a class of this name, by default its own."""
    if isinstance(method, type) and issubclass(method, Method):
        if name and getattr(method, "name", name) != name:
            raise ValueError(f"it is registered as {name!r}, but its class has the name {method.name!r}")
        return method
    if isinstance(method, type) or not callable(method):
        raise TypeError(f"{brief(method)} is neither a heta_lens.Method nor a function (prediction) -> scores")
    own = name or getattr(method, "__name__", type(method).__name__)
    names = {"name": own, "function": staticmethod(method), "__doc__": method.__doc__, "__module__": method.__module__}
    return type(own, (FunctionMethod,), names)
