"""AttnLRP (Achtibat 2024), CP-LRP (Ali 2022) and RelP (2025): relevance propagated from the logit to the embeddings."""

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from einops import einsum

from heta_lens._util.work_counting import Work
from heta_lens.methods.base import Scores
from heta_lens.methods.gradient.backward_rules import Gates, Shares, WithModifiedGradient, modified_gradient, rules
from heta_lens.prediction.prediction import Prediction

Rule: TypeAlias = Literal["attn_lrp", "cp_lrp", "relp"]

RULES: dict[Rule, tuple[Shares, Gates]] = {
    "attn_lrp": ((1 / 4, 1 / 4, 1 / 2), "halved"),
    "cp_lrp": ((0.0, 0.0, 1.0), "constant"),
    "relp": ((1.0, 1.0, 1.0), "halved"),
}


@dataclass(frozen=True, eq=False, kw_only=True)
class AttnLrp(WithModifiedGradient):
    """``a_i = Σ_c E_ic G_ic``: above 0 speaks for the target.

    G is the gradient of the target's logit (of a contrast, of the difference; of a set, of ``log Σ exp`` of the logits;
    of a function, of its value) under modified rules that conserve relevance: norms divide by a constant, an activation
    uses ``f(x) / x`` in place of its slope, and each factor of a product gets a share. ``diagnostics["absorbed"]`` is
    the rest, the logit less the sum of the scores: with ``cp_lrp``, what biases and positions receive; with the other
    rules, also what softmax loses; of a set or a function, also what in it is not linear. Where weights were processed
    so that logits are centred, the centred logit is explained; a contrast is the same either way. lxt's README says
    that LRP is patented and free for personal and scientific use.

    - ``rule``: ``attn_lrp`` halves what flows through a product: values get a half, queries and keys a quarter each, a
      gate and what it multiplies a half each; ``cp_lrp`` takes patterns and gates as constants and halves nothing;
      ``relp`` halves at gates, and leaves the gradient of attention as it is. The authors of AttnLRP use the first for
      models with gates and RMS norms, like Llama, and the second for models like GPT-2.
    """

    rule: Rule = "attn_lrp"

    name: ClassVar = "attn_lrp"
    paper: ClassVar[str] = (
        "Achtibat et al., AttnLRP: attention-aware layer-wise relevance propagation for transformers, ICML 2024, "
        "arXiv:2402.05602; Ali et al., XAI for transformers: better explanations through conservative "
        "propagation, ICML 2022, arXiv:2202.07304; Rezaei Jafari et al., RelP: faithful and efficient circuit "
        "discovery in language models via relevance patching, 2025, arXiv:2508.21258"
    )
    family: ClassVar = "gradient"
    differentiates: ClassVar = True
    cost: ClassVar = "F + B, changed"

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        hooks = rules(prediction.adapter, *RULES[self.rule])
        logit, gradient = modified_gradient(prediction, hooks, progress)
        scores = einsum(prediction.embeddings, gradient, "pos d, pos d -> pos")
        return Scores(scores, {"absorbed": logit - float(scores.sum())})
