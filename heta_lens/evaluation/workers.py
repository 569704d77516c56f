"""How many workers an evaluation has, and where."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from os import PathLike
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, get_args, runtime_checkable

import torch
from threadpoolctl import threadpool_limits
from torch import nn

from heta_lens._util.options import check_at_least, check_choice
from heta_lens._util.python import extra, versions
from heta_lens.evaluation.prompt_evaluation import Explainer, Identity, Outcome, PromptEvaluator, Task
from heta_lens.evaluation.run_folder import Record
from heta_lens.model.loading import load_model

# -------------------------------------------------------------------------------------------------------- worker setup
# What a worker is started with: how it loads its model, and the methods it explains prompts by.


PLACED = ("device", "device_map", "n_devices")  # options of `load_model` that say where a model goes


@dataclass(frozen=True, eq=False)
class WorkerSetup:
    """``gpus`` is how many GPUs there are to share out, one to each worker in turn."""

    load: Callable[[], Any]
    entries: Mapping[str, Explainer]
    threads: int
    gpus: int = 0

    def evaluator(self, number: int = 0) -> PromptEvaluator:
        """Load the model of the worker of this number, in a process of which only this many threads are wanted."""
        limit_threads(self.threads)
        return PromptEvaluator(self._placed(number)(), self.entries)

    def _placed(self, number: int) -> Callable[[], Any]:
        """Loads the model on this worker's GPU, unless it is said where models go."""
        load = self.load
        if not self.gpus or not isinstance(load, partial) or load.func is not load_model or _is_placed(load):
            return load
        return partial(load, device=f"cuda:{number % self.gpus}")


def _is_placed(load: partial[Any]) -> bool:
    return any(load.keywords.get(name) is not None for name in PLACED)


def limit_threads(count: int) -> None:
    """Of torch and of the linear algebra that NumPy calls, which share the cores with those of other workers."""
    torch.set_num_threads(count)
    threadpool_limits(count)


def loader(model: Any) -> Callable[[], Any]:
    """How workers load a model: by its name or folder, or by a function; a loaded one cannot be sent to them."""
    if isinstance(model, str | PathLike):
        return partial(load_model, str(model))
    if not _loads(model):
        raise TypeError(
            "workers need a model each: give the name of a model, a folder, or a function that loads one, not a "
            f"{type(model).__name__}"
        )
    return model


def loaded(model: Any) -> Any:
    """The model itself, which may have to be loaded."""
    return loader(model)() if isinstance(model, str | PathLike) or _loads(model) else model


def _loads(model: Any) -> bool:
    return callable(model) and not isinstance(model, nn.Module)


# ---------------------------------------------------------------------------------------------------------- scheduling
# Hands out prompts to workers: the longest first, one at a time to each; a worker's death costs one method's work.
#
# Outcomes come one by one. What a worker that died had not finished is given to another. The method that it was running
# is recorded as failed on this prompt after so many deaths; the others go on. No worker has more than one prompt, and
# no
# result waits for more than its own writing, so a long run takes no more memory than a short one.


Member = TypeVar("Member")


class Finished(NamedTuple):
    """A worker has done its prompt, and is idle."""


class Died(NamedTuple):
    """A worker that will not answer any more, and why."""

    reason: str


News: TypeAlias = Identity | Outcome | Finished | Died | Exception  # an exception: it cannot do its work at all


@runtime_checkable
class Crew(Protocol[Member]):
    """How an engine starts workers, gives them prompts, and hears from them."""

    def start(self) -> Member:
        """A worker, whose first news is its `Identity`."""
        ...

    def give(self, member: Member, task: Task) -> None:
        """Its next news are the outcomes, one by one, in the order of the methods, and then that it has finished."""
        ...

    def news(self, members: Sequence[Member]) -> list[tuple[Member, News]]:
        """Waits until at least one of these has news."""
        ...

    def stop(self, idle: Iterable[Member], busy: Iterable[Member]) -> None: ...


