"""One call at a time per model: a call takes the model's lock, and undoes its changes at the end.

The function that undoes a change (of hooks, flags, weights) is recorded before the change is made, so an exception or
a Ctrl-C at any moment leaves nothing behind. If a second Ctrl-C stops the undoing, the next call finishes the undoing.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from threading import RLock
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(eq=False)
class ModelLock:
    """The lock of a model, the depth of calls that hold the lock, and functions that undo the calls' changes."""

    lock: Any = field(default_factory=RLock)
    depth: int = 0  # calls of the holding thread, one inside another
    changes: list[Callable[[], None]] = field(default_factory=list)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the model, and undo at the end the changes made meanwhile."""
        with self.lock:
            depth, before = (
                self.depth,
                len(self.changes) if self.depth else 0,
            )  # 0: undo first the changes of a killed call
            self.undo(before)
            try:
                try:
                    self.depth = depth + 1
                    yield
                finally:
                    self.undo(before)
            finally:  # again, if an interrupt stopped the first time
                self.undo(before)
                self.depth = depth

    def undo(self, before: int) -> None:
        """Undo all changes but the first ``before``, the last change first."""
        while len(self.changes) > before:
            self.changes[-1]()
            self.changes.pop()


_locks: weakref.WeakKeyDictionary[Any, ModelLock] = weakref.WeakKeyDictionary()


def lock_of(model: Any) -> ModelLock:
    """Return the lock of a model, shared with a bridge around the model and a compiled version."""
    for name in ("_orig_mod", "original_model"):
        model = getattr(model, name, model)
    return _locks.setdefault(model, ModelLock())


@contextmanager
def holding(of: Any) -> Iterator[None]:
    """Hold the model of a cache, an adapter, a prompt, a prediction or several; do nothing without a model."""
    model = _model(of)
    if model is None:  # the caller refuses it with the right error
        yield
        return
    lock = lock_of(model)
    with lock.held(), _on_the_cpu_by_default() if lock.depth == 1 else nullcontext():
        if lock.depth == 1:
            lock.changes.append(_settings_back(model))
        yield


def one_at_a_time(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function to hold the model of its argument ``name``, and leave the model as it was."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        place = [*signature(function).parameters].index(name)

        @wraps(function)
        def alone(*args: P.args, **kwargs: P.kwargs) -> R:
            with holding(args[place] if len(args) > place else kwargs.get(name)):
                return function(*args, **kwargs)

        return alone

    return decorate


def undo_at_end(model: Any, back: Callable[[], None]) -> None:
    """Run ``back`` at the end of the innermost call that holds the model. Call before making the change."""
    lock_of(model).changes.append(back)


@contextmanager
def changing(model: Any, back: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the model during a block, and run ``back`` at the end; ``back`` may run before any change was made."""
    lock = lock_of(model)
    with lock.held():
        lock.changes.append(back)
        yield


@contextmanager
def frozen_parameters(model: Any) -> Iterator[None]:
    """Turn gradients on, but off for the parameters, whose flags are restored."""
    trainable: list[nn.Parameter] = []

    def back() -> None:
        for parameter in trainable:
            parameter.requires_grad_(True)

    with changing(model, back):
        trainable += [parameter for parameter in model.parameters() if parameter.requires_grad]
        with torch.inference_mode(False), torch.enable_grad():
            for parameter in trainable:
                parameter.requires_grad_(False)
            yield


def _model(given: Any) -> Any:
    """Return the model of a model, a cache, an adapter or a prediction, or of the first of several."""
    if isinstance(given, list | tuple):
        given = given[0] if given else None
    for name in ("prompt", "adapter", "model"):
        given = getattr(given, name, given) if not isinstance(given, nn.Module) else given
    return given if isinstance(given, nn.Module) else None


def _on_the_cpu_by_default() -> AbstractContextManager[Any]:
    """Create tensors without a device on the CPU, whatever default device the caller has set."""
    return nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")


def _settings_back(model: Any) -> Callable[[], None]:
    """Return a function that restores settings of torch and TransformerLens after an interrupted run."""
    graded = torch.is_grad_enabled()
    owners = ((getattr(model, "tokenizer", None), "padding_side"), (getattr(model, "cfg", None), "default_prepend_bos"))
    settings = [(owner, name, getattr(owner, name)) for owner, name in owners if hasattr(owner, name)]

    def back() -> None:
        for owner, name, value in settings:
            if getattr(owner, name) != value:
                setattr(owner, name, value)
        if torch.is_grad_enabled() != graded:
            torch.set_grad_enabled(graded)

    return back
