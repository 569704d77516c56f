"""The table of variants, what each makes of Eq. 4; and the readings of the paper that `Heta.preset` names."""

from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias

from heta_lens.methods.heta.estimators import (
    Estimator,
    LastLayersHessian,
    LowRankHessian,
    ProbedGaussNewton,
    ProbedHessian,
    SquaredGradient,
)

Variant: TypeAlias = Literal[
    "full", "lr", "ls", "win", "lr+win", "ls+win", "gs", "gn",
    "transition_only", "hessian_only", "kl_only", "no_gate", "uniform_gate",
]  # fmt: skip


class Recipe(NamedTuple):
    """What a variant makes of Eq. 4, and β and γ where they are not the caller's to choose."""

    estimator: type[Estimator] | None = ProbedHessian
    windowed: bool = False
    gate: Literal["flow", "uniform", "none"] = "flow"
    weights: tuple[int, int] | None = None

    @property
    def approximate(self) -> bool:
        """Whether it approximates the full method, instead of leaving a part of it out."""
        return self.windowed or (self.estimator is not None and self.estimator.approximate)

    def why_unused(self, option: str) -> str:
        """Why an option has no effect, where that is for the curvature's sake."""
        if option not in _curvature_options() | {"seed"}:
            return ""
        return "which has no curvature" if self.estimator is None else self.estimator.why_unused

    def reads(self, beta: float | int = 1) -> set[str]:
        """The options that the curvature depends on, with this weight."""
        return self.estimator.reads() if beta and self.estimator is not None else set()

    def unused(self, beta: float | int, gamma: float | int) -> set[str]:
        """Options that have no effect on this variant, with these weights of curvature and information."""
        without_effect = {
            **dict.fromkeys(("window", "overlap", "window_mode"), not self.windowed),
            "window_gate": not self.windowed or self.gate != "flow",
            **dict.fromkeys(("flow", "value_norm"), self.gate != "flow"),
            **dict.fromkeys(("kl", "information"), not gamma),
            "balance": not (beta or gamma),
        }
        unread = _curvature_options() - self.reads(beta)
        return unread | {name for name, unused in without_effect.items() if unused}


VARIANTS: dict[Variant, Recipe] = {
    "full": Recipe(),
    # Cheaper: a part of H, H of a part of the model, windows of the context, or another matrix in H's place.
    "lr": Recipe(LowRankHessian),
    "ls": Recipe(LastLayersHessian),
    "win": Recipe(windowed=True),
    "lr+win": Recipe(LowRankHessian, windowed=True),
    "ls+win": Recipe(LastLayersHessian, windowed=True),
    "gs": Recipe(SquaredGradient),
    "gn": Recipe(ProbedGaussNewton),
    # The paper's ablations. Its "Hessian only" and "KL only" keep the gate.
    "transition_only": Recipe(None, weights=(0, 0)),
    "hessian_only": Recipe(weights=(1, 0)),
    "kl_only": Recipe(None, weights=(0, 1)),
    "no_gate": Recipe(gate="none"),
    "uniform_gate": Recipe(gate="uniform"),
}


@cache
def _curvature_options() -> set[str]:
    """The options that some estimator reads; the seed is also the audit's."""
    return set[str]().union(*(recipe.reads() for recipe in VARIANTS.values())) - {"seed"}


CAREFUL: dict[str, Any] = {"variant": "gs", "combine": "geometric", "gate": "none"}
"""The options of the preset of this name, which is also proposed where the literal formula takes long."""

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    # The authors' released code: windows run as prompts of their own, each with a gate of its own.
    "released": {"variant": "win", "flow": "prefix_head", "window_mode": "chunk", "window_gate": "per_window"},
}