@dataclass
class Attempt:
    """What is left of a prompt, and how many workers have died of each of its methods."""

    task: Task
    deaths: Counter[str] = field(default_factory=Counter)

    def done(self, label: str) -> None:
        pending = {name: metrics for name, metrics in self.task.pending.items() if name != label}
        self.task = self.task._replace(pending=pending)

    def died(self, reason: str, retries: int) -> Iterator[Outcome]:
        """Note a death; after too many of one method, that it failed."""
        label = next(iter(self.task.pending), "")  # methods are run in their order
        self.deaths[label] += 1
        if label and self.deaths[label] > retries:
            workers = "the worker" if retries == 0 else f"{self.deaths[label]} workers, one after the other,"
            instance = self.task.instance
            why = f"{workers} died of this method: {reason}"
            self.done(label)
            yield Outcome(Record(instance.id, label, instance.template, failed=why))


@dataclass(eq=False)
class Pool(Generic[Member]):
    """Workers of one crew; at most ``retries`` replace one that dies of a method, or, one after the other, at start."""

    crew: Crew[Member]
    count: int
    retries: int
    busy: dict[Member, Attempt | None] = field(default_factory=dict)  # None: it is starting
    idle: list[Member] = field(default_factory=list)
    identity: Identity = field(init=False, repr=False)
    failed_starts: int = 0  # since one succeeded

    def start(self) -> None:
        """Start all workers, and wait for the first."""
        for _ in range(self.count):
            self.busy[self.crew.start()] = None
        while not self.idle:
            for member, news in self.crew.news([*self.busy]):
                deque(self._heard(member, news, deque()), maxlen=0)

    def stop(self) -> None:
        self.crew.stop(self.idle, self.busy)

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """What every method gave on every prompt, in the order in which they are finished."""
        waiting = deque(map(Attempt, sorted(tasks, key=_size, reverse=True)))
        while waiting or any(self.busy.values()):
            self._hand_out(waiting)
            finished: list[Outcome] = []
            problem: Exception | None = None
            for member, news in self.crew.news([*self.busy]):
                try:
                    finished += self._heard(member, news, waiting)
                except Exception as error:  # of which others' outcomes must not be lost
                    problem = error
            if problem is None:
                self._hand_out(waiting)  # before anything is written, which takes a while
            yield from finished
            if problem is not None:
                raise problem

    def _hand_out(self, waiting: deque[Attempt]) -> None:
        while waiting and self.idle:
            member, attempt = self.idle.pop(), waiting.popleft()
            self.busy[member] = attempt
            self.crew.give(member, attempt.task)

    def _heard(self, member: Member, news: News, waiting: deque[Attempt]) -> Iterator[Outcome]:
        attempt = self.busy[member]
        match news:
            case Outcome():
                assert attempt is not None
                attempt.done(news.record.method)
                yield news
            case Finished() | Identity():
                if isinstance(news, Identity):
                    self._check_identity(news)
                    self.failed_starts = 0
                del self.busy[member]
                self.idle.append(member)
            case Died(reason):
                yield from self._replaced(member, reason, waiting)
            case _ if attempt is None and self._ready:  # it could not load the model, and others could
                yield from self._replaced(member, f"{type(news).__name__}: {news}", waiting)
            case _:
                raise news

    @property
    def _ready(self) -> bool:
        """Whether a worker has been ready."""
        return hasattr(self, "identity")

    def _replaced(self, member: Member, reason: str, waiting: deque[Attempt]) -> Iterator[Outcome]:
        """Another worker takes the place of one that is lost; what it had not finished waits again."""
        attempt = self.busy.pop(member)
        if attempt is None:
            self.failed_starts += 1
        else:
            yield from attempt.died(reason, self.retries)
            if attempt.task.pending:
                waiting.appendleft(attempt)
        if attempt is not None or self.failed_starts <= self.retries:
            self.busy[self.crew.start()] = None
        elif not (self.busy or self.idle):
            raise RuntimeError(f"workers die before they are ready, the last: {reason}")

    def _check_identity(self, identity: Identity) -> None:
        """Refuse a worker with another model than the first, or with other versions than are installed here."""
        if not self._ready:
            self.identity = Identity(identity.fingerprint, versions())
        for what, mine, others in zip(("model", "installation"), self.identity, identity, strict=True):
            if different := sorted(name for name in {**mine, **others} if mine.get(name) != others.get(name)):
                raise ValueError(f"a worker has another {what} (other {', '.join(different)})")


