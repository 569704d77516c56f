"""Turns: one call at a time per model, and everything that a call changes for a while put back.

A call *holds* its model. What it is about to change (hooks, flags, weights) it notes first, with the function that
changes it back; this runs when the call ends, however it ends. An exception may arrive between any two bytecodes, also
during this clean-up (Ctrl-C twice), so: notes come before changes, changing back may be repeated, and a hold whose
function is no longer being executed counts for nothing. The next call finds such a hold and finishes its clean-up.

Holds of one thread nest. Another thread waits until the model is free. Taking a turn is a single atomic operation, so
that no exception can leave the model taken by nobody.
"""

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import wraps
from inspect import signature
from threading import Lock, get_ident
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

P = ParamSpec("P")
R = TypeVar("R")

POLL = 0.05  # seconds after which a waiting thread looks whether the one before it is still there
ATTEMPTS = 10  # at changing back, when exceptions keep arriving


class Turn:
    """A thread's turn at a model; the turn that follows it is entered here by whoever is first."""

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
                self.latch.release()  # for whoever else waits


class Holds:
    """Of one model: whose turn it is, and what the holds have changed."""

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
        """This thread's turn, which it may have already; waits for another thread's to end."""
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
    """A call, or a ``with`` block, that has a model for itself.

    It lasts as long as the ``frame`` of its function is being executed, or as long as something in its block lives.
    """

    def __init__(self, holds: Holds, frame: FrameType | None = None, pulse: "_Pulse | None" = None) -> None:
        self.holds, self.frame, self.over = holds, frame, False
        self.pulse = None if pulse is None else weakref.ref(pulse)
        self.turn: Turn | None = None
        self.changes: list[Callable[[], None]] = []  # each of them undoes one; the last change comes last

    def lasts(self, stack: set[int]) -> bool:
        if self.over or self.pulse is not None:
            return not self.over and self.pulse is not None and self.pulse() is not None
        return id(self.frame) in stack

    def begin(self) -> None:
        """Wait for the model, and finish the clean-up of calls that were broken off."""
        self.turn = self.holds.take(self)
        stack = frames(get_ident())
        for left in [hold for hold in self.holds.held if not hold.lasts(stack)]:
            left.change_back()
        self.holds.held.append(self)

    def change_back(self) -> None:
        while self.changes:
            self.changes[-1]()
            self.changes.pop()
        if self in self.holds.held:
            self.holds.held.remove(self)

    def end(self, *, inner: bool) -> None:
        """Clean up, for as long as exceptions arrive; of the last of them it is told when all is clean."""
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
        """With those ``inner`` holds that were begun later, which must have ended before."""
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
    """The ids of what a thread is executing, so that nothing is kept alive; none, if it has ended."""
    at, found = sys._getframe() if thread == get_ident() else sys._current_frames().get(thread), set()
    while at is not None:
        found.add(id(at))
        at = at.f_back
    return found


# --------------------------------------------------------------------------------------------------- how it is used
def one_at_a_time(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function that has the model of its argument of this ``name`` for itself, and leaves it as it was."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        place = [*signature(function).parameters].index(name)

        @wraps(function)
        def alone(*args: P.args, **kwargs: P.kwargs) -> R:
            model = _model(args[place] if len(args) > place else kwargs.get(name))
            if model is None:
                return function(*args, **kwargs)  # which will say what is wrong
            hold = Hold(_holds_of(model), frame=sys._getframe())
            # Twice, because the first may be broken off before its first bytecode.
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


@contextmanager
def changing(model: Any, back: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Have the model for oneself, and run ``back`` in the end. It may be run twice, or before anything was changed."""
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


class _Pulse:
    """Lives as long as the ``with`` block that it was made for."""


_all_holds: weakref.WeakKeyDictionary[Any, Holds] = weakref.WeakKeyDictionary()
_waiting: dict[int, Holds] = {}  # which model a thread waits for


def _holds_of(model: Any) -> Holds:
    """The same for all that stands for one model: bridges around it, compiled forms of it."""
    for name in ("_orig_mod", "original_model"):
        model = getattr(model, name, model)
    return _all_holds.setdefault(model, Holds())


def _model(given: Any) -> Any:
    """Of a model, a cache, a lens or a prediction, or of the first of several."""
    if isinstance(given, list | tuple):
        given = given[0] if given else None
    for name in ("prompt", "lens", "model"):
        given = getattr(given, name, given) if not isinstance(given, nn.Module) else given
    return given if isinstance(given, nn.Module) else None


def _on_the_cpu_by_default() -> AbstractContextManager[Any]:
    """Tensors without a device are made on the CPU, as if the caller had set no other default device."""
    return nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")


def _settings_back(model: Any) -> Callable[[], None]:
    """What torch and TransformerLens change for a while in every run, and may leave changed when it is broken off."""
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
    thread, seen = me, set()
    while (holds := _waiting.get(thread)) is not None and thread not in seen:
        seen.add(thread)
        thread = holds.turn.thread
        if thread == me:
            raise RuntimeError(
                "two threads hold a model each and wait for the other's, which would last forever: end swap_values() "
                "on one model before explaining another that other threads swap values in"
            )
