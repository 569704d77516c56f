"""Leave-one-out: the change of the prediction without one token, or without one sentence.

ARC-JSD (Li 2025) and AttriBoT (Liu 2025) leave out a sentence at a time, AttriBoT after a cheaper first pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.numerics import js, kl
from heta_lens._util.options import COUNT
from heta_lens._util.target_kinds import Activation
from heta_lens._util.text import visible_span
from heta_lens._util.work import Work
from heta_lens.diagnostics import Diagnostics
from heta_lens.methods.base import Scores, WithForwards
from heta_lens.methods.sources import Members, Values, WithSources
from heta_lens.model.adapter import ModelAdapter
from heta_lens.prediction.coalitions import worths
from heta_lens.prediction.masking import depends_on_context
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import exact, log_softmax


@dataclass(frozen=True, eq=False, kw_only=True)
class LeaveOneOut(WithForwards):
    """Leave-one-out: the change of the prediction when one token is masked.

    ``a_i = g(X) - g(X with i masked)``, where g is the target's log-probability: above 0 speaks for the target. With
    ``effect="kl"``, ``a_i = KL(P ‖ P with i masked)``.

    - ``effect``: the drop of the target's ``log_prob`` (of a function or an activation: of its number), or ``kl``, how
      far the whole distribution moves
    """

    effect: Literal["log_prob", "kl"] = "log_prob"

    name: ClassVar = "leave_one_out"
    family: ClassVar = "perturbation"
    cost: ClassVar = "N F, each from the masked token on, or as many as ``forwards`` allows"
    scaled_by: ClassVar = ("forwards",)

    @property
    def directed(self) -> bool:
        return not self.ignores_target

    @property
    def ignores_target(self) -> bool:
        return self.effect == "kl"

    def sharing_runs(self, predictions: Sequence[Prediction]) -> list[list[Prediction]]:
        """Group all predictions, which share masked forwards, unless the mask depends on the context."""
        return super().sharing_runs(predictions) if depends_on_context(self.mask) else [[*predictions]]

    def explain_together(self, predictions: Sequence[Prediction]) -> list[Scores]:
        return [
            Scores(
                found.effects.drop if self.directed else found.effects.divergence,
                Diagnostics(masked_together=found.together),
            )
            for found in self.token_effects(predictions, kl)
        ]


# ------------------------------------------------------------------------------------------------------------ sentences
@dataclass(frozen=True, eq=False, kw_only=True)
class ArcJsd(WithSources):
    """ARC-JSD (Li 2025): how far leaving out a sentence moves the whole prediction, as a Jensen–Shannon divergence.

    ``a_s = JSD(P, P without source s)``, in nats: from 0, where nothing changes, to at most log 2."""

    name: ClassVar = "arc_jsd"
    unit: ClassVar = "nats"
    paper: ClassVar[str] = (
        "Li et al., Attributing response to context: a Jensen–Shannon divergence driven mechanistic study of "
        "context attribution in retrieval-augmented generation, 2025, arXiv:2505.16415"
    )
    cost: ClassVar = "sources · F, of long contexts each from the source on"
    signed: ClassVar = False
    target_agnostic: ClassVar = True
    adapted: ClassVar = (
        "one position is explained, not a response; the divergence is the paper's, which the authors' code reverses; "
        "tokens share their sentence's score, and are not tokenized again"
    )

    def work(self, prediction: Prediction) -> Work:
        return Work(forwards=len(self.sources(prediction)))

    def values(self, prediction: Prediction, sources: Members) -> Values:
        clean = exact(prediction.log_probs)

        def moved(logits: Float[Tensor, "row vocab"]) -> Float[Tensor, "row"]:
            return js(clean, log_softmax(exact(logits))).clamp(max=log(2))  # rounding may exceed the bound

        return Values(self.without_each(prediction, sources, moved))


def check_proxy(name: str, proxy: Any) -> None:
    if proxy is not None and (isinstance(proxy, type) or not hasattr(proxy, "run_with_cache")):
        raise TypeError(f"{name}={proxy!r} is not a model: load it first, with heta_lens.load_model")


@dataclass(frozen=True, eq=False, kw_only=True)
class AttriBot(WithSources):
    """AttriBoT (Liu 2025): leaving out a sentence at a time, exactly, or after a cheaper pass.

    ``a_s = g(X) - g(X without source s)``, above 0 where it speaks for the target; g is its log-probability.

    With ``prune_to``, only so many sources (or paragraphs, which end at line ends) are kept and measured, in a context
    that has no others, and the rest get 0: those that matter most to a proxy, or when a whole paragraph is left out.
    ``diagnostics`` tell which were ``measured``.

    - ``prune_to``: how many paragraphs, or with a proxy how many sources, are kept after a first pass; None keeps all
    - ``proxy``: a smaller model with the same tokens, loaded, that makes the first pass; without ``prune_to``, its
      scores are the result
    """

    prune_to: Annotated[int | None, COUNT] = None
    proxy: Annotated[Any, check_proxy] = None

    name: ClassVar = "attribot"
    unit: ClassVar = "nats"
    paper: ClassVar[str] = (
        "Liu, Kandpal & Raffel, AttriBoT: a bag of tricks for efficiently approximating leave-one-out context "
        "attribution, ICLR 2025, arXiv:2411.15102"
    )
    cost: ClassVar = (
        "sources · F, of long contexts each from the source on; pruned, (paragraphs + sources kept + 1) · F"
    )
    adapted: ClassVar = (
        "one token is explained, not a response; tokens share their sentence's score, and are not tokenized again; "
        "of equal first scores the earlier source is kept"
    )

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        if self.proxy is not None:
            proxy, adapter, ids = ModelAdapter(self.proxy), prediction.adapter, prediction.ids.tolist()
            if max(ids) >= proxy.vocabulary or proxy.tokenizer.decode(ids) != adapter.tokenizer.decode(ids):
                raise ValueError(
                    f"the proxy has other tokens than this model ({proxy.vocabulary} and {adapter.vocabulary}): choose "
                    "one that reads the same ids as the same text"
                )
            super().check(predicted_by(self.proxy, prediction))

    def work(self, prediction: Prediction) -> Work:
        sources = self.sources(prediction)
        if self.prune_to is None or not len(sources):
            return Work(forwards=len(sources))
        first = self._first(prediction, sources)
        most = sorted((int(inside(part, sources).sum()) for part in first), reverse=True)[: self.prune_to]
        return Work(forwards=len(first) + 1 + sum(most))

    def values(self, prediction: Prediction, sources: Members) -> Values:
        left = np.ones(len(sources), dtype=bool)
        if self.prune_to is None:
            values = self._drops(prediction, sources)
        else:
            first = self._first(prediction, sources)
            best = np.argsort(-self._drops(prediction, first), kind="stable")[: self.prune_to]
            left = inside(np.any(first[best], axis=0), sources)
            masks = np.concatenate([left[None], left & ~np.eye(len(sources), dtype=bool)[left]])
            whole, *without = worths(sources, masks, self.coalitions(prediction, "log_prob"))
            values = np.zeros(len(sources))
            values[left] = whole - np.array(without)
        return Values(values, {"measured": left.tolist()})

    def _first(self, prediction: Prediction, sources: Members) -> Bool[np.ndarray, "part pos"]:
        """Return what the first pass leaves out in turn: single sources by a proxy, else paragraphs."""
        if self.proxy is not None:
            return sources
        text, spans = prediction.located
        starts = [visible_span(text, spans[row.argmax()]).start for row in sources]
        numbers = np.array([text.count("\n", 0, start) for start in starts])
        return np.array([sources[numbers == number].any(0) for number in np.unique(numbers)])

    def _drops(self, prediction: Prediction, parts: Bool[np.ndarray, "part pos"]) -> Float[np.ndarray, "part"]:
        """Return the drop of the target's log-probability without each part, for the proxy or else for the model."""
        by = prediction if self.proxy is None else predicted_by(self.proxy, prediction)
        with by.running():
            return float(by.value) - self.without_each(by, parts, partial(by.read, scale="log_prob"))


def inside(part: Bool[np.ndarray, "pos"], sources: Members) -> Bool[np.ndarray, "source"]:
    return np.any(sources[:, part], axis=1)


def predicted_by(model: Any, prediction: Prediction) -> Prediction:
    """Return the same target after the same context, by another model."""
    ids, target = prediction.ids[None], prediction.target
    if isinstance(target, Activation):  # whose place is the end of the context by now
        target = replace(target, at=None)
    return Prediction.from_cache(ModelAdapter(model).cache(ids), target, tokens=ids)
