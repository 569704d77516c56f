"""One call at a time per model, and everything that a call changes temporarily is restored.

A call *holds* its model. Before it changes anything (hooks, flags, weights), it records the function that changes it
back, which runs when the call ends, however it ends. An exception may arrive between any two bytecodes, also during
this clean-up (Ctrl-C twice), so: records come before changes, changing back may be repeated, and a hold whose function
is no longer being executed does not count. The next call finds such a hold and finishes its clean-up.

Holds of one thread nest. Another thread waits until the model is free. Taking a turn is a single atomic operation, so
that no exception can leave the model taken without an owner.
"""

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial, wraps
from inspect import signature
from threading import Lock, get_ident
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

P = ParamSpec("P")
R = TypeVar("R")

POLL = 0.05  # seconds after which a waiting thread checks whether the one before it still runs
ATTEMPTS = 10  # at changing back, when exceptions keep arriving


class Turn:
    """A thread's turn at a model; the first thread to wait enters the following turn here."""

    def __init__(self, first: "Hold | None") -> None:
        self.first, self.thread = first, get_ident()
        self.over = first is None
        self.following: dict[str, Turn] = {}
        self.latch = Lock()
        self.latch.acquire()

    def end(self) -> None:
        self.over = True
        if self.latch.locked():
            self.latch.release()

    def wait(self) -> None:
        if self.latch.acquire(timeout=POLL):
            with suppress(RuntimeError):  # it may be released meanwhile, where a turn ends twice
                self.latch.release()  # for other waiting threads


class Holds:
    """One model's state: whose turn it is, and what the holds have changed."""

    def __init__(self) -> None:
        self._turn = Turn(None)
        self.held: list[Hold] = []

    @property
    def turn(self) -> Turn:
        """The last turn taken."""
        while (following := self._turn.following.get("")) is not None:
            self._turn = following
        return self._turn

    def lasts(self, turn: Turn) -> bool:
        if turn.over or turn.first is None:
            return False
        stack = frames(turn.thread)
        return turn.first.lasts(stack) or any(hold.turn is turn and hold.lasts(stack) for hold in [*self.held])

    def take(self, hold: "Hold") -> Turn:
        """This thread's turn, which it may already have; waits for another thread's to end."""
        me = get_ident()
        try:
            while True:
                turn = self.turn
                if not self.lasts(turn):
                    mine = Turn(hold)
                    if turn.following.setdefault("", mine) is mine:
                        return mine
                elif turn.thread == me:
                    return turn
                else:
                    _waiting[me] = self
                    _check_deadlock(me)
                    turn.wait()
        finally:
            _waiting.pop(me, None)


class Hold:
    """A call, or a ``with`` block, that has a model to itself.

    It lasts while the ``frame`` of its function is being executed, or while an object in its block lives.
    """

    def __init__(self, holds: Holds, frame: FrameType | None = None, pulse: "_Pulse | None" = None) -> None:
        self.holds, self.frame, self.over = holds, frame, False
        self.pulse = None if pulse is None else weakref.ref(pulse)
        self.turn: Turn | None = None
        self.changes: list[Callable[[], None]] = []  # each undoes one change; the last change comes last

    def lasts(self, stack: set[int]) -> bool:
        if self.over or self.pulse is not None:
            return not self.over and self.pulse is not None and self.pulse() is not None
        return id(self.frame) in stack

    def begin(self) -> None:
        """Wait for the model, and finish the clean-up of interrupted calls."""
        self.turn = self.holds.take(self)
        stack = frames(get_ident())
        for interrupted in [hold for hold in self.holds.held if not hold.lasts(stack)]:
            interrupted.change_back()
        self.holds.held.append(self)

    def change_back(self) -> None:
        while self.changes:
            self.changes[-1]()
            self.changes.pop()
        if self in self.holds.held:
            self.holds.held.remove(self)

    def end(self, *, inner: bool) -> None:
        """Clean up, as often as exceptions arrive; the last of them is raised when all is clean."""
        interrupt = None
        for _ in range(ATTEMPTS):
            try:
                self._end(inner)
                break
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _end(self, inner: bool) -> None:
        """Also end the ``inner`` holds that began later, which must end first."""
        if self.over:
            return
        held = self.holds.held
        for hold in reversed(held[held.index(self) + 1 :] if inner and self in held else []):
            hold.change_back()
        self.change_back()
        if self.turn is not None and not any(hold.turn is self.turn for hold in held):
            self.turn.end()
        self.over, self.frame = True, None


