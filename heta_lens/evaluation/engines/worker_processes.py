"""The engine of several processes on one machine, each with a model of its own."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from heta_lens.evaluation.engines.scheduling import Died, Finished, News
from heta_lens.evaluation.engines.worker_setup import WorkerSetup
from heta_lens.evaluation.prompt_evaluation import Task

PATIENCE = 5.0  # seconds for a process to end, once its connection is closed or it is terminated
KILLED = {signal.SIGKILL: "as the system does when memory is short"} if hasattr(signal, "SIGKILL") else {}


@dataclass(frozen=True, eq=False)
class WorkerProcess:
    """``number`` is its place among those that are at work at once."""

    number: int
    process: BaseProcess
    connection: Connection

    def death(self) -> Died:
        self.process.join(PATIENCE)
        code = self.process.exitcode
        if code is None or code >= 0:
            return Died("its process ended" + (f" with exit code {code}; what it printed says why" if code else ""))
        name = signal.Signals(-code)
        hint = f", {KILLED[name]}" if name in KILLED else ""
        return Died(f"its process was ended by {name.name}{hint}")


@dataclass(eq=False)
class WorkerProcesses:
    """Starts processes from nothing: a copy of this one would share the locks of its threads."""

    setup: WorkerSetup
    started: int = field(default=0, init=False)
    _numbers: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        _check_importable(self.setup)

    def start(self) -> WorkerProcess:
        number = next(number for number in count() if number not in self._numbers)
        context = multiprocessing.get_context("spawn")
        mine, its = context.Pipe()
        process = context.Process(target=serve, args=(its, self.setup, number, self.started > 0), daemon=True)
        with _interrupts_ignored():  # which it inherits: also while it imports, only this process deals with them
            process.start()
        its.close()
        self.started += 1
        self._numbers.add(number)
        return WorkerProcess(number, process, mine)

    def give(self, member: WorkerProcess, task: Task) -> None:
        with suppress(OSError):  # of one that has died, which the next news says
            member.connection.send(task)

    def news(self, members: Sequence[WorkerProcess]) -> list[tuple[WorkerProcess, News]]:
        ready = wait([member.connection for member in members])
        return [(member, self._received(member)) for member in members if member.connection in ready]

    def _received(self, member: WorkerProcess) -> News:
        try:
            return member.connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            member.connection.close()
            self._numbers.discard(member.number)  # for the one that takes its place, and its GPU
            return member.death()

    def stop(self, idle: Iterable[WorkerProcess], busy: Iterable[WorkerProcess]) -> None:
        """Those that are idle end by themselves, and so leave nothing behind; the others are terminated."""
        idle, busy = [*idle], [*busy]
        for member in (*idle, *busy):
            member.connection.close()
        for member in busy:
            member.process.terminate()
        for member in (stuck := _alive([*idle, *busy], PATIENCE)):
            member.process.kill()
        _alive(stuck, PATIENCE)


def _alive(members: Iterable[WorkerProcess], seconds: float) -> list[WorkerProcess]:
    """Those that have not ended after so long."""
    until = time.monotonic() + seconds
    for member in (members := [*members]):
        member.process.join(max(0.0, until - time.monotonic()))
    return [member for member in members if member.process.is_alive()]


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _check_importable(setup: WorkerSetup) -> None:
    """Refuse, before a process is started, what it could not import."""
    main = sys.modules["__main__"]
    program = getattr(main, "__file__", None)
    spec = getattr(main, "__spec__", None)
    if program is not None and spec is None and not os.path.exists(program):
        raise ValueError(f"workers cannot be started by a program that is in no file ({program}): put it into one")
    ways = "give its name, a folder, or a function of a module"
    if program is None and getattr(setup.load, "__module__", None) == "__main__":
        raise ValueError(f"workers cannot load the model by a function that is in no file: {ways}")
    try:
        pickle.dumps(setup)
    except Exception as error:
        if _is_picklable(setup.load):
            way = "name them, or give functions of a module"
            raise ValueError(f"workers cannot be given these methods ({error}): {way}") from None
        raise ValueError(f"workers cannot load the model this way ({error}): {ways}") from None


def _is_picklable(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


# ------------------------------------------------------------------------------------------------------ in the worker
def serve(connection: Connection, setup: WorkerSetup, number: int, silent: bool) -> None:
    """Work on prompts until there are no more, or until who asks for them has ended.

    All but the first are silent while they load the model: they would say the same.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the process that started this one deals with
    os.dup2(2, 1)  # what is printed while a model loads must not get into the output of the command
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            with warnings.catch_warnings():
                if silent:
                    warnings.simplefilter("ignore")
                evaluator = setup.evaluator(number)
                connection.send(evaluator.identity)
        except Exception as error:
            connection.send(_picklable(error))
            return
        while True:
            for outcome in evaluator.outcomes(connection.recv()):
                connection.send(outcome)
            connection.send(Finished())


def _picklable(error: Exception) -> Exception:
    """The error, or, where it cannot be sent, one that says the same."""
    with suppress(Exception):
        copy: Any = pickle.loads(pickle.dumps(error))
        if type(copy) is type(error) and str(copy) == str(error):
            return error
    return RuntimeError(f"{type(error).__name__}: {error}")
