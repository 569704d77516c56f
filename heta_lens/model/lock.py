"""One call at a time per model: a call takes the model's lock, and undoes its changes at the end.

The function that undoes a change (of hooks or flags) is recorded before the change is made, so an exception or
a Ctrl-C at any moment leaves nothing behind. If a second Ctrl-C stops the undoing, the next call finishes the undoing.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from threading import RLock, get_ident
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from heta_lens._util.work import watcher

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(eq=False)
class ModelLock:
    """The lock of a model, the calls that hold the lock, and functions that undo the calls' changes."""

    lock: Any = field(default_factory=RLock)
    holders: tuple[bool, ...] = ()  # of each call of the holding thread, one inside another: does it run a user's code?
    changes: list[Callable[[], None]] = field(default_factory=list)

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
def holding(of: Any, *, users_code: bool = False) -> Iterator[None]:
    """Wait for the model of a cache, adapter, prompt, prediction or several, and undo at the end the changes made.

    During a call from a user's code, tensors without a device are created on the CPU, whatever default the caller has
    set, and gradients are on or off afterwards as before. ``users_code`` says that the block itself is a user's code.
    """
    model = of[0] if isinstance(of, list | tuple) and of else of
    for name in ("prompt", "adapter", "model"):
        if not isinstance(model, nn.Module):
            model = getattr(model, name, model)
    if not isinstance(model, nn.Module):  # the caller refuses it with the right error
        yield
        return
    lock = lock_of(model)
    watch = watcher.get()
    with lock.lock if watch is None else _cancellable(lock.lock, watch):
        holders, before = lock.holders, len(lock.changes) if lock.holders else 0
        lock.undo(before)  # the changes of a killed call
        from_user = all(holders) and not users_code
        elsewhere = from_user and torch.get_default_device().type != "cpu"
        if from_user:
            lock.changes.append(_gradients_as_now())  # an interrupt may stop the end of `torch.no_grad`
        try:
            try:
                lock.holders = (*holders, users_code)
                with torch.device("cpu") if elsewhere else nullcontext():
                    yield
            finally:
                lock.undo(before)
        finally:
            lock.holders = holders  # first: the next call undoes what is left, if it is the outermost
            lock.undo(before)  # again, if an interrupt stopped the first time


def _gradients_as_now() -> Callable[[], None]:
    """Return a function that turns gradients on or off as they are now, in this thread."""
    thread, graded = get_ident(), torch.is_grad_enabled()

    def back() -> None:
        if get_ident() == thread:
            torch.set_grad_enabled(graded)

    return back


@contextmanager
def _cancellable(lock: Any, watch: Callable[[str, int], None]) -> Iterator[None]:
    """Acquire a lock, and call ``watch``, which may raise, while another thread holds the lock."""
    while not lock.acquire(timeout=0.1):
        watch("waiting", 0)
    try:
        yield
    finally:
        lock.release()


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
