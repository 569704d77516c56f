"""Fault injection: what can be seen of a model, and an exception at any chosen moment of a call.

Moments are bytecodes in the library's frames, and in those of what it calls to place hooks, change modes and enter
contexts. A fault is an exception raised at that bytecode, or a real SIGINT, which Python delivers a little later.
"""

import copy
import gc
import random
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import heta_lens

# --------------------------------------------------------------------------------------- everything the caller can see
TORCH_HOOKS = [
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_backward_hooks"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_backward_pre_hooks"),
]
OF_A_TOKENIZER = ["padding_side", "truncation_side", "model_max_length", "special_tokens_map", "init_kwargs"]


def state(model: Any, cache: Any, ids: Tensor) -> dict[str, Any]:
    """A deep copy of all that could be changed, by name."""
    wrapped = getattr(model, "original_model", model)
    modules: list[Any] = [*{id(module): module for module in (*model.modules(), *wrapped.modules())}.values()]
    weights = [
        tensor
        for module in modules
        for named in (module.named_parameters(recurse=False), module.named_buffers(recurse=False))
        for _, tensor in named
    ]
    return {
        "hooks": {
            name: [
                (handle.user_hook, id(handle), id(handle.hook), handle.is_permanent, handle.context_level)
                for handle in (*point.fwd_hooks, *point.bwd_hooks)
            ]
            for name, point in model.hook_dict.items()
        },
        "torch hooks": [[list(getattr(module, kind).items()) for kind in TORCH_HOOKS] for module in modules],
        "training": [module.training for module in modules],
        "weights": [tensor.detach().clone() for tensor in weights],
        "requires_grad": [tensor.requires_grad for tensor in weights],
        "grad": [None if tensor.grad is None else tensor.grad.clone() for tensor in weights],
        "cfg": copy.deepcopy(vars(model.cfg)),
        "config": copy.deepcopy(getattr(wrapped, "config", None)),
        "context level": getattr(model, "context_level", 0),
        "tokenizer": [copy.deepcopy(getattr(model.tokenizer, name)) for name in OF_A_TOKENIZER],
        "vocabulary": len(model.tokenizer),
        "cache": {name: cached.clone() for name, cached in cache.cache_dict.items()},
        "has_batch_dim": cache.has_batch_dim,
        "tokens": ids.clone(),
        "torch random state": torch.get_rng_state(),
        "numpy random state": np.random.get_state()[1].tolist(),  # noqa: NPY002
        "python random state": random.getstate(),
        "grad enabled": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
    }


def differences(before: Any, after: Any, name: str = "") -> list[str]:
    """Where two states differ, to the bit."""
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        return [] if before.dtype == after.dtype and torch.equal(before, after) else [name]
    if isinstance(before, Mapping) and isinstance(after, Mapping) and before.keys() == after.keys():
        return [found for key in before for found in differences(before[key], after[key], f"{name}/{key}")]
    if isinstance(before, list | tuple) and type(before) is type(after) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [found for k, (one, other) in pairs for found in differences(one, other, f"{name}/{k}")]
    return [] if before is after or before == after else [name]


# ------------------------------------------------------------------------------------------------- moments and faults
WATCHED = (heta_lens.__path__[0], "/transformer_lens/", "/contextlib.py", "/torch/utils/_contextlib.py")
TORCH = ("/torch/nn/modules/module.py", "/torch/utils/hooks.py", "/torch/autograd/grad_mode.py")
CHANGING = {
    *("add_hook", "hooked", "undisturbed", "running", "swap_values", "values_put"),
    *("__enter__", "__exit__", "register_forward_hook", "remove"),
}
"""Functions in which something is changed or changed back."""


class Fault(RuntimeError):
    """Like no other error."""


def within(frame: FrameType, *parts: str) -> bool:
    return any(part in frame.f_code.co_filename for part in parts)


def trace(each: Callable[[FrameType], None]) -> None:
    """Call ``each`` at every bytecode in the watched frames."""

    def local(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG001
        if event == "opcode":
            each(frame)
        return local

    def entered(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG001
        if not within(frame, *WATCHED) and not (within(frame, *TORCH) and frame.f_code.co_name in CHANGING):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    sys._getframe().f_trace_opcodes = True  # Python 3.12 has no opcodes unless a frame wants them before it begins
    sys.settrace(entered)


def moments(act: Callable[[], Any]) -> tuple[int, list[int]]:
    """How many moments a call that is left to finish has, and which of them are where something is changed."""
    numbers, critical = count(), []

    def each(frame: FrameType) -> None:
        number = next(numbers)
        if within(frame, "heta_lens/model/lock.py", "/contextlib.py", *TORCH) or frame.f_code.co_name in CHANGING:
            critical.append(number)

    before = sys.gettrace()
    trace(each)
    try:
        act()
    finally:
        sys.settrace(before)
    return next(numbers), critical


def broken_off(
    act: Callable[[], Any], at: int, fault: type[BaseException] | None, again: int | None = None
) -> BaseException | None:
    """Run a call until this moment, and give what came out; ``fault`` None sends a real SIGINT.

    ``again`` raises a KeyboardInterrupt as many calls and returns of functions later: within the clean-up.
    """
    numbers, later, hit = count(), count(), []

    def each(_: FrameType) -> None:
        if next(numbers) != at:
            return
        hit.append(True)
        if again is not None:
            sys.setprofile(once_more)
        if fault is not None:
            raise fault("stop")
        sys.settrace(None)
        signal.raise_signal(signal.SIGINT)

    def once_more(frame: FrameType, event: str, argument: Any) -> None:  # noqa: ARG001
        if next(later) == again:
            sys.setprofile(None)
            raise KeyboardInterrupt("again")

    came, before = None, sys.gettrace()
    gc.disable()  # a finalizer of somebody else's is no place for a fault
    try:
        try:
            trace(each)
            act()
        finally:
            sys.settrace(None)
            sys.setprofile(None)
    except BaseException as error:
        came = error.with_traceback(None)
        came.__context__ = came.__cause__ = None
    finally:
        sys.settrace(before)
        with suppress(KeyboardInterrupt):
            gc.enable()
    # A call takes a few bytecodes more or less each time.
    return came if hit else broken_off(act, at // 2, fault, again)


def fail_from(monkeypatch: pytest.MonkeyPatch, module: Any, call: int, error: BaseException) -> list[int]:
    """From its nth call on, let a module in the middle of the model fail, without any hook."""
    calls, forward = [], module.forward

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) >= call:
            raise error
        return forward(*args, **kwargs)

    monkeypatch.setitem(vars(module), "forward", failing)
    return calls