def frames(thread: int) -> set[int]:
    """The ids of the frames that a thread is executing (ids keep nothing alive); none if it has ended."""
    frame, ids = sys._getframe() if thread == get_ident() else sys._current_frames().get(thread), set()
    while frame is not None:
        ids.add(id(frame))
        frame = frame.f_back
    return ids


# --------------------------------------------------------------------------------------------------- how it is used
def one_at_a_time(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function that has the model of its argument ``name`` to itself, and leaves it was."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        place = [*signature(function).parameters].index(name)

        @wraps(function)
        def alone(*args: P.args, **kwargs: P.kwargs) -> R:
            model = _model(args[place] if len(args) > place else kwargs.get(name))
            if model is None:
                return function(*args, **kwargs)  # which raises the right error
            hold = Hold(_holds_of(model), frame=sys._getframe())
            # Twice, because the first may be interrupted before its first bytecode.
            try:
                try:
                    hold.begin()
                    hold.changes.append(_settings_back(model))
                    with _on_the_cpu_by_default():
                        return function(*args, **kwargs)
                finally:
                    hold.end(inner=True)
            finally:
                hold.end(inner=True)

        return alone

    return decorate


def undo_at_end(model: Any, back: Callable[[], None]) -> None:
    """Run ``back`` when the call that holds the model now ends. It may run twice, or before anything was changed."""
    _holds_of(model).held[-1].changes.append(back)


@contextmanager
def changing(model: Any, back: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Have the model to oneself, and run ``back`` at the end. It may run twice, or before anything was changed."""
    pulse = _Pulse()
    hold = Hold(_holds_of(model), pulse=pulse)
    try:
        try:
            hold.begin()
            hold.changes.append(back)
            yield
        finally:
            hold.end(inner=False)
    finally:
        hold.end(inner=False)
        del pulse


@contextmanager
def frozen_parameters(model: Any) -> Iterator[None]:
    """Gradients on, but off for the parameters; the parameters' flags are restored."""
    trainable: list[nn.Parameter] = []
    with changing(model, partial(_require_gradients, trainable)):
        trainable += [parameter for parameter in model.parameters() if parameter.requires_grad]
        with torch.inference_mode(False), torch.enable_grad():
            for parameter in trainable:
                parameter.requires_grad_(False)
            yield


def _require_gradients(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.requires_grad_(True)


class _Pulse:
    """Lives as long as the ``with`` block that it was created for."""


_all_holds: weakref.WeakKeyDictionary[Any, Holds] = weakref.WeakKeyDictionary()
_waiting: dict[int, Holds] = {}  # which model a thread waits for


def _holds_of(model: Any) -> Holds:
    """The same holds for every form of a model: a bridge around it, or a compiled version."""
    for name in ("_orig_mod", "original_model"):
        model = getattr(model, name, model)
    return _all_holds.setdefault(model, Holds())


def _model(given: Any) -> Any:
    """The model of a model, a cache, an adapter or a prediction, or of the first of several."""
    if isinstance(given, list | tuple):
        given = given[0] if given else None
    for name in ("prompt", "adapter", "model"):
        given = getattr(given, name, given) if not isinstance(given, nn.Module) else given
    return given if isinstance(given, nn.Module) else None


def _on_the_cpu_by_default() -> AbstractContextManager[Any]:
    """Tensors without a device are created on the CPU, as if the caller had set no other default device."""
    return nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")


def _settings_back(model: Any) -> Callable[[], None]:
    """Restores what torch and TransformerLens change during every run, and leave changed if it is interrupted."""
    thread, graded = get_ident(), torch.is_grad_enabled()
    owners = ((getattr(model, "tokenizer", None), "padding_side"), (getattr(model, "cfg", None), "default_prepend_bos"))
    settings = [(owner, name, getattr(owner, name)) for owner, name in owners if hasattr(owner, name)]

    def back() -> None:
        for owner, name, value in settings:
            if getattr(owner, name) != value:
                setattr(owner, name, value)
        if thread == get_ident() and torch.is_grad_enabled() != graded:
            torch.set_grad_enabled(graded)

    return back


def _check_deadlock(me: int) -> None:
    """Refuse to wait for a thread that waits for this one."""
    thread, visited = me, set()
    while (holds := _waiting.get(thread)) is not None and thread not in visited:
        visited.add(thread)
        thread = holds.turn.thread
        if thread == me:
            raise RuntimeError(
                "two threads each hold a model and wait for the other's, which would never end: leave swap_values() "
                "on one model before explaining another that other threads swap values in"
            )
