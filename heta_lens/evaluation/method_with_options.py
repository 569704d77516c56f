"""A method as it is evaluated: its name and options, read from the command line, and prepared for each prompt."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from inspect import getsource, isfunction
from typing import Any

from heta_lens._util.file_reading import brief
from heta_lens._util.option_text import keywords
from heta_lens._util.options import check_at_least, check_choice, check_names, chosen
from heta_lens._util.plain_json import plain
from heta_lens.api import METHODS, Method, method_of
from heta_lens.data.instance import SPANS, Instance
from heta_lens.methods.base import NotApplicable
from heta_lens.methods.budget import within_budget
from heta_lens.methods.presets import method_and_options, named
from heta_lens.metrics.evidence_positions import evidence_positions
from heta_lens.prediction.prediction import Prediction


@dataclass(frozen=True)
class Entry:
    """A method as it is evaluated: its name and options, under a label that distinguishes it from others.

    An option that is ``"@question"`` (or another kind of span) stands for the positions of these tokens in each prompt.
    """

    label: str
    method: str
    options: Mapping[str, Any]
    budget: float | int | None = None
    """At most how many plain forwards each prompt may take."""

    @classmethod
    def read(cls, written: str) -> "Entry":
        """``"lime"``, or ``"lime samples=200 seed=1"``; a preset's name stands for its method and options."""
        try:
            name, *given = shlex.split(written) or [""]
        except ValueError as error:
            raise ValueError(
                f"{brief(written)} is no method and its options ({error}): write 'lime samples=200'"
            ) from None
        return cls(" ".join(written.split()), *method_and_options(name, keywords(given)))

    def __post_init__(self) -> None:
        for name, value in self.options.items():
            if _names_spans(value):
                check_choice(name, value, [f"@{kind}" for kind in SPANS])
        if self.budget is not None:
            check_at_least("budget", self.budget, 0)
        if self.method in METHODS:
            check_names(METHODS[self.method], self.options)
            for name in METHODS[self.method].scaled_by if self.budget is not None else ():
                if name in self.options:
                    raise ValueError(f"{self.label}: the budget decides {name}, so leave it out")
        method_of(self.method, {name: value for name, value in self.options.items() if not _names_spans(value)})

    @property
    def recipe(self) -> dict[str, Any]:
        """Method and options, as ``run.json`` keeps them."""
        budget = {} if self.budget is None else {"budget": self.budget}
        return {"method": self.method, "options": dict(self.options), **budget}

    def ready(self, instance: Instance, prediction: Prediction) -> Method:
        """The method for a prompt: with the spans that its options name, and as much work as the budget allows."""
        options = dict(self.options)
        for name, value in self.options.items():
            if _names_spans(value):
                options[name] = ranges(evidence_positions(instance, prediction, value[1:]))
                if not options[name]:
                    raise NotApplicable(f"{name}={value}, and no {value[1:]} is known of this prompt")
        method = method_of(self.method, options)
        return method if self.budget is None else within_budget(method, prediction, self.budget)


@dataclass(frozen=True)
class ReadyMethod:
    """A method with its options, or a function of yours, as it is evaluated."""

    given: Method | Callable[[Prediction], Any]

    @property
    def method(self) -> Method:
        """Made anew each time: the class that a function becomes cannot be sent to another process."""
        return method_of(self.given, {})

    @property
    def label(self) -> str:
        """Its name and the options that are not the default, as on the command line; or its preset's name."""
        name, options = named(self.method.name, chosen(self.method))
        return " ".join([name, *(f"{option}={value}" for option, value in options.items())])

    @property
    def recipe(self) -> dict[str, Any]:
        """Where it is from, and its options, as ``run.json`` keeps them."""
        method = self.method
        kind, name = type(method), method.name
        known = name in METHODS and METHODS[name] is kind
        options = {option: plain(value) for option, value in chosen(method).items()}
        return {"method": name if known else f"{kind.__module__}.{name}", "options": options, **self._code}

    @property
    def _code(self) -> dict[str, str]:
        """A digest of a function's source, so that an evaluation is not resumed with another of its name."""
        if not isfunction(self.given):
            return {}
        try:
            source = getsource(self.given)
        except OSError:  # it was written where no source is kept
            return {}
        return {"code": sha256(source.encode()).hexdigest()[:16]}

    def ready(self, instance: Instance, prediction: Prediction) -> Method:  # noqa: ARG002
        return self.method


def _names_spans(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("@")


def ranges(positions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Positions as ranges ``(start, stop)``."""
    starts = [position for position in positions if position - 1 not in positions]
    stops = [position + 1 for position in positions if position + 1 not in positions]
    return tuple(zip(starts, stops, strict=True))
