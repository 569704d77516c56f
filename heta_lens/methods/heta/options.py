"""The options of HETA: the table of variants, the presets, contradictions, and options without an effect."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

from jaxtyping import Float
from torch import Tensor

from heta_lens._util.numerics import Direction
from heta_lens._util.options import COUNT, AtLeast, Batch, Options, Seed, check_options, chosen
from heta_lens._util.python import warn
from heta_lens.methods.heta.curvature import (
    LEAST,
    Estimator,
    LastLayersHessian,
    LowRankHessian,
    Norm,
    ProbedGaussNewton,
    ProbedHessian,
    SquaredGradient,
    Support,
)
from heta_lens.methods.heta.gate import Flow
from heta_lens.methods.heta.score import Balance, Combine
from heta_lens.methods.heta.windows import Window, WindowMode, spans_over, windows_of
from heta_lens.model.mask import Masking
from heta_lens.prediction.masking import MaskedEffects
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
    def approximate(self) -> bool:
        """Whether the variant approximates the full method, rather than leaving out a part."""
        return self.windowed or (self.estimator is not None and self.estimator.approximate)

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


@cache
def _curvature_options() -> set[str]:
    """Return the options that estimators read; the seed also belongs to the audit."""
    return set[str]().union(*(recipe.reads for recipe in VARIANTS.values())) - {"seed"}


CAREFUL: dict[str, Any] = {"variant": "gs", "combine": "geometric", "gate": "none"}
"""The options of the preset ``careful``, which is proposed if the literal formula takes long."""

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    # The authors' released code: windows run as prompts of their own, each with a gate of its own.
    "released": {"variant": "win", "flow": "prefix_head", "window_mode": "chunk", "window_gate": "per_window"},
}


# -------------------------------------------------------------------------------------------------------- heta options
# The options of HETA: what they may be, which contradict each other, and which have no effect with the others.


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
    norm: Norm = "hutchinson"
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
    interactions: bool = False
    audit: bool = False
    tolerance: Annotated[float | int | None, AtLeast(0)] = None
    prune: Annotated[float | int, AtLeast(0)] = 0.0
    checkpoint: bool = False
    seed: Seed = 0
    batch: Batch = "auto"

    def __post_init__(self) -> None:
        check_options(self)
        for contradiction in CONTRADICTIONS:
            if contradiction.holds(self):
                raise ValueError(contradiction.message.format(o=self))
        if unused := self.unused_message():
            warn(unused)

    @property
    def recipe(self) -> Recipe:
        """The variant's recipe, with the option ``gate`` unless the variant fixes the gate."""
        return self._gated(VARIANTS[self.variant])

    def _gated(self, recipe: Recipe) -> Recipe:
        return recipe._replace(gate=self.gate) if recipe.gate == "flow" else recipe

    @property
    def weights(self) -> tuple[float | int, float | int]:
        """β and γ."""
        return self.recipe.weights or (self.beta, self.gamma)

    @cached_property
    def estimator(self) -> Estimator | None:
        """The estimator of the curvature; None without a weight on the curvature."""
        kind = self.recipe.estimator
        return kind.from_options(self) if kind is not None and self.weights[0] else None

    @property
    def probed(self) -> bool:
        return self.estimator is not None and self.estimator.second_order

    @property
    def random(self) -> bool:
        """Whether scores depend on the seed."""
        return self.estimator is not None and self.estimator.random

    @property
    def ignores_target(self) -> bool:
        """Whether scores are the same for every target, as the gate and a divergence are."""
        own_curvature = self.estimator is not None and not self.estimator.target_agnostic
        return not (own_curvature or (self.weights[1] and self.information == "target"))

    @property
    def directed(self) -> bool:
        """Whether scores have the sign of the token's effect on the target."""
        return self.combine == "geometric" and self.information == "target"

    def information_of(self, measured: MaskedEffects | None) -> Float[Tensor, "pos"] | None:
        """Return I from the effects of masking: the divergence, or the drop of g, with its sign only in a product."""
        if measured is None or self.information == "divergence":
            return measured and measured.divergence
        return measured.drop if self.directed else measured.drop.abs()

    @property
    def stops(self) -> bool:
        """Whether tokens may stop early, with fewer probes."""
        return self.estimator is not None and self.estimator.stops

    @cached_property
    def chosen(self) -> dict[str, Any]:
        return chosen(self)

    @cached_property
    def effective(self) -> set[str]:
        """The options that differ from the default and have an effect."""
        return self.chosen.keys() - self.without_effect.keys()

    def unused_with(self, recipe: Recipe, weights: tuple[float | int, float | int]) -> dict[str, str]:
        """Return the options without an effect on a recipe, given β and γ, with the reason for each."""
        beta, gamma = weights
        zero = [f"{name}=0" for name in ("beta", "gamma") if getattr(self, name) == 0]
        because = " and ".join([f"variant={self.variant!r}", *zero])
        why = "which has no curvature" if self.recipe.estimator is None else self.recipe.estimator.why_unused
        no_curvature = " and ".join([f"variant={self.variant!r}" + f" ({why})" * bool(why), *zero])
        unread = _curvature_options() - (recipe.reads if beta else set())
        unused = dict.fromkeys(unread, no_curvature) | {"seed": no_curvature}
        if not recipe.windowed:
            unused |= dict.fromkeys(("window", "overlap", "window_mode", "window_gate"), because)
        if recipe.gate != "flow":
            reason = because if self.gate == "flow" else f"gate={self.gate!r}"
            unused |= dict.fromkeys(("flow", "value_norm", "window_gate"), reason)
        if not gamma:
            unused |= dict.fromkeys(("kl", "information"), because)
        if self.information == "target":
            unused["kl"] = "information='target' (which is no divergence)"
        if self.combine == "geometric":
            unused["balance"] = "combine='geometric' (whose ranks no scale of a part changes)"
        elif not (beta or gamma):
            unused["balance"] = because
        return unused

    @property
    def without_probes(self) -> str:
        """The options that leave out the HVPs, for a message."""
        return self.unused_with(self.recipe, self.weights)["probes"]

    @property
    def without_effect(self) -> Mapping[str, str]:
        return self._without_effect

    @cached_property
    def _without_effect(self) -> Mapping[str, str]:
        exact = f"norm={self.norm!r} (which is exact)"
        unused = self.unused_with(self.recipe, self.weights)
        if self.probed and not self.random:
            unused |= dict.fromkeys(("probes", "groups", "tolerance", "prune", "seed"), exact)
        elif self.probed and self.support == "row":
            unused["groups"] = "support='row' (where all tokens share each HVP)"
        unused.pop("interactions", None)  # which contradict a score without HVPs
        if not self.prune:  # which is off, and asks for nothing
            unused.pop("prune", None)
        if self.audit or self.random:
            unused.pop("seed", None)
        if self.audit and self.recipe.approximate:  # the full method, which this is compared with, may use them
            unused = {name: reason for name, reason in unused.items() if name in self.unused_by_full}
        return unused

    @property
    def unused_by_full(self) -> set[str]:
        """Options without an effect on the full method that an approximation is compared with."""
        unused = self.unused_with(self._gated(VARIANTS["full"]), self.weights).keys() - {"seed"}
        return unused | {"tolerance", "prune"}

    def spans(self, prediction: Prediction) -> list[range]:
        """Return the windows' positions in a context; without windows, one span of all positions."""
        length = len(prediction)
        return spans_over(length, self.window if self.recipe.windowed else length, self.overlap)

    def windows(self, prediction: Prediction) -> list[Window]:
        """Return the windows to run."""
        layer = None if self.estimator is None else self.estimator.layer(prediction)
        return windows_of(prediction, self.spans(prediction), self.window_mode, layer)

    @property
    def full(self: Own) -> Own:
        """The full method that the options approximate."""
        kept = {name: value for name, value in self.chosen.items() if name not in self.unused_by_full}
        if self.norm != "hutchinson":
            kept.pop("probes", None)  # which only a low rank has a use for then
            kept.pop("seed", None)
        return type(self)(**kept | {"variant": "full", "interactions": False, "audit": False})

    def weighted(self: Own, beta: float, gamma: float) -> Own:
        """Return the options with another β and γ, without options that have no effect then."""
        kept = {name: value for name, value in self.chosen.items() if name not in self.without_effect}
        given: dict[str, Any] = kept | {"beta": beta, "gamma": gamma}
        if not beta:
            given |= {"variant": "win" if self.recipe.windowed else "full", "gate": self.recipe.gate}
            given = {name: value for name, value in given.items() if name not in ("seed", "interactions")}
        unused = self.unused_with(self._gated(VARIANTS[given.get("variant", "full")]), (beta, gamma)).keys() - {"seed"}
        return type(self)(**{name: value for name, value in given.items() if name not in unused})


