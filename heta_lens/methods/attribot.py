"""AttriBoT (Liu 2025): leaving out one sentence at a time, exactly, or of what a cheaper pass has left."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from typing import Annotated, Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens._util.numerics import js
from heta_lens._util.options import COUNT
from heta_lens._util.text import Span, visible_span
from heta_lens._util.work import Work
from heta_lens.methods.base import Scores
from heta_lens.methods.sources import Members, WithSources, nothing_to_score, source_facts
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.tokenizer import locate
from heta_lens.prediction.coalitions import worths
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import log_softmax

# ------------------------------------------------------------------------------------------------------------- arc jsd


@dataclass(frozen=True, eq=False, kw_only=True)
class ArcJsd(WithSources):
    """ARC-JSD (Li 2025): how far leaving out a sentence moves the whole prediction, as a Jensen–Shannon divergence.

    ``a_s = JSD(P, P without source s)``, in nats: from 0, where nothing changes, to at most log 2.

    Special tokens, a chat's template and the query are not sources: they always stay, and get 0. ``diagnostics`` hold
    the ``sources``, their ``source_positions`` and ``source_scores``.
    """

    name: ClassVar = "arc_jsd"
    paper: ClassVar[str] = (
        "Li et al., Attributing response to context: a Jensen–Shannon divergence driven mechanistic study of "
        "context attribution in retrieval-augmented generation, 2025, arXiv:2505.16415"
    )
    family: ClassVar = "perturbation"
    cost: ClassVar = "sources · F, of long contexts each from the source on"
    signed: ClassVar = False
    target_agnostic: ClassVar = True
    adapted: ClassVar = (
        "one position is explained, not a response; the divergence is the paper's, which the authors' code reverses; "
        "tokens share their sentence's score, and are not tokenized again"
    )

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": len(self.sources(prediction)[1])}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        own, clean = self.sources(prediction)[1], prediction.log_probs.double()
        if not len(own):
            return nothing_to_score(prediction, "source_scores")

        def moved(logits: Float[Tensor, "row vocab"]) -> Float[Tensor, "row"]:
            return js(clean, log_softmax(logits.double())).clamp(max=log(2))  # which rounding may exceed

        values = self.without_each(prediction, own, moved, progress)
        facts = source_facts(prediction, own) | {"source_scores": values.tolist()}
        return Scores(self.spread_out(prediction, own, values), facts)


def check_proxy(name: str, proxy: Any) -> None:
    if proxy is not None and (isinstance(proxy, type) or not hasattr(proxy, "run_with_cache")):
        raise TypeError(f"{name}={proxy!r} is not a model: load it first, with heta_lens.load_model")


@dataclass(frozen=True, eq=False, kw_only=True)
class AttriBot(WithSources):
    """AttriBoT (Liu 2025): leaving out one sentence at a time, exactly, or of what a cheaper pass has left.

    ``a_s = g(X) - g(X without source s)``, above 0 where it speaks for the target; g is its log-probability.

    With ``prune_to``, only so many sources (or paragraphs) are kept and measured, in a context that has no others, and
    the rest get 0: those that matter most to a proxy, or when a whole paragraph is left out. Special tokens, a chat's
    template and the query are not sources: they always stay, and get 0. ``diagnostics`` hold the ``sources``, their
    ``source_positions`` and ``source_scores``, and which were ``measured``.

    - ``prune_to``: how many paragraphs, or with a proxy how many sources, are kept after a first pass; None keeps all
    - ``paragraph``: how many sources in a row are a paragraph; None ends paragraphs at line ends
    - ``proxy``: a smaller model with the same tokens, loaded, that makes the first pass; without ``prune_to``, its
      scores are the result
    """

    prune_to: Annotated[int | None, COUNT] = None
    paragraph: Annotated[int | None, COUNT] = None
    proxy: Annotated[Any, check_proxy] = None

    name: ClassVar = "attribot"
    paper: ClassVar[str] = (
        "Liu, Kandpal & Raffel, AttriBoT: a bag of tricks for efficiently approximating leave-one-out context "
        "attribution, ICLR 2025, arXiv:2411.15102"
    )
    family: ClassVar = "perturbation"
    cost: ClassVar = (
        "sources · F, of long contexts each from the source on; pruned, (paragraphs + sources kept + 1) · F"
    )
    adapted: ClassVar = (
        "one token is explained, not a response; tokens share their sentence's score, and are not tokenized again; "
        "of equal first scores the earlier source is kept"
    )

    @property
    def without_effect(self) -> dict[str, str]:
        by_source = self.prune_to is None or self.proxy is not None
        why = "prune_to=None (which prunes nothing)" if self.prune_to is None else "a proxy (which prunes sources)"
        return {**super().without_effect, **({"paragraph": why} if by_source else {})}

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        if self.proxy is not None:
            check_tokens_of(ModelAdapter(self.proxy), prediction)
            super().check(predicted_by(self.proxy, prediction))

    def work(self, prediction: Prediction) -> dict[str, int]:
        own = self.sources(prediction)[1]
        if self.prune_to is None or not len(own):
            return {"forwards": len(own)}
        first = self._first(prediction, own)
        most = sorted((int(inside(part, own).sum()) for part in first), reverse=True)[: self.prune_to]
        return {"forwards": len(first) + 1 + sum(most)}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        own = self.sources(prediction)[1]
        if not len(own):
            return nothing_to_score(prediction, "source_scores", "measured")
        left = np.ones(len(own), dtype=bool)
        if self.prune_to is None:
            values = self._drops(prediction, own, progress)
        else:
            first = self._first(prediction, own)
            best = np.argsort(-self._drops(prediction, first, progress), kind="stable")[: self.prune_to]
            left = inside(np.any(first[best], axis=0), own)
            values = self._pruned_drops(prediction, own, left, progress)
        facts = {"source_scores": values.tolist(), "measured": left.tolist()}
        return Scores(self.spread_out(prediction, own, values), source_facts(prediction, own) | facts)

    def _first(self, prediction: Prediction, own: Members) -> Bool[np.ndarray, "part pos"]:
        """What the first pass leaves out, one after the other."""
        return own if self.proxy is not None else self._paragraphs(prediction, own)

    def _drops(
        self, prediction: Prediction, parts: Bool[np.ndarray, "part pos"], progress: Work
    ) -> Float[np.ndarray, "part"]:
        """How much less likely the target is without each part, to the proxy if there is one."""
        if self.proxy is None:
            return self._own_drops(prediction, parts, progress)
        by_proxy = predicted_by(self.proxy, prediction)
        with by_proxy.running():
            return self._own_drops(by_proxy, parts, progress)

    def _own_drops(
        self, prediction: Prediction, parts: Bool[np.ndarray, "part pos"], progress: Work
    ) -> Float[np.ndarray, "part"]:
        read = partial(prediction.read, scale="log_prob")
        return float(prediction.value) - self.without_each(prediction, parts, read, progress)

    def _pruned_drops(
        self, prediction: Prediction, own: Members, left: Bool[np.ndarray, "source"], progress: Work
    ) -> Float[np.ndarray, "source"]:
        """The same in a context of only the sources that are left; 0 for the others."""
        masks = np.concatenate([left[None], left & ~np.eye(len(own), dtype=bool)[left]])
        every, *without = worths(own, masks, self.coalitions(prediction, "log_prob", progress))
        values = np.zeros(len(own))
        values[left] = every - np.array(without)
        return values

    def _paragraphs(self, prediction: Prediction, own: Members) -> Bool[np.ndarray, "part pos"]:
        """Sources in a row, whose tokens are removed together."""
        if self.paragraph is None:
            text, spans = locate(prediction.adapter.tokenizer.decode, prediction.ids.tolist())
            numbers = lines_of(text, [spans[row.argmax()] for row in own])
        else:
            numbers = np.arange(len(own)) // self.paragraph
        return np.array([own[numbers == number].any(0) for number in np.unique(numbers)])


def lines_of(text: str, spans: Sequence[Span]) -> Int[np.ndarray, "span"]:
    """On which line the first visible character of each span is."""
    return np.array([text.count("\n", 0, visible_span(text, span).start) for span in spans])


def inside(part: Bool[np.ndarray, "pos"], own: Members) -> Bool[np.ndarray, "source"]:
    """Which sources a part holds."""
    return np.any(own[:, part], axis=1)


def check_tokens_of(proxy: ModelAdapter, prediction: Prediction) -> None:
    """Refuse a proxy that has not the same tokens, or reads others out of their ids."""
    ids, own = prediction.ids.tolist(), prediction.adapter
    most = max(ids)
    if most >= proxy.vocabulary or proxy.tokenizer.decode(ids) != own.tokenizer.decode(ids):
        raise ValueError(
            f"the proxy has other tokens than this model ({proxy.vocabulary} and {own.vocabulary}): choose one that "
            "reads the same ids as the same text"
        )


def predicted_by(model: Any, prediction: Prediction) -> Prediction:
    """The same target after the same context, by another model."""
    ids = prediction.ids[None]
    return Prediction.from_cache(ModelAdapter(model).cache(ids), prediction.target, tokens=ids)