def _size(task: Task) -> int:
    """About how long a prompt takes, compared with others."""
    instance = task.instance
    text = len(instance.text) or sum(len(str(message)) for message in instance.messages or ())
    return text * len(task.pending)


# -------------------------------------------------------------------------------------------------------- this process
# The engine of one process: it works through the prompts one by one.


@dataclass(frozen=True, eq=False)
class ThisProcess:
    """Works through prompts in their order; each method's outcome is there as soon as it is finished."""

    evaluator: PromptEvaluator

    @property
    def identity(self) -> Identity:
        return self.evaluator.identity

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        for task in tasks:
            yield from self.evaluator.outcomes(task)


# ---------------------------------------------------------------------------------------------------- worker processes
# The engine of several processes on one machine, each with a model of its own.


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


# ---------------------------------------------------------------------------------------------------------- ray actors
# The engine of a Ray cluster, or of Ray on this machine: workers are actors, each with a model of its own.


class RayWorker:
    """What runs in an actor. It loads the model by its first task, since an error of `__init__` would lose its type."""

    def __init__(self, setup: WorkerSetup) -> None:
        self.setup = setup
        self.evaluator: PromptEvaluator

    def load(self) -> Identity:
        self.evaluator = self.setup.evaluator()
        return self.evaluator.identity

    def work(self, task: Task) -> Iterator[Outcome]:
        yield from self.evaluator.outcomes(task)


