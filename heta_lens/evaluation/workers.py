"""Workers that share the prompts of an evaluation: this process, processes of this machine, or actors of Ray.

Outcomes come one by one. No worker has more than one prompt, and no result waits for more than its own writing, so a
long run takes no more memory than a short run. Another worker gets the rest of a prompt if the worker of the prompt
dies; the running method is recorded as failed on the prompt after several deaths, and the other methods go on.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from os import PathLike
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, get_args

import torch
from threadpoolctl import threadpool_limits
from torch import nn

from heta_lens._util.options import check_at_least, check_choice
from heta_lens._util.python import extra, versions
from heta_lens.evaluation.prompt_evaluation import Explainer, Identity, Outcome, PromptEvaluator, Task
from heta_lens.evaluation.run_folder import Record
from heta_lens.model.loading import load_model

Engine: TypeAlias = Literal["local", "ray"]
PATIENCE = 5.0  # seconds until a process ends after its connection is closed or the process is terminated
PLACEMENTS = ("device", "device_map", "n_devices")  # options of `load_model` for the place of a model


@dataclass(frozen=True)
class Workers:
    """Workers that share the prompts of an evaluation; every worker loads a model.

    Args:
        count: the number of workers. A single worker of the engine ``"local"`` is this process itself.
        engine: ``"local"``, processes of this machine; or ``"ray"``, the actors of a Ray cluster.
        threads: the threads of a worker; by default the workers share the cores of this machine.
        gpus: the GPUs of a worker of Ray, such as ``0.5`` for two workers that share a GPU. Local workers take turns
            at the GPUs of this machine, if the model is given by its name or folder.
        address: the address of a running Ray cluster, as ``ray.init`` takes it; by default Ray starts here.
        retries: the number of further workers that try a method after the death of a worker, before the method is
            recorded as failed.
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
        for name in ("gpus", "address") if self.engine == "local" else ():
            if getattr(self, name):
                raise ValueError(f"{name}={getattr(self, name)!r} is for engine='ray': the engine is 'local'")

    @property
    def threads_each(self) -> int:
        return self.threads or max(1, torch.get_num_threads() // self.count)

    @property
    def here(self) -> bool:
        """True if the work is done in this process."""
        return self.engine == "local" and self.count == 1


@dataclass(frozen=True, eq=False)
class ThisProcess:
    """The work of this process, through prompts in their order."""

    evaluator: PromptEvaluator

    @property
    def identity(self) -> Identity:
        return self.evaluator.identity

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        for task in tasks:
            yield from self.evaluator.outcomes(task)


# --------------------------------------------------------------------------------------------------------------- setup
@dataclass(frozen=True, eq=False)
class WorkerSetup:
    """The settings that a worker starts with; the workers take turns at ``gpus`` GPUs."""

    load: Callable[[], Any]
    entries: Mapping[str, Explainer]
    threads: int
    gpus: int = 0

    def evaluator(self, number: int = 0) -> PromptEvaluator:
        """Load the model of the worker of this number, after limiting the threads of the process."""
        limit_threads(self.threads)
        return PromptEvaluator(self._load_on_gpu(number)(), self.entries)

    def _load_on_gpu(self, number: int) -> Callable[[], Any]:
        """Return a loader for the GPU of a worker, unless the user has placed the model."""
        load = self.load
        if not self.gpus or not isinstance(load, partial) or load.func is not load_model:
            return load
        if any(load.keywords.get(name) is not None for name in PLACEMENTS):
            return load
        return partial(load, device=f"cuda:{number % self.gpus}")


def limit_threads(threads: int) -> None:
    """Limit the threads of torch and of NumPy's linear algebra, which share the cores with other workers."""
    torch.set_num_threads(threads)
    threadpool_limits(threads)


def loader(model: Any) -> Callable[[], Any]:
    """Return the function by which workers load a model; a loaded model cannot be sent to workers."""
    if isinstance(model, str | PathLike):
        return partial(load_model, str(model))
    if not _loads(model):
        raise TypeError(
            "workers need a model each: give the name of a model, a folder, or a function that loads one, not a "
            f"{type(model).__name__}"
        )
    return model


def loaded(model: Any) -> Any:
    """Return a model that may be given by its name, its folder, or a function that loads it."""
    return loader(model)() if isinstance(model, str | PathLike) or _loads(model) else model


def _loads(model: Any) -> bool:
    return callable(model) and not isinstance(model, nn.Module)


# ---------------------------------------------------------------------------------------------------------- scheduling
class Finished(NamedTuple):
    """The news of a worker that has finished its prompt."""


class Died(NamedTuple):
    """The news of a worker that will not answer any more, with the reason."""

    reason: str


News: TypeAlias = Identity | Outcome | Finished | Died | Exception  # an exception: the worker cannot work


class Crew(Protocol):
    """An engine, which starts workers, gives prompts to the workers, and receives their news."""

    def start(self) -> Any:
        """Start a worker, whose first news is its `Identity`."""
        ...

    def give(self, member: Any, task: Task) -> None:
        """Give a prompt to a worker, whose next news are the outcomes in the order of the methods, then `Finished`."""
        ...

    def news(self, members: Sequence[Any]) -> list[tuple[Any, News]]:
        """Wait for the next news of these workers."""
        ...

    def stop(self, idle: Collection[Any], busy: Collection[Any]) -> None: ...


@dataclass
class Attempt:
    """The rest of a prompt, and the number of workers that died of every method."""

    task: Task
    deaths: Counter[str] = field(default_factory=Counter)

    def done(self, label: str) -> None:
        pending = {name: metrics for name, metrics in self.task.pending.items() if name != label}
        self.task = self.task._replace(pending=pending)

    def died(self, reason: str, retries: int) -> Iterator[Outcome]:
        """Count a death; after too many deaths of a method, record the method as failed."""
        label = next(iter(self.task.pending), "")  # the running method: methods run in their order
        self.deaths[label] += 1
        if label and self.deaths[label] > retries:
            workers = "the worker" if retries == 0 else f"{self.deaths[label]} workers, one after the other,"
            instance = self.task.instance
            self.done(label)
            failed = f"{workers} died of this method: {reason}"
            yield Outcome(Record(instance.id, label, instance.template, failed=failed))


@dataclass(eq=False)
class Pool:
    """The workers of a crew, with at most ``retries`` replacements for deaths of a method, or for failed starts."""

    crew: Crew
    count: int
    retries: int
    busy: dict[Any, Attempt | None] = field(default_factory=dict)  # None: the worker is starting
    idle: list[Any] = field(default_factory=list)
    identity: Identity = field(init=False, repr=False)
    failed_starts: int = 0  # since the last successful start

    def start(self) -> None:
        """Start all workers, and wait until the first is ready."""
        for _ in range(self.count):
            self.busy[self.crew.start()] = None
        while not self.idle:
            for member, news in self.crew.news([*self.busy]):
                deque(self._received(member, news, deque()), maxlen=0)

    def stop(self) -> None:
        self.crew.stop(self.idle, self.busy)

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Yield the outcomes of all prompts as they are finished; the longest prompts are begun first."""
        waiting = deque(map(Attempt, sorted(tasks, key=_size, reverse=True)))
        while waiting or any(self.busy.values()):
            self._hand_out(waiting)
            finished: list[Outcome] = []
            problem: Exception | None = None
            for member, news in self.crew.news([*self.busy]):
                try:
                    finished += self._received(member, news, waiting)
                except Exception as error:  # raised below, after the outcomes of other workers
                    problem = error
            if problem is None:
                self._hand_out(waiting)  # before the outcomes are written, which takes time
            yield from finished
            if problem is not None:
                raise problem

    def _hand_out(self, waiting: deque[Attempt]) -> None:
        while waiting and self.idle:
            member, attempt = self.idle.pop(), waiting.popleft()
            self.busy[member] = attempt
            self.crew.give(member, attempt.task)

    def _received(self, member: Any, news: News, waiting: deque[Attempt]) -> Iterator[Outcome]:
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
            case _ if attempt is None and self._ready:  # only this worker cannot load the model
                yield from self._replaced(member, f"{type(news).__name__}: {news}", waiting)
            case _:
                raise news

    @property
    def _ready(self) -> bool:
        """True if a worker has been ready."""
        return hasattr(self, "identity")

    def _replaced(self, member: Any, reason: str, waiting: deque[Attempt]) -> Iterator[Outcome]:
        """Start another worker in place of a dead worker, and let the rest of the prompt wait again."""
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
        """Refuse a worker with another model than the first worker, or with other versions than this process."""
        if not self._ready:
            self.identity = Identity(identity.fingerprint, versions())
        for part, ours, theirs in zip(("model", "installation"), self.identity, identity, strict=True):
            if different := sorted(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)):
                raise ValueError(f"a worker has another {part} (other {', '.join(different)})")


def _size(task: Task) -> int:
    """Return a number that grows with the time of a prompt."""
    instance = task.instance
    text = len(instance.text) or sum(len(str(message)) for message in instance.messages or ())
    return text * len(task.pending)


# ---------------------------------------------------------------------------------------------------- worker processes
@dataclass(frozen=True, eq=False)
class WorkerProcess:
    """A process, and the number that the process has among the living workers."""

    number: int
    process: BaseProcess
    connection: Connection

    def death(self) -> Died:
        self.process.join(PATIENCE)
        code = self.process.exitcode
        if code is None or code >= 0:
            return Died("its process ended" + (f" with exit code {code}; its output says why" if code else ""))
        name = signal.Signals(-code).name
        hint = ", as the system does when memory is short" if name == "SIGKILL" else ""
        return Died(f"its process was ended by {name}{hint}")


@dataclass(eq=False)
class WorkerProcesses:
    """The crew of spawned processes; a forked process would share the locks of this process's threads."""

    setup: WorkerSetup
    started: int = field(default=0, init=False)
    _numbers: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        _check_importable(self.setup)

    def start(self) -> WorkerProcess:
        number = next(number for number in count() if number not in self._numbers)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, self.setup, number, self.started > 0), daemon=True)
        with _interrupts_ignored():  # the process inherits this, so that only this process handles interrupts
            process.start()
        theirs.close()
        self.started += 1
        self._numbers.add(number)
        return WorkerProcess(number, process, ours)

    def give(self, member: WorkerProcess, task: Task) -> None:
        with suppress(OSError):  # the next news of a dead worker is its death
            member.connection.send(task)

    def news(self, members: Sequence[WorkerProcess]) -> list[tuple[WorkerProcess, News]]:
        ready = wait([member.connection for member in members])
        return [(member, self._received(member)) for member in members if member.connection in ready]

    def _received(self, member: WorkerProcess) -> News:
        try:
            return member.connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            member.connection.close()
            self._numbers.discard(member.number)  # free for the next worker, with the GPU of the number
            return member.death()

    def stop(self, idle: Collection[WorkerProcess], busy: Collection[WorkerProcess]) -> None:
        """Let idle workers end by themselves, without leaving anything behind, and terminate busy workers."""
        for member in (*idle, *busy):
            member.connection.close()
        for member in busy:
            member.process.terminate()
        for member in (stuck := _alive([*idle, *busy])):
            member.process.kill()
        _alive(stuck)


