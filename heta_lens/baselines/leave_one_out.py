"""Leave-one-out: what happens to the prediction when one token is masked."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from heta_lens.baselines.baseline import Baseline, Found
from heta_lens.divergence import DIVERGENCES
from heta_lens.masking import Masking
from heta_lens.options import Batch
from heta_lens.pieces import masked_information, pieces
from heta_lens.prediction import Prediction
from heta_lens.progress import Work
from heta_lens.windows import Window


@dataclass(frozen=True, eq=False, kw_only=True)
class LeaveOneOut(Baseline):
    """``a_i = KL(P ‖ P with token i masked)``, or ``g(X) - g(X with i masked)``, above 0 where i speaks for the target.

    - ``effect``: ``kl``, on the whole distribution, or the drop of the target's ``log_prob``
    - ``mask``: what a masked token's embedding becomes: ``zero``, ``mean``, ``vocab_mean``, ``pad``, a token id or a
      vector
    - ``batch``: copies of the context run at once
    """

    effect: Literal["kl", "log_prob"] = "kl"
    mask: Masking = "zero"
    batch: Batch = "auto"

    name: ClassVar = "leave_one_out"
    cost: ClassVar = "N F, each from the masked token on"
    signed: ClassVar = False

    @property
    def directed(self) -> bool:
        return self.effect == "log_prob"

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": len(prediction)}

    def explain(self, asked: Prediction, work: Work) -> Found:
        seen = masked_information(
            pieces(asked, [Window(0, len(asked))], "frozen", None)[0],
            [asked],
            mask=self.mask,
            divergence=DIVERGENCES["orig_masked"],
            batches=asked.prompt.batches(self.batch, len(asked)),
            done=partial(work.add, "forwards"),
        )
        if self.effect == "log_prob":
            return seen.drop[0], {}
        whole = "the divergence is about the whole next-token distribution, not about the contrast"
        return seen.divergence[0], {"note": whole} if isinstance(asked.target, tuple) else {}