class Contradiction(NamedTuple):
    """A contradiction between options ``o``, and the message for the error."""

    applies: Callable[[HetaOptions], bool]
    message: str
    option: str | None = None  # whose effect is contradicted: without an effect there is nothing to refuse

    def holds(self, options: HetaOptions) -> bool:
        return (self.option is None or self.option in options.effective) and self.applies(options)


def _early_stopping(name: str) -> list[Contradiction]:
    """Return the contradictions of an option that lets tokens stop early."""
    given = f"{name}={{o.{name}!r}}"
    return [
        Contradiction(
            lambda o: o.interactions,
            f"{given} does not go with interactions=True, which needs every token's probes",
            name,
        ),
        Contradiction(
            lambda o: o.recipe.windowed and o.window_mode == "chunk",
            f"{given} does not go with window_mode='chunk', where windows score a token several times",
            name,
        ),
        Contradiction(
            lambda o: o.probes < LEAST,
            f"{given} needs at least probes={LEAST}, to estimate a standard error; got {{o.probes!r}}",
            name,
        ),
    ]


CONTRADICTIONS = [
    Contradiction(lambda o: o.tolerance == 0, "tolerance=0 is never reached; tolerance=None takes all the probes"),
    Contradiction(
        lambda o: o.interactions and not o.probed,
        "interactions=True does not go with {o.without_probes}: pairs are sizes of blocks of H",
    ),
    Contradiction(
        lambda o: o.layers is None and "layers" in o.recipe.reads,
        "variant={o.variant!r} needs layers=, how many of the last layers to differentiate",
    ),
    Contradiction(
        lambda o: o.recipe.weights is not None and bool({"beta", "gamma"} & o.given.keys()),
        "variant={o.variant!r} fixes beta and gamma: leave them out, or use variant='full'",
    ),
    Contradiction(
        lambda o: o.beta == o.gamma == 0,
        "beta=0 and gamma=0 leave nothing to score; for the gate alone, variant='transition_only'",
    ),
    Contradiction(
        lambda o: o.combine == "geometric" and not all(o.weights),
        "combine='geometric' multiplies curvature and information, which variant={o.variant!r} weighs by {o.weights}: "
        "use variant='full' or 'gs', with beta and gamma above 0",
    ),
    Contradiction(
        lambda o: VARIANTS[o.variant].gate not in ("flow", o.gate) and "gate" in o.given,
        "variant={o.variant!r} fixes the gate, and gate={o.gate!r} is another: leave one of them out",
    ),
    Contradiction(
        lambda o: o.variant == "transition_only" and o.gate != "flow",
        "variant='transition_only' is the gate alone, which gate={o.gate!r} makes the same for every token",
    ),
    Contradiction(
        lambda o: o.beta == 0 and o.recipe.estimator is not None and o.recipe.estimator.approximate,
        "variant={o.variant!r} is about the curvature, which beta=0 leaves out",
    ),
    Contradiction(
        lambda o: o.interactions and o.recipe.windowed,
        "interactions=True does not go with variant={o.variant!r}: tokens far apart share no window",
    ),
    Contradiction(
        lambda o: o.interactions and (o.support, o.norm) == ("row", "hutchinson"),
        "interactions=True does not go with support='row', whose probes do not separate tokens",
    ),
    Contradiction(
        lambda o: o.variant == "gn",
        "checkpoint=True does not go with variant='gn', whose HVPs pass through all blocks at once",
        "checkpoint",
    ),
    Contradiction(
        lambda o: o.recipe.windowed and o.window_mode == "frozen",
        "checkpoint=True does not go with window_mode='frozen', whose windows are run in two parts; "
        "smaller windows need less memory",
        "checkpoint",
    ),
    *_early_stopping("prune"),
    Contradiction(
        lambda o: o.combine == "geometric",
        "prune={o.prune!r} does not go with combine='geometric', where what a token's S adds depends on its I; "
        "it needs combine='sum', or tolerance=",
        "prune",
    ),
    Contradiction(
        lambda o: o.support == "row",
        "prune={o.prune!r} does not go with support='row', which costs the same for all tokens; "
        "it needs support='block'",
        "prune",
    ),
    Contradiction(
        lambda o: o.balance != "none",
        "prune={o.prune!r} does not go with balance={o.balance!r}, which needs every token's S; "
        "it needs balance='none'",
        "prune",
    ),
    *_early_stopping("tolerance"),
]
