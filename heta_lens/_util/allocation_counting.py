"""How many bytes tensors hold: counted as operations make them and nobody has them any more."""

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """Bytes of tensors made in its block: those that are there ``now``, and the ``most`` that were at once.

    Views share what they view, and what was there before does not count. What a kernel needs within is not seen. It is
    the same in every run, unlike a process's size: freed memory stays with a process, for whoever comes next.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note((args, kwargs), new=False)
        results = func(*args, **(kwargs or {}))
        self._note(results, new=True)
        return results

    def _note(self, values: Any, *, new: bool) -> None:
        for value in tree_leaves(values):
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                key = storage._cdata
                if key not in self._known:
                    self._known[key] = storage.nbytes() if new else 0
                    self.now += self._known[key]
                    weakref.finalize(storage, self._release, key)
        self.most = max(self.most, self.now)

    def _release(self, key: int) -> None:
        self.now -= self._known.pop(key)
