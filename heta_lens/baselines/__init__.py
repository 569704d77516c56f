"""The methods HETA is compared with, one a file."""

from heta_lens.baselines.attention_last import AttentionLast
from heta_lens.baselines.attention_norm import AttentionNorm
from heta_lens.baselines.attention_rollout import AttentionRollout
from heta_lens.baselines.attn_lrp import AttnLrp
from heta_lens.baselines.baseline import Baseline
from heta_lens.baselines.causal_tracing import CausalTracing
from heta_lens.baselines.context_cite import ContextCite
from heta_lens.baselines.discretized_integrated_gradients import DiscretizedIntegratedGradients
from heta_lens.baselines.faml import Faml
from heta_lens.baselines.gilot import Gilot
from heta_lens.baselines.grad_cam import GradCam
from heta_lens.baselines.gradient_norm import GradientNorm
from heta_lens.baselines.input_x_gradient import InputXGradient
from heta_lens.baselines.integrated_gradients import IntegratedGradients
from heta_lens.baselines.kernel_shap import KernelShap
from heta_lens.baselines.leave_one_out import LeaveOneOut
from heta_lens.baselines.lime import Lime
from heta_lens.baselines.peering import Peering
from heta_lens.baselines.progressive_inference import ProgressiveInference
from heta_lens.baselines.random_scores import RandomScores
from heta_lens.baselines.reagent import Reagent
from heta_lens.baselines.recency import Recency
from heta_lens.baselines.sea_cot import SeaCot
from heta_lens.baselines.sequential_integrated_gradients import SequentialIntegratedGradients
from heta_lens.baselines.tdd import Tdd
from heta_lens.baselines.value_zeroing import ValueZeroing

BASELINES: dict[str, type[Baseline]] = {
    method.name: method
    for method in (
        *(IntegratedGradients, SequentialIntegratedGradients, DiscretizedIntegratedGradients),
        *(InputXGradient, GradientNorm, GradCam, AttnLrp),
        *(AttentionRollout, AttentionLast, AttentionNorm, ValueZeroing),
        *(LeaveOneOut, Lime, KernelShap, ContextCite, ProgressiveInference),
        *(Reagent, Gilot, Tdd, CausalTracing, Faml, Peering, SeaCot),
        *(RandomScores, Recency),
    )
}

__all__ = ["BASELINES", "Baseline"]