@dataclass(eq=False)
class RayActors:
    """Starts actors, each with ``gpus`` GPUs (or a part of one) and as many CPUs as it has threads.

    ``address`` is that of a running cluster, as may be the variable ``RAY_ADDRESS``; without either, Ray is started on
    this machine, and ended again.
    """

    setup: WorkerSetup
    count: int
    gpus: float
    address: str | None
    _ray: Any = field(init=False)
    _begun: bool = field(init=False, default=False)
    _answers: dict[Any, Any] = field(init=False, default_factory=dict)  # what is awaited, by the actor that gives it

    def __post_init__(self) -> None:
        self._ray = extra("ray", "--engine ray")
        if not self._ray.is_initialized():
            self._begin()
        try:
            self._check_room()
        except ValueError:
            self.stop((), ())
            raise

    def _begin(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = self.address or os.environ.get("RAY_ADDRESS")
        own = {"num_cpus": self.count * self.setup.threads, "include_dashboard": False}
        # "local", because without an address Ray would join what an earlier, killed command left running here.
        try:
            self._ray.init(address or "local", log_to_driver=False, logging_level="error", **({} if address else own))
        except ConnectionError as error:
            hint = "is it running? If it wants a token, set RAY_AUTH_MODE=token"
            raise ConnectionError(f"{str(error).rstrip('.')}: {hint}") from None
        self._begun = True

    def _check_room(self) -> None:
        """Refuse more workers than the nodes have room for, for which Ray would wait forever."""
        needed = {"CPU": self.setup.threads, "GPU": self.gpus}
        needed = {what: each for what, each in needed.items() if each}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        room = sum(min(int(node.get(what, 0) / each) for what, each in needed.items()) for node in nodes)
        if room < self.count:
            each = " and ".join(f"{size:g} {what}{'s' if size > 1 else ''}" for what, size in needed.items())
            raise ValueError(
                f"the Ray cluster has room for {room} workers with {each} each, and {self.count} are asked for: ask "
                "for fewer, or less for each (--threads, --gpus)"
            )

    def start(self) -> Any:
        kind = self._ray.remote(num_cpus=self.setup.threads, num_gpus=self.gpus, max_restarts=0)(RayWorker)
        actor = kind.remote(self.setup)
        self._answers[actor] = actor.load.remote()
        return actor

    def give(self, member: Any, task: Task) -> None:
        self._answers[member] = member.work.options(num_returns="streaming").remote(task)

    def news(self, members: Sequence[Any]) -> list[tuple[Any, News]]:
        waiting = {self._answers[member]: member for member in members}
        ready, _ = self._ray.wait([*waiting], num_returns=1)
        return [(waiting[answer], self._received(answer)) for answer in ready]

    def _received(self, answer: Any) -> News:
        """An answer, or the next of several."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(answer if isinstance(answer, self._ray.ObjectRef) else next(answer))
        except StopIteration:
            return Finished()
        except errors.RayTaskError as error:
            return error.cause if isinstance(error.cause, Exception) else RuntimeError(str(error))
        except errors.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            return RuntimeError(lines[-1]) if "creation task" in lines[0] else Died(lines[0])

    def stop(self, idle: Iterable[Any], busy: Iterable[Any]) -> None:
        for member in (*idle, *busy):
            self._ray.kill(member)
        if self._begun:
            self._ray.shutdown()


Engine: TypeAlias = Literal["local", "ray"]


@dataclass(frozen=True)
class Workers:
    """Workers that share the prompts of an evaluation, each with a model of its own.

    Args:
        count: how many. One of the engine ``"local"`` is this process itself.
        engine: ``"local"``, processes of this machine; or ``"ray"``, the actors of a Ray cluster.
        threads: of each worker; by default this machine's cores are divided among them.
        gpus: of each worker of Ray, ``0.5``, say, for two that share one. Local workers take turns at all GPUs, if the
            model is given by its name or folder.
        address: of a Ray cluster that runs already, as ``ray.init`` takes it; by default Ray starts here.
        retries: how many more workers are given a method of which one died, before it is recorded as failed.
    """

    count: int = 1
    engine: Engine = "local"
    threads: int | None = None
    gpus: float = 0.0
    address: str | None = None
    retries: int = 2

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, get_args(Engine))
        check_at_least("workers", self.count, 1, whole=True)
        check_at_least("retries", self.retries, 0, whole=True)
        check_at_least("gpus", self.gpus, 0)
        if self.threads is not None:
            check_at_least("threads", self.threads, 1, whole=True)
        if self.engine == "local":
            for name in ("gpus", "address"):
                if getattr(self, name):
                    raise ValueError(f"{name}={getattr(self, name)!r} is for engine='ray': the engine is 'local'")

    @property
    def threads_each(self) -> int:
        return self.threads or max(1, torch.get_num_threads() // self.count)

    @property
    def here(self) -> bool:
        """Whether the work is done in this process."""
        return self.engine == "local" and self.count == 1


class Working(Protocol):
    """What works through prompts: this process, or workers."""

    @property
    def identity(self) -> Identity: ...

    def outcomes(self, tasks: list[Task]) -> Iterator[Outcome]: ...


@contextmanager
def working(model: Any, entries: Mapping[str, Explainer], workers: Workers, most: int) -> Iterator[Working]:
    """Workers for ``most`` prompts at most, which end with the block."""
    if workers.here:
        with _threads(workers.threads):
            yield ThisProcess(PromptEvaluator(loaded(model), entries))
        return
    count = max(1, min(workers.count, most))  # of no prompts, one still says which model it is
    gpus = torch.cuda.device_count() if workers.engine == "local" else 0
    setup = WorkerSetup(loader(model), entries, workers.threads_each, gpus)
    crew: Any = (
        RayActors(setup, count, workers.gpus, workers.address) if workers.engine == "ray" else WorkerProcesses(setup)
    )
    pool = Pool(crew, count, workers.retries)
    try:
        pool.start()
        yield pool
    finally:
        pool.stop()


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """So many for as long as the block lasts; None leaves them as they are."""
    before = torch.get_num_threads()
    with threadpool_limits(count):
        torch.set_num_threads(count or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)
