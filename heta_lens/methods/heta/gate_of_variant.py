"""The gate that a variant asks for: of the whole context, of each window, or none."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens.methods.heta.gate import gate, norms_by_layer
from heta_lens.methods.heta.heta_options import HetaOptions
from heta_lens.methods.heta.segments import Segment
from heta_lens.methods.heta.windows import leakage, window_gate
from heta_lens.prediction.prediction import Prediction


def gate_of_variant(
    options: HetaOptions, prediction: Prediction, segments: Sequence[Segment]
) -> tuple[Float[Tensor, "pos"], dict[str, Any]]:
    """M, and what there is to say about its flow and about how windows change it."""
    if options.recipe.gate != "flow":
        ones = torch.ones_like(prediction.embeddings[:, 0])
        return (ones / len(ones) if options.recipe.gate == "uniform" else ones), {}
    whole, total = flow_gate(options, prediction)
    if not options.recipe.windowed:
        return whole, {"gate_total": total}
    spans, windowed = options.windows_over(prediction), whole
    if options.window_gate == "per_window":
        if options.window_mode == "chunk":
            parts = [flow_gate(options, segment.prediction)[0] for segment in segments]
        else:
            parts = [whole[slice(*span)] for span in spans]
        windowed = window_gate(parts, spans, len(whole))
    return windowed, {"gate_total": total, "windows": len(spans), "window_leakage": leakage(whole, windowed)}


def flow_gate(options: HetaOptions, prediction: Prediction) -> tuple[Float[Tensor, "pos"], float]:
    """M of the whole context, and its normaliser."""
    norms = norms_by_layer(prediction.values, prediction.output_weights, options.value_norm)
    return gate(prediction.patterns, norms, options.flow)
