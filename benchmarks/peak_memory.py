"""How much memory tensors take."""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak(run: Callable[[], Any]) -> float:
    """The most MiB that tensors held at once beyond those that were there; what a kernel needs within is not seen.

    One token, or one batch, from where runs are longest shows the most there is: nothing grows from token to token. The
    process's size says less on a CPU: freed memory stays with it, and is there for whoever comes next.
    """
    with Held() as held:
        run()
    return held.most / 2**20


class Held(TorchDispatchMode):
    """Counts the bytes of new tensors from the operation that makes them until nobody has them any more."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.note((args, kwargs), new=False)
        results = func(*args, **(kwargs or {}))
        self.note(results, new=True)
        return results

    def note(self, values: Any, *, new: bool) -> None:
        for value in tree_leaves(values):
            if isinstance(value, Tensor):
                storage = value.untyped_storage()  # which views share
                key = storage._cdata
                if key not in self.known:
                    self.known[key] = storage.nbytes() if new else 0
                    self.now += self.known[key]
                    weakref.finalize(storage, self.release, key)
        self.most = max(self.most, self.now)

    def release(self, key: int) -> None:
        self.now -= self.known.pop(key)
