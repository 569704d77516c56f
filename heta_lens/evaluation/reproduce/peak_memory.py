"""The peak of memory that a method's own tensors hold, measured on the device where it runs."""

from typing import Any

import torch

from heta_lens._util.allocation_counting import Allocations
from heta_lens.prediction.prediction import Prediction


def peak_memory(explain: Any, prediction: Prediction) -> float:
    """The peak of memory that new tensors hold, in bytes; at least one, to divide by."""
    device = prediction.adapter.device
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        explain(prediction)
        return float(torch.cuda.max_memory_allocated(device) - before)
    with Allocations() as held:
        explain(prediction)
    return float(max(1, held.most))