def _alive(members: Sequence[WorkerProcess]) -> list[WorkerProcess]:
    """Wait for the ends of processes, and return the processes that have not ended in time."""
    until = time.monotonic() + PATIENCE
    for member in members:
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
    """Refuse a program, a function or methods that worker processes could not import."""
    main = sys.modules["__main__"]
    program = getattr(main, "__file__", None)
    if program is not None and getattr(main, "__spec__", None) is None and not os.path.exists(program):
        raise ValueError(f"workers cannot be started by a program that is in no file ({program}): put it into a file")
    ways = "give its name, a folder, or a function of a module"
    if program is None and getattr(setup.load, "__module__", None) == "__main__":
        raise ValueError(f"workers cannot load the model by a function that is in no file: {ways}")
    try:
        pickle.dumps(setup.load)
    except Exception as error:
        raise ValueError(f"workers cannot load the model this way ({error}): {ways}") from None
    try:
        pickle.dumps(setup.entries)
    except Exception as error:
        way = "name the methods, or give functions of a module"
        raise ValueError(f"workers cannot be given these methods ({error}): {way}") from None


def serve(connection: Connection, setup: WorkerSetup, number: int, silent: bool) -> None:
    """Evaluate the prompts that come through a connection, until the connection is closed.

    A ``silent`` worker warns of nothing while it loads the model; the first worker gives the same warnings.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles interrupts
    os.dup2(2, 1)  # the output of a loading model must stay out of the output of the command
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
    """Return the error, or an error with the same message if pickle cannot send the error."""
    with suppress(Exception):
        copy: Any = pickle.loads(pickle.dumps(error))
        if type(copy) is type(error) and str(copy) == str(error):
            return error
    return RuntimeError(f"{type(error).__name__}: {error}")


# ----------------------------------------------------------------------------------------------------------------- Ray
class RayWorker:
    """The object of a Ray actor. The first task loads the model, because an error in `__init__` loses its type."""

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
    """The crew of Ray actors, with ``gpus`` GPUs (or a part of a GPU) and a CPU per thread each.

    ``address`` or the environment variable ``RAY_ADDRESS`` names a running cluster; without an address, Ray is started
    on this machine, and ended by `stop`.
    """

    setup: WorkerSetup
    count: int
    gpus: float
    address: str | None
    _ray: Any = field(init=False)
    _started_ray: bool = field(init=False, default=False)
    _answers: dict[Any, Any] = field(init=False, default_factory=dict)  # the awaited answers, by actor

    def __post_init__(self) -> None:
        self._ray = extra("ray", "--engine ray")
        if not self._ray.is_initialized():
            self._start_ray()
        try:
            self._check_room()
        except ValueError:
            self.stop((), ())
            raise

    def _start_ray(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = self.address or os.environ.get("RAY_ADDRESS")
        local = {"num_cpus": self.count * self.setup.threads, "include_dashboard": False}
        # Without an address, Ray would join the cluster that a killed command left running: "local" starts another.
        try:
            self._ray.init(address or "local", log_to_driver=False, logging_level="error", **({} if address else local))
        except ConnectionError as error:
            hint = "is it running? If it wants a token, set RAY_AUTH_MODE=token"
            raise ConnectionError(f"{str(error).rstrip('.')}: {hint}") from None
        self._started_ray = True

    def _check_room(self) -> None:
        """Refuse more workers than the nodes have room for: Ray would wait forever."""
        needed = {kind: size for kind, size in {"CPU": self.setup.threads, "GPU": self.gpus}.items() if size}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        room = sum(min(int(node.get(kind, 0) / size) for kind, size in needed.items()) for node in nodes)
        if room < self.count:
            each = " and ".join(f"{size:g} {kind}{'s' if size > 1 else ''}" for kind, size in needed.items())
            raise ValueError(
                f"the Ray cluster has room for {room} workers with {each} each, and {self.count} are asked for: ask "
                "for fewer workers, or for less per worker (--threads, --gpus)"
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
        """Return an answer, or the next answer of a stream."""
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

    def stop(self, idle: Collection[Any], busy: Collection[Any]) -> None:
        for member in (*idle, *busy):
            self._ray.kill(member)
        if self._started_ray:
            self._ray.shutdown()


# ------------------------------------------------------------------------------------------------------------- engines
@contextmanager
def working(
    model: Any, entries: Mapping[str, Explainer], workers: Workers, most: int
) -> Iterator["ThisProcess | Pool"]:
    """Start workers for at most ``most`` prompts, and end the workers with the block."""
    if workers.here:
        with threadpool_limits(workers.threads), _torch_threads(workers.threads):
            yield ThisProcess(PromptEvaluator(loaded(model), entries))
        return
    number = max(1, min(workers.count, most))  # without prompts, a worker still identifies the model
    gpus = torch.cuda.device_count() if workers.engine == "local" else 0
    setup = WorkerSetup(loader(model), entries, workers.threads_each, gpus)
    ray = workers.engine == "ray"
    crew = RayActors(setup, number, workers.gpus, workers.address) if ray else WorkerProcesses(setup)
    pool = Pool(crew, number, workers.retries)
    try:
        pool.start()
        yield pool
    finally:
        pool.stop()


@contextmanager
def _torch_threads(threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
