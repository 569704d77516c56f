"""Does patching agree? An attribution against what the prediction does when each of its tokens is patched."""

from dataclasses import dataclass
from functools import partial
from math import isnan
from typing import Any, SupportsIndex

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens.attribution import Attribution
from heta_lens.cached import Tokens
from heta_lens.causal.pair import check_attribution, check_explains, told_of
from heta_lens.interventions import How, Patterns, effects
from heta_lens.masking import Mask
from heta_lens.metrics.effects import mean_effect, misattribution, patch_correlation
from heta_lens.metrics.ranking import highest
from heta_lens.options import Batch, check_at_least
from heta_lens.plots.heat import heat
from heta_lens.prediction import Prediction
from heta_lens.progress import working
from heta_lens.scales import Scale
from heta_lens.show import View
from heta_lens.turns import one_at_a_time


@dataclass(frozen=True, eq=False, repr=False)
class Validation:
    """What patching says of an attribution's scores, and the effects themselves, one a token that was judged.

    - ``patch_correlation``: Spearman's, of scores and effects; NaN where one side tells no tokens apart
    - ``joint``: the effect of patching the ``k`` tokens with the highest scores together (Intervention@k)
    - ``mean_single``: the mean of their effects, each patched alone
    - ``misattribution``: the share of the ``top`` tokens with the highest scores whose effect is below ``least``
    """

    positions: tuple[int, ...]
    tokens: tuple[str, ...]
    scores: Float[Tensor, "judged"]
    effects: Float[Tensor, "judged"]
    patch_correlation: float
    joint: float
    mean_single: float
    misattribution: float
    title: str
    options: dict[str, Any]

    def to_frame(self) -> pd.DataFrame:
        """One row a token that was judged."""
        columns = {"score": self.scores.tolist(), "effect": self.effects.tolist()}
        return pd.DataFrame({"position": self.positions, "token": self.tokens, **columns})

    def plot(self) -> View:
        """Scores above effects, each as shares of its largest."""
        rows = torch.stack([values / (values.abs().max() or 1) for values in (self.scores, self.effects)])
        return heat(self.title, ["score", "effect"], self.tokens, rows, self._told, self.positions)

    def __repr__(self) -> str:
        return f"{self.title}: {self._told}"

    @property
    def _told(self) -> str:
        k, top = (min(self.options[name], len(self.positions)) for name in ("k", "top"))
        agreed = "none" if isnan(self.patch_correlation) else f"{self.patch_correlation:.2f}"
        return (
            f"rank correlation with effects {agreed}; the first {k} together {self.joint:.3g}, alone "
            f"{self.mean_single:.3g} on average; {self.misattribution:.0%} of the first {top} below "
            f"{self.options['least']:g}"
        )


@one_at_a_time("cache")
def validate(
    cache: Any,
    attribution: Attribution,
    *,
    position: SupportsIndex | None = None,
    tokens: Tokens = None,
    how: How = "edge_patch",
    mask: Mask = "zero",
    layer: int | None = None,
    reference: Any = None,
    reference_tokens: Tokens = None,
    patterns: Patterns = "frozen",
    scale: Scale = "log_prob",
    k: int = 5,
    top: int = 10,
    least: float | int = 0.01,
    special: bool = False,
    batch: Batch = "auto",
    progress: bool | None = None,
) -> Validation:
    """Patch every token that an attribution has a score for, and say whether the effects agree with the scores.

    One prompt says little: ``heta-lens evaluate`` does this for many, with intervals.

    Args:
        cache: of the prompt that was explained, from a model with the same hooks.
        attribution: of any method. Tokens that were left out of it are not judged.
        position: as `attribute` was given it.
        tokens: the ids that were cached; without them they are read off the cached embeddings.
        how, mask, layer, patterns, scale: the intervention, as `effects` has it.
        reference: the cache of a counterfactual prompt of as many tokens, to patch with in place of a mask.
        reference_tokens: its ids, as ``tokens`` are those of ``cache``.
        k: how many tokens with the highest scores are patched together; all, where there are fewer.
        top: how many of them should have an effect of at least ``least``.
        special: judge special tokens too, on which attention rests when it has nowhere to go.
        batch: how many copies of the context run at once.
        progress: show a progress bar; None shows it on a terminal or in a notebook.
    """
    for name, value in {"k": k, "top": top}.items():
        check_at_least(name, value, 1, whole=True)
    check_at_least("least", least, 0)
    check_attribution(attribution)
    if reference is None and reference_tokens is not None:
        raise ValueError("reference_tokens= are the ids of a reference, and there is none: give its cache, reference=")
    asked = Prediction.from_cache(cache, attribution.target, position=position, tokens=tokens)
    judged = _judged(asked, attribution, special)
    other = None
    if reference is not None:
        with told_of("reference_tokens"):
            other = Prediction.from_cache(reference, attribution.target, position=position, tokens=reference_tokens)
    way: dict[str, Any] = {"how": how, "mask": mask, "layer": layer, "patterns": patterns, "scale": scale}
    places, own = judged.positions.tolist(), judged.scores.double()
    groups = [[places[at] for at in highest(own, k)], *([at] for at in places)]
    with working({"forwards": len(groups)}, progress) as work:
        done = partial(work.add, "forwards")
        found = effects(asked, **way, reference=other, batch=batch, groups=groups, done=done).cpu().double()
    joint, alone = float(found[0]), found[1:]
    return Validation(
        positions=tuple(places),
        tokens=judged.tokens,
        scores=own,
        effects=alone,
        patch_correlation=patch_correlation(own, alone),
        joint=joint,
        mean_single=mean_effect(own, alone, k),
        misattribution=misattribution(own, alone, top, float(least)),
        title=attribution.title,
        options={**way, "k": k, "top": top, "least": least, "special": special, "counterfactual": other is not None},
    )


def _judged(asked: Prediction, attribution: Attribution, special: bool) -> Attribution:
    """What is judged of an attribution."""
    check_explains(attribution, asked)
    if not special and bool(attribution.special.all()):
        raise ValueError("every token of this attribution is special: special=True judges them too")
    return attribution if special else attribution.without(special=True)
