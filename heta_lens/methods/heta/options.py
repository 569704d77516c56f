"""The options of HETA: the table of variants, the presets, contradictions, and options without an effect."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

from heta_lens._util.numerics import Direction
from heta_lens._util.options import COUNT, AtLeast, Batch, Options, Seed, check_options, chosen
from heta_lens._util.python import quietly
from heta_lens.methods.heta.curvature import (
    BlockNorm,
    Estimator,
    LastLayersHessian,
    LowRankHessian,
    ProbedGaussNewton,
    ProbedHessian,
    SquaredGradient,
    Support,
)
from heta_lens.methods.heta.gate import Flow
from heta_lens.methods.heta.score import Balance, Combine
from heta_lens.methods.heta.windows import Window, WindowMode, spans_over, windows_of
from heta_lens.prediction.masking import Masking
from heta_lens.prediction.prediction import Prediction

Variant: TypeAlias = Literal[
    "full", "lr", "ls", "win", "lr+win", "ls+win", "gs", "gn",
    "transition_only", "hessian_only", "kl_only", "no_gate", "uniform_gate",
]  # fmt: skip


class Recipe(NamedTuple):
    """A variant of Eq. 4: the curvature's estimator, windows, gate, and β and γ if the variant fixes them."""

    estimator: type[Estimator] | None = ProbedHessian
    windowed: bool = False
    gate: Literal["flow", "uniform", "none"] = "flow"
    weights: tuple[int, int] | None = None

    @property
    def reads(self) -> set[str]:
        """The options that the curvature reads."""
        return set() if self.estimator is None else self.estimator.reads()


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


CURVATURE_OPTIONS = set[str]().union(*(recipe.reads for recipe in VARIANTS.values()))

PUBLISHED: dict[str, dict[str, Any]] = {
    "paper": {},
    # The authors' released code: windows run as prompts of their own, each with a gate of its own.
    "released": {"variant": "win", "flow": "prefix_head", "window_mode": "chunk", "window_gate": "per_window"},
}


Own = TypeVar("Own", bound="HetaOptions")


