"""ARC-JSD (Li 2025): how far leaving out a sentence moves the whole prediction, as a Jensen–Shannon divergence."""

from dataclasses import dataclass
from math import log
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from heta_lens._util.divergence import js
from heta_lens._util.work_counting import Work
from heta_lens.methods.base import Scores
from heta_lens.methods.perturbation.sources import WithSources, nothing_to_score, source_facts
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.readout import log_softmax


@dataclass(frozen=True, eq=False, kw_only=True)
class ArcJsd(WithSources):
    """``a_s = JSD(P, P without source s)``, in nats: from 0, where nothing changes, to at most log 2.

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
