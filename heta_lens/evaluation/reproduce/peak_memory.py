"""The peak of memory that a method's own tensors hold, measured on the device where it runs."""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heta_lens.prediction.prediction import Prediction


def peak_memory(explain: Any, prediction: Prediction) -> float:
    """The peak of memory that new tensors hold, in bytes."""
    device = prediction.adapter.device
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        explain(prediction)
        return float(torch.cuda.max_memory_allocated(device) - before)
    with _Meter() as meter:
        explain(prediction)
    return float(meter.most)


class _Meter(TorchDispatchMode):
    """Counts the bytes of living tensors; shared storage counts once."""

    def __init__(self) -> None:
        super().__init__()
        self.live: set[int] = set()
        self.now, self.most = 0, 1

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._allocated(tensor.untyped_storage())
        return result

    def _allocated(self, storage: Any) -> None:
        name, size = storage._cdata, storage.nbytes()
        if name not in self.live:
            self.live.add(name)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._freed, name, size)

    def _freed(self, name: int, size: int) -> None:
        self.live.discard(name)
        self.now -= size