@dataclass(frozen=True, eq=False)
class HetaOptions(Options):
    """The options of `Heta`, checked when the object is made, and their consequences."""

    variant: Variant = "full"
    beta: Annotated[float | int, AtLeast(0)] = 0.5
    gamma: Annotated[float | int, AtLeast(0)] = 0.5
    combine: Combine = "sum"
    balance: Balance = "none"
    gate: Literal["flow", "uniform", "none"] = "flow"
    information: Literal["divergence", "target"] = "divergence"
    probes: Annotated[int, COUNT] = 10
    groups: Annotated[int | None, AtLeast(2, whole=True)] = 16
    support: Support = "block"
    norm: BlockNorm = "hutchinson"
    rank: Annotated[int, COUNT] = 64
    layers: Annotated[int | None, AtLeast(1, whole=True)] = None
    window: Annotated[int, AtLeast(2, whole=True)] = 512
    overlap: Annotated[float | int, AtLeast(0, below=1)] = 0.5
    window_mode: WindowMode = "frozen"
    window_gate: Literal["global", "per_window"] = "global"
    flow: Flow = "suffix"
    value_norm: Literal[1, 2] = 1
    mask: Masking = "zero"
    kl: Direction = "orig_masked"
    forwards: Annotated[int | None, AtLeast(2, whole=True)] = None
    interactions: bool = False
    checkpoint: bool = False
    seed: Seed = 0
    batch: Batch = "auto"

    def __post_init__(self) -> None:
        check_options(self)
        if contradiction := next(contradictions(self), None):  # before warnings
            raise ValueError(contradiction)
        super().__post_init__()

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe of the variant, with the gate that ``gate`` names unless the variant fixes one."""
        recipe = VARIANTS[self.variant]
        return recipe._replace(gate=self.gate) if recipe.gate == "flow" else recipe

    @property
    def weights(self) -> tuple[float | int, float | int]:
        """β and γ."""
        return self.recipe.weights or (self.beta, self.gamma)

    @cached_property
    def estimator(self) -> Estimator | None:
        """The estimator of the curvature; None without a weight on the curvature."""
        kind = self.recipe.estimator
        if kind is None or not self.weights[0]:
            return None
        return kind(**{name: getattr(self, name) for name in kind.reads()})

    @property
    def probed(self) -> bool:
        return self.estimator is not None and self.estimator.second_order

    @property
    def ignores_target(self) -> bool:
        """Whether scores are the same for every target, as the gate and a divergence are."""
        own_curvature = self.estimator is not None and not self.estimator.target_agnostic
        return not (own_curvature or (self.weights[1] and self.information == "target"))

    @property
    def directed(self) -> bool:
        """Whether scores have the sign of the token's effect on the target."""
        return self.combine == "geometric" and self.information == "target"

    @cached_property
    def chosen(self) -> dict[str, Any]:
        return chosen(self)

    @property
    def without_effect(self) -> Mapping[str, str]:
        recipe, (beta, gamma) = self.recipe, self.weights
        zero = "".join(f" and {name}=0" for name in ("beta", "gamma") if getattr(self, name) == 0)
        because = f"variant={self.variant!r}{zero}"
        why = "which has no curvature" if recipe.estimator is None else recipe.estimator.why_unused
        no_curvature = f"variant={self.variant!r} ({why}){zero}" if why else because
        of_curvature = CURVATURE_OPTIONS - (recipe.reads if beta else set())
        unused = dict.fromkeys(of_curvature, no_curvature)
        if not beta and recipe.weights is None and recipe.estimator is not ProbedHessian and not recipe.windowed:
            unused["variant"] = "beta=0 (which leaves no curvature to approximate)"
        if recipe.weights is not None:
            unused |= dict.fromkeys(("beta", "gamma"), because)
        if not recipe.windowed:
            unused |= dict.fromkeys(("window", "overlap", "window_mode", "window_gate"), because)
        if VARIANTS[self.variant].gate != "flow":
            unused["gate"] = because
        if recipe.gate != "flow":
            reason = because if "gate" in unused else f"gate={self.gate!r}"
            unused |= dict.fromkeys(("flow", "value_norm", "window_gate"), reason)
        if not gamma:
            unused |= dict.fromkeys(("kl", "information", "forwards"), because)
        if self.information == "target":
            unused["kl"] = "information='target' (which is no divergence)"
        if self.combine == "geometric":
            unused["balance"] = "combine='geometric' (whose ranks no scale of a part changes)"
        elif not (beta or gamma):
            unused["balance"] = because
        if isinstance(self.estimator, ProbedHessian) and not self.estimator.random:
            exact = f"norm={self.norm!r} (which is exact)"
            unused |= dict.fromkeys(("probes", "groups", "seed"), exact)
        elif self.probed and self.support == "row":
            unused["groups"] = "support='row' (where all tokens share each HVP)"
        return unused

    def changed(self: Own, **changes: Any) -> Own:
        """Return the options with changes, and without options that have no effect then."""
        other = quietly(lambda: replace(self, **changes))
        return replace(other, **{name: type(self).__dataclass_fields__[name].default for name in other.unused_options})

    def spans(self, prediction: Prediction) -> list[range]:
        """Return the windows' positions in a context; without windows, one span of all positions."""
        length = len(prediction)
        return spans_over(length, self.window if self.recipe.windowed else length, self.overlap)

    def windows(self, prediction: Prediction) -> list[Window]:
        """Return the windows to run."""
        layer = None if self.estimator is None else self.estimator.layer(prediction)
        return windows_of(prediction, self.spans(prediction), self.window_mode, layer)


def contradictions(o: HetaOptions) -> Iterator[str]:
    """Yield a message for every contradiction between options; an option without an effect contradicts nothing."""
    if o.layers is None and "layers" in o.recipe.reads:
        yield f"variant={o.variant!r} needs layers=, how many of the last layers to differentiate"
    if o.weights == (0, 0) and o.recipe.weights is None:
        yield "beta=0 and gamma=0 leave nothing to score; for the gate alone, variant='transition_only'"
    if o.weights == (0, 0) and o.recipe.gate != "flow":
        yield f"gate={o.gate!r} gives every token the same score in variant={o.variant!r}, the gate alone: leave it out"
    if o.combine == "geometric" and not all(o.weights):
        yield (
            f"combine='geometric' multiplies curvature and information, which variant={o.variant!r} weighs by "
            f"{o.weights}: use variant='full' or 'gs', with beta and gamma above 0"
        )
    given = o.chosen.keys() - o.without_effect.keys()
    windowed = o.recipe.windowed
    if "forwards" in given and windowed:
        yield f"forwards= searches in the whole context, and does not go with variant={o.variant!r}: leave it out"
    if "interactions" in given and windowed:
        yield f"interactions=True does not go with variant={o.variant!r}: tokens far apart share no window"
    if "interactions" in given and (o.support, o.norm) == ("row", "hutchinson"):
        yield "interactions=True does not go with support='row', whose probes do not separate tokens"
    if "checkpoint" in given and o.variant == "gn":
        yield "checkpoint=True does not go with variant='gn', whose HVPs pass through all blocks at once"
    if "checkpoint" in given and windowed and o.window_mode == "frozen":
        yield "checkpoint=True does not go with window_mode='frozen', whose windows run in parts: use smaller windows"
