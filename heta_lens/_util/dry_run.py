"""Run code on tensors without data, to see how many bytes it would hold; it takes no memory and little time."""

from contextlib import ExitStack
from typing import Any

import torch
from torch.fx.experimental import _config

from heta_lens._util.allocation_counting import Allocations

aten = torch.ops.aten


class DryRun(Allocations):
    """Counts what code holds that runs on the ``meta`` device, where tensors have shapes and no numbers.

    What such code asks of its tensors is answered: every number is 0, every condition holds, any two tensors are equal.
    So the checks that it makes on the way pass, and it does what it does when all is well.
    """

    def __enter__(self) -> "DryRun":
        self._stack = ExitStack()
        without_data: Any = _config  # which its stubs do not know
        self._stack.enter_context(without_data.patch(meta_nonzero_assume_all_nonzero=True))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._local_scalar_dense.default and args[0].is_meta:
            return args[0].dtype == torch.bool
        if func is aten.equal.default and args[0].is_meta:
            return True
        return super().__torch_dispatch__(func, types, args, kwargs)

    def peak(self) -> int:
        """The most bytes held at once since this was asked last."""
        most, self.most = self.most, self.now
        return most
