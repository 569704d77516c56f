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
from dataclasses import dataclass
from itertools import count
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

# --------------------------------------------------------------------------------------- everything the caller can see
TORCH_HOOKS = [
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
]


def wrapped(model: Any) -> Any:
    return getattr(model, "original_model", model)


def modules(model: Any) -> list[Any]:
    return list({id(module): module for module in (*model.modules(), *wrapped(model).modules())}.values())


def weights(model: Any) -> dict[str, Tensor]:
    found = {}
    for k, module in enumerate(modules(model)):
        found |= {f"{k}.{name}": tensor for name, tensor in module.named_parameters(recurse=False)}
        found |= {f"{k}.{name}": tensor for name, tensor in module.named_buffers(recurse=False)}
    return found


def state(model: Any, cache: Any, ids: Tensor) -> dict[str, Any]:
    """A deep copy of all that could be changed, by name."""
    return {
        "hooks": {
            name: [
                (handle.user_hook, id(handle), id(handle.hook), handle.is_permanent, handle.context_level)
                for handle in (*point.fwd_hooks, *point.bwd_hooks)
            ]
            for name, point in model.hook_dict.items()
        },
        "torch hooks": [[list(getattr(module, kind).items()) for kind in TORCH_HOOKS] for module in modules(model)],
        "training": [module.training for module in modules(model)],
        "weights": {name: tensor.detach().clone() for name, tensor in weights(model).items()},
        "requires_grad": {name: tensor.requires_grad for name, tensor in weights(model).items()},
        "grad": {name: None if tensor.grad is None else tensor.grad.clone() for name, tensor in weights(model).items()},
        "cfg": copy.deepcopy(vars(model.cfg)),
        "config": copy.deepcopy(getattr(wrapped(model), "config", None)),
        "context level": getattr(model, "context_level", 0),
        "tokenizer": settings(model.tokenizer),
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


def settings(tokenizer: Any) -> dict[str, Any]:
    names = ["padding_side", "truncation_side", "model_max_length", "special_tokens_map", "init_kwargs"]
    return {name: copy.deepcopy(getattr(tokenizer, name)) for name in names} | {"size": len(tokenizer)}


def differences(before: Any, after: Any, name: str = "") -> list[str]:
    """Where two states differ, to the bit."""
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        equal = before.dtype == after.dtype and torch.equal(before, after)
        return [] if equal else [name]
    if isinstance(before, Mapping) and isinstance(after, Mapping) and before.keys() == after.keys():
        return [found for key in before for found in differences(before[key], after[key], f"{name}/{key}")]
    if isinstance(before, list | tuple) and type(before) is type(after) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [found for k, (one, other) in pairs for found in differences(one, other, f"{name}/{k}")]
    return [] if before is after or before == after else [name]


# ------------------------------------------------------------------------------------------------- moments and faults
WATCHED = ("/heta_lens/heta_lens", "/transformer_lens/", "/contextlib.py", "/torch/utils/_contextlib.py")
CRITICAL = ("/torch/nn/modules/module.py", "/torch/utils/hooks.py", "/torch/autograd/grad_mode.py")
CRITICAL_FUNCTIONS = {
    *("add_hook", "hooked", "undisturbed", "running", "shuffled", "swap_values", "values_put"),
    *("__enter__", "__exit__", "register_forward_hook", "remove"),
}


class Fault(RuntimeError):
    """Like no other error."""


@dataclass(frozen=True)
class Moments:
    """How many moments a call has, and which of them are where something is changed or changed back."""

    total: int
    critical: list[int]

    def draw(self, generator: random.Random) -> int:
        """Any moment, or as often a critical one: those are few."""
        if self.critical and generator.random() < 0.5:
            return generator.choice(self.critical)
        return generator.randrange(self.total)


def package() -> str:
    import heta_lens

    return heta_lens.__path__[0]


def watched(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    if any(part in name for part in CRITICAL):
        return frame.f_code.co_name in CRITICAL_FUNCTIONS
    return name.startswith(package()) or any(part in name for part in WATCHED)


def critical(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return (
        name.endswith("heta_lens/model/lock.py")
        or "/contextlib.py" in name
        or any(part in name for part in CRITICAL)
        or frame.f_code.co_name in CRITICAL_FUNCTIONS
    )


def tracer(each: Callable[[FrameType], None]) -> Callable[..., Any]:
    """A trace function that is told of every bytecode in the watched frames."""

    def local(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG001
        if event == "opcode":
            each(frame)
        return local

    def entered(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG001
        if not watched(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    return entered


def trace(each: Callable[[FrameType], None]) -> None:
    sys._getframe().f_trace_opcodes = True  # Python 3.12 has no opcodes unless a frame wants them before it begins
    sys.settrace(tracer(each))


def moments(act: Callable[[], Any]) -> Moments:
    """Those of a call that is left to finish."""
    numbers, marked = count(), []

    def each(frame: FrameType) -> None:
        number = next(numbers)
        if critical(frame):
            marked.append(number)

    before = sys.gettrace()
    trace(each)
    try:
        act()
    finally:
        sys.settrace(before)
    return Moments(next(numbers), marked)


def broken_off(
    act: Callable[[], Any], at: int, fault: type[BaseException] | None, again: int | None = None
) -> BaseException | None:
    """Run a call until this moment, and give what came out; ``fault`` None sends a real SIGINT.

    ``again`` raises a KeyboardInterrupt as many calls and returns of functions later: within the clean-up.
    """
    numbers, later = count(), count()
    hit = []

    def each(_: FrameType) -> None:
        if next(numbers) != at:
            return
        hit.append(True)
        if again is not None:
            sys.setprofile(once_more)
        if fault is None:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
        else:
            raise fault("stop")

    def once_more(frame: FrameType, event: str, argument: Any) -> None:  # noqa: ARG001
        if next(later) == again:
            sys.setprofile(None)
            raise KeyboardInterrupt("again")

    came = None
    gc_was = gc.isenabled()
    gc.disable()  # a finalizer of somebody else's is no place for a fault
    before = sys.gettrace()
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
            if gc_was:
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
