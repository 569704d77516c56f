"""The table of variants: what each makes of Eq. 4; and the presets."""

from typing import Any, Literal, NamedTuple, TypeAlias

Variant: TypeAlias = Literal[
    "full", "lr", "ls", "win", "lr+win", "ls+win", "gs", "gn",
    "transition_only", "hessian_only", "kl_only", "no_gate", "uniform_gate",
]  # fmt: skip

Kind: TypeAlias = Literal["hessian", "low_rank", "last_layers", "squared_gradient", "gauss_newton", "none"]


class Recipe(NamedTuple):
    """What a variant makes of Eq. 4, and β and γ where they are not the caller's to choose."""

    curvature: Kind = "hessian"
    windowed: bool = False
    gate: Literal["flow", "uniform", "none"] = "flow"
    weights: tuple[int, int] | None = None

    @property
    def cheaper(self) -> bool:
        """Whether it approximates the full method, instead of leaving a part of it out."""
        return self.windowed or self.curvature not in ("hessian", "none")

    def unused(self, beta: float | int, gamma: float | int) -> set[str]:
        """Options that mean nothing to this variant, with these weights of curvature and information."""
        probed = beta and self.curvature not in ("none", "squared_gradient")
        nothing = {
            "rank": self.curvature != "low_rank",
            "layers": self.curvature != "last_layers",
            **dict.fromkeys(("window", "overlap", "window_mode", "window_gate"), not self.windowed),
            **dict.fromkeys(("probes", "support", "norm", "interactions"), not probed),
            **dict.fromkeys(("tolerance", "prune"), not probed or self.curvature == "low_rank"),
            **dict.fromkeys(("flow", "value_norm"), self.gate != "flow"),
            "kl": not gamma,
            "balance": not (beta or gamma),
        }
        return {name for name, unused in nothing.items() if unused}


VARIANTS: dict[Variant, Recipe] = {
    "full": Recipe(),
    # Cheaper: a part of H, H of a part of the model, windows of the context, or another matrix in H's place.
    "lr": Recipe("low_rank"),
    "ls": Recipe("last_layers"),
    "win": Recipe(windowed=True),
    "lr+win": Recipe("low_rank", windowed=True),
    "ls+win": Recipe("last_layers", windowed=True),
    "gs": Recipe("squared_gradient"),
    "gn": Recipe("gauss_newton"),
    # The paper's ablations. Its "Hessian only" and "KL only" keep the gate.
    "transition_only": Recipe("none", weights=(0, 0)),
    "hessian_only": Recipe(weights=(1, 0)),
    "kl_only": Recipe("none", weights=(0, 1)),
    "no_gate": Recipe(gate="none"),
    "uniform_gate": Recipe(gate="uniform"),
}

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    # The authors' released code: windows run as prompts of their own, each with a gate of its own.
    "released": {"variant": "win", "flow": "prefix_head", "window_mode": "chunk", "window_gate": "per_window"},
}
