"""A second device on a machine that has one: its tensors refuse to meet those of the first.

`Elsewhere` holds an ordinary tensor and shows the device "lazy", which autograd treats like the processor. An operation
on tensors of both devices raises the error that a graphics card's would raise.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from transformer_lens.model_bridge import TransformerBridge

SECOND = torch.device("lazy")
MOVING = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}
INDEXING = {
    torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default,
    torch.ops.aten._index_put_impl_.default, torch.ops.aten._unsafe_index_put.default,
}  # fmt: skip
"""What may take an index from the processor."""


class Elsewhere(Tensor):
    """A tensor of the second device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Elsewhere":
        made = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=SECOND,
        )
        made.held = held
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Elsewhere({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return on_second_device(func, args, kwargs or {})


class Factories(TorchDispatchMode):
    """Tensors that are made on the second device, or moved there from the first."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        there = kwargs.get("device") is not None and torch.device(kwargs["device"]) == SECOND
        if there or any(isinstance(arg, Elsewhere) for arg in torch.utils._pytree.tree_leaves((args, kwargs))):
            return on_second_device(func, args, kwargs)
        return func(*args, **kwargs)


class Literals(TorchFunctionMode):
    """Tensors that are made there from numbers, which the dispatcher does not hear of."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = torch.device(kwargs.pop("device"))
            return func(*args, **kwargs).to(device)
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], Elsewhere):
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            args = (args[0], tuple(torch.tensor(at) if isinstance(at, list) else at for at in places), *args[2:])
        return func(*args, **kwargs)


def on_second_device(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    strangers = [leaf for leaf in leaves if not isinstance(leaf, Elsewhere) and leaf.ndim]
    if strangers and len(strangers) < len(leaves) and func not in MOVING | INDEXING:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found two, cuda:1 and cpu, in {func}")
    target = kwargs.get("device")
    if target is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = func(*tree_map(_held, args), **tree_map(_held, kwargs))
    if func is torch.ops.aten.copy_.default:
        return args[0]
    if target is not None and torch.device(target) != SECOND:
        return result
    if func.overloadpacket.__name__.endswith("_") and isinstance(args[0], Tensor):  # in place
        return args[0]
    return tree_map(_wrap, result)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, Elsewhere) else value


def _wrap(value: Any) -> Any:
    return Elsewhere(value) if isinstance(value, Tensor) and not isinstance(value, Elsewhere) else value


class MovedTo(ModelHook):
    """As accelerate's: what a module is given is moved to its device first."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Any]:  # noqa: ARG002
        return tree_map(self._move, args), tree_map(self._move, kwargs)

    def _move(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.device == self.device:
            return value
        return value.to(self.device)


@contextmanager
def second_device() -> Iterator[None]:
    with Factories(), Literals():
        yield


def bridge_on_two_devices(model: Any, tokenizer: Any) -> TransformerBridge:
    """Embedding, first layer and unembedding on the first device, the rest on the second."""
    gpt2 = model.config.model_type == "gpt2"
    layers, norm = (model.transformer.h, model.transformer.ln_f) if gpt2 else (model.model.layers, model.model.norm)
    for module in (*layers[1:], norm):
        _move(module)
        add_hook_to_module(module, MovedTo(SECOND))
    add_hook_to_module(model.lm_head, MovedTo(torch.device("cpu")))
    model.hf_device_map = {"": "cpu"}  # as accelerate leaves it: the bridge takes its first device from there
    name = model.config._name_or_path or "zoo/split"
    return TransformerBridge.boot_transformers(name, hf_model=model, tokenizer=tokenizer, device="cpu").eval()


def _move(module: nn.Module) -> None:
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(Elsewhere(parameter.data))
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = Elsewhere(buffer)
