"""What all baselines have in common: a dataclass of options that is called with a Prediction."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any, ClassVar, TypeAlias

from jaxtyping import Float
from torch import Tensor

from heta_lens.attribution import Attribution
from heta_lens.diagnostics import sink_mass, warn
from heta_lens.options import Options, check_options, chosen, settings
from heta_lens.prediction import Prediction
from heta_lens.progress import Work, working
from heta_lens.turns import one_at_a_time

Found: TypeAlias = tuple[Float[Tensor, "pos"], dict[str, Any]]  # scores, and what else there is to say

UNTITLED = {"batch", "progress", "seed"}  # options that make no other score of it


@dataclass(frozen=True, eq=False, kw_only=True)
class Baseline(Options, ABC):
    """``progress``: show a progress bar; None shows it on a terminal or in a notebook."""

    progress: bool | None = None

    name: ClassVar[str]
    cost: ClassVar[str]  # of N context tokens and L layers, in forwards F and backwards B
    blind: ClassVar[bool] = False  # to which token is asked about
    signed: ClassVar[bool] = True  # above 0 speaks for the target; else ≥ 0, and no direction
    adapted: ClassVar[str] = ""  # where this is not what its authors do, or they do not say

    def __init_subclass__(cls) -> None:
        """Let the docstring tell what the table of all methods tells."""
        told = [f"Cost: {cls.cost}.", f"Adapted: {cls.adapted}." if cls.adapted else ""]
        cls.__doc__ = "\n\n".join([cleandoc(cls.__doc__ or ""), *filter(None, told)])

    def __post_init__(self) -> None:
        check_options(self)
        if unused := self.told_unused():
            warn(unused)

    @one_at_a_time("prediction")
    def __call__(self, prediction: Prediction) -> Attribution:
        self.check(prediction)
        with prediction.running(), working(self.work(prediction), self.progress) as work, work.counting():
            scores, facts = self.explain(prediction, work)
        prediction.check_finite("the score", scores)
        title = {name: value for name, value in chosen(self).items() if name not in UNTITLED}
        known = {**work.cost(), "sink_mass": sink_mass(scores), "chosen": title}
        if self.blind and isinstance(prediction.target, tuple):
            known["note"] = "these scores are the same for every target, and so for this contrast"
        known["unused_options"] = self.unused_options
        if self.adapted:
            known["adapted"] = self.adapted
        return prediction.attribution(self.label, scores, {}, settings(self), known | facts, signed=self.directed)

    @one_at_a_time("predictions")
    def each(self, predictions: Sequence[Prediction]) -> list[Attribution]:
        """Explain several predictions, one after the other."""
        for prediction in predictions:
            self.check(prediction)
        return [self(prediction) for prediction in predictions]

    def check(self, prediction: Prediction) -> None:
        """Refuse, before any work, what cannot be done for this prediction."""
        mask = getattr(self, "mask", None)
        if mask is not None and "mask" not in self.without_effect:
            prediction.mask_vector(mask)

    @abstractmethod
    def work(self, prediction: Prediction) -> dict[str, int]:
        """How many ``forwards`` and ``backwards`` of the whole context lie ahead, at most."""

    def positions_read(self, prediction: Prediction) -> int:  # noqa: ARG002
        """At how many positions a run keeps what is predicted."""
        return 1

    @abstractmethod
    def explain(self, asked: Prediction, work: Work) -> Found:
        """Scores of the context's tokens, and diagnostics."""

    @property
    def random(self) -> bool:
        """Whether another seed may give other scores."""
        return hasattr(self, "seed")

    @property
    def directed(self) -> bool:
        """Whether with these options scores have a sign that means something."""
        return self.signed

    @property
    def label(self) -> str:
        """What its results call it."""
        return self.name


def refuse_contrast(method: Baseline, prediction: Prediction) -> None:
    if isinstance(prediction.target, tuple):
        raise ValueError(f"method={method.name!r} explains one token, and cannot contrast it with another")


def refuse_overlong(method: Baseline, prediction: Prediction, positions: int, way_out: str) -> None:
    longest = getattr(prediction.lens.model.cfg, "n_ctx", None)
    if longest is not None and positions > longest:
        raise ValueError(f"method={method.name!r} takes {positions} positions, and this model has {longest}: {way_out}")


def refuse_hooks(method: Baseline, prediction: Prediction, why: str) -> None:
    if prediction.prompt.user_hooks:
        raise ValueError(f"method={method.name!r} {why}, which hooks on the model were not made for: take them off")
