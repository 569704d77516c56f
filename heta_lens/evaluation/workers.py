"""Workers that share the prompts of an evaluation: this process, processes of this machine, or actors of Ray.

Every worker claims a prompt of the run's database, explains the prompt by every pending method, and commits each result
at once. Only Ray's actors have no database: this process claims and commits for them.
"""

import multiprocessing
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from threadpoolctl import threadpool_limits
from torch import nn

from heta_lens._util.options import check_at_least, check_choice
from heta_lens._util.python import extra, versions
from heta_lens.data.instance import Instance
from heta_lens.evaluation.prompt_evaluation import Explainer, PromptEvaluator, Task
from heta_lens.evaluation.run_database import Claim, RunDatabase, joined, worker_name
from heta_lens.metrics import METRICS, Metric
from heta_lens.model.loading import load_model

Engine: TypeAlias = Literal["local", "ray"]
PATIENCE = 5.0  # seconds until a process ends after it is terminated
LOOK = 0.2  # seconds between two looks at the work of others
HELLO = ""  # a worker's first word; its second is its name
STARTS = 3  # workers in a row that may end before they are ready
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
        address: the address of a running Ray cluster, as for ``ray.init``; by default RAY_ADDRESS, or Ray starts here.
    """

    count: int = 1
    engine: Engine = "local"
    threads: int | None = None
    gpus: float = 0.0
    address: str | None = None

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, get_args(Engine))
        check_at_least("workers", self.count, 1, whole=True)
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
class Setup:
    """The model's loader, the methods by label, the metrics (those of the user as objects), and the prompts by id."""

    load: Callable[[], Any]
    entries: Mapping[str, Explainer]
    metrics: Sequence[str]
    own_metrics: Mapping[str, Metric]
    instances: Mapping[str, Instance]
    threads: int | None = None

    def evaluator(self, device: str | None = None) -> PromptEvaluator:
        """Load the model, after limiting the threads of torch and of NumPy's linear algebra in this process."""
        torch.set_num_threads(self.threads or torch.get_num_threads())
        threadpool_limits(self.threads)
        load = self.load
        placed = isinstance(load, partial) and any(load.keywords.get(name) is not None for name in PLACEMENTS)
        if device is not None and isinstance(load, partial) and load.func is load_model and not placed:
            load = partial(load, device=device)
        return PromptEvaluator(load(), self.entries)

    def task(self, claim: Claim) -> Task:
        known = {name: self.own_metrics.get(name) or METRICS[name] for name in self.metrics}
        pending = {method: {name: known[name] for name in names} for method, names in claim.missing.items()}
        return Task(self.instances[claim.prompt], pending)


def loader(model: Any) -> Callable[[], Any]:
    """Return the function by which workers load a model; a loaded model cannot be sent to workers."""
    if not _loads(model):
        raise TypeError(
            "workers need a model each: give the name of a model, a folder, or a function that loads one, not a "
            f"{type(model).__name__}"
        )
    return model if callable(model) else partial(load_model, str(model))


def loaded(model: Any) -> Any:
    """Return a model, which may be given by a name, a folder, or a function that loads the model."""
    return loader(model)() if _loads(model) else model


def _loads(model: Any) -> bool:
    return isinstance(model, str | PathLike) or (callable(model) and not isinstance(model, nn.Module))


def work(
    run: RunDatabase, setup: Setup, evaluator: PromptEvaluator, *, longest_first: bool, look: Callable[[], Any]
) -> None:
    """Claim prompts and commit results until no task is pending or claimed; ``look`` is called after every result."""
    run.check_model(evaluator.fingerprint)
    worker = worker_name()
    with run.renewing(worker):
        while True:
            claim = run.claim(worker, setup.metrics, [*setup.entries], longest_first=longest_first)
            if claim is not None:
                since = time.perf_counter()
                for outcome in evaluator.outcomes(setup.task(claim)):
                    now = time.perf_counter()
                    if not run.commit(claim, *outcome, waited=now - since):
                        break  # another worker has the prompt now
                    since = now
                    look()
            elif "claimed" in run.counts():
                time.sleep(LOOK)  # the worker of the last prompts may die
                look()
            else:
                return


@contextmanager
def threads_limited(threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with threadpool_limits(threads):
            yield
    finally:
        torch.set_num_threads(before)


# ---------------------------------------------------------------------------------------------------- worker processes
@dataclass(eq=False)
class WorkerProcess:
    """A process, its name in the database once it is ready, and the number that chooses its GPU."""

    number: int
    process: BaseProcess
    connection: Connection
    worker: str = ""

    def death(self) -> str:
        self.process.join(PATIENCE)
        code = self.process.exitcode or 0
        if code >= 0:
            return f"its process ended with exit code {code}; its output says why"
        name = signal.Signals(-code).name
        hint = ", as the system does when memory is short" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{hint}"


def work_in_processes(run: RunDatabase, setup: Setup, count: int, look: Callable[[], Any]) -> None:
    """Start processes that claim and commit, replace those that die, and end them with the work."""
    try:
        packed = pickle.dumps(setup)
    except Exception as error:
        way = "name the model, the methods and the metrics, or give functions of a module"
        raise ValueError(f"workers cannot be given this: {error}. Instead, {way}") from None
    living, failed_starts = list[WorkerProcess](), 0
    try:
        living.extend(_started(run, number) for number in range(count))  # one after the other
        while living:
            ready = wait([each.connection for each in living], timeout=LOOK)
            look()
            for member in [each for each in living if each.connection in ready]:
                try:
                    news = member.connection.recv()
                    if news == HELLO:
                        member.connection.send_bytes(packed)
                        continue
                except (EOFError, OSError, pickle.UnpicklingError):
                    news = EOFError(member.death())
                if isinstance(news, str):
                    member.worker, failed_starts = news, 0
                    continue
                living.remove(member)
                if news is None:
                    continue
                failed_starts += not member.worker
                if member.worker:
                    run.release(member.worker, str(news))
                elif failed_starts >= STARTS and isinstance(news, EOFError):
                    raise RuntimeError(f"workers die before they are ready: {news}")
                elif failed_starts >= STARTS or isinstance(news, ValueError | TypeError | OSError):
                    raise news
                if run.counts().keys() & {"pending", "claimed"}:
                    living.append(_started(run, member.number, silent=True))
    finally:
        for member in living:
            member.process.terminate()
        for member in living:
            member.process.join(PATIENCE)
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
            if member.worker:
                run.release(member.worker)


def _started(run: RunDatabase, number: int, *, silent: bool = False) -> WorkerProcess:
    """Start a process, which asks for its setup when it can read it: a long one would block this process until then."""
    context = multiprocessing.get_context("spawn")  # a fork would share the locks of this process's threads
    ours, theirs = context.Pipe()
    process = context.Process(target=partial(_serve, theirs, run.path, number, silent or number > 0), daemon=True)
    resource_tracker.ensure_running()  # starting it later would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the process keeps the block: this one ends it
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return WorkerProcess(number, process, ours)


def _serve(connection: Connection, path: Path, number: int, silent: bool) -> None:
    """Work in a process of its own, whose last word is None, or the error with which the process could not go on.

    A ``silent`` worker does not repeat the warnings of the first while loading.
    """
    os.dup2(2, 1)  # the output of a loading model must stay out of the output of the command
    gpus = torch.cuda.device_count()
    try:
        connection.send(HELLO)
        setup: Setup = pickle.loads(connection.recv_bytes())
        threading.Thread(target=_end_with, args=[connection], daemon=True).start()
        with warnings.catch_warnings():
            if silent:
                warnings.simplefilter("ignore")
            evaluator = setup.evaluator(f"cuda:{number % gpus}" if gpus else None)
        with joined(path) as run:
            run.check_model(evaluator.fingerprint)
            connection.send(worker_name())
            work(run, setup, evaluator, longest_first=True, look=lambda: None)
        connection.send(None)
    except Exception as error:
        with suppress(OSError):
            connection.send(_picklable(error))


def _end_with(connection: Connection) -> None:
    """End this process with the command that started it, which sends nothing more and may be killed."""
    with suppress(EOFError, OSError):
        connection.recv_bytes()
    os._exit(1)


def _picklable(error: Exception) -> Exception:
    """Return the error, or an error with the same message if pickle cannot send the error."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


# ----------------------------------------------------------------------------------------------------------------- Ray
class RayWorker:
    """The object of a Ray actor. The first call loads the model, because an error in `__init__` loses its type."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.evaluator: PromptEvaluator

    def load(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        self.evaluator = self.setup.evaluator()
        return self.evaluator.fingerprint, versions()

    def work(self, task: Task) -> Iterator[Any]:
        yield from self.evaluator.outcomes(task)


def work_on_ray(run: RunDatabase, setup: Setup, workers: Workers, count: int, look: Callable[[], Any]) -> None:
    """Claim prompts for the actors of a Ray cluster, and commit what they return."""
    ray = extra("ray", "--engine ray")
    started = not ray.is_initialized()
    if started:
        _start_ray(ray, workers, count)
    try:
        _check_room(ray, workers, count)
        kind = ray.remote(num_cpus=workers.threads_each, num_gpus=workers.gpus, max_restarts=0)(RayWorker)
        with run.renewing(*(names := [f"{worker_name()}/{number}" for number in range(count)])):
            _work_of_actors(ray, run, setup, {name: kind.remote(setup) for name in names}, kind, look)
    finally:
        if started:
            ray.shutdown()


def _work_of_actors(ray: Any, run: RunDatabase, setup: Setup, actors: dict[str, Any], kind: Any, look: Any) -> None:
    answers: dict[str, Any] = {name: actor.load.remote() for name, actor in actors.items()}
    claims: dict[str, Claim | None] = dict.fromkeys(actors)
    since, deaths = dict.fromkeys(actors, 0.0), 0
    while answers:
        waiting = {answer: name for name, answer in answers.items()}
        ready, _ = ray.wait([*waiting], num_returns=1, timeout=LOOK)
        look()
        for answer in ready:
            name = waiting[answer]
            try:
                result = ray.get(answer if isinstance(answer, ray.ObjectRef) else next(answer))
            except StopIteration:
                result = None
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else RuntimeError(str(error)) from None
            except ray.exceptions.RayError as error:
                lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
                deaths += 1
                if "creation task" in lines[0] or (claims[name] is None and deaths >= STARTS):
                    raise RuntimeError(lines[-1]) from None
                run.release(name, lines[0])
                actors[name], claims[name] = kind.remote(setup), None
                answers[name] = actors[name].load.remote()
                continue
            if isinstance(result, tuple) and claims[name] is None:  # the actor is ready
                fingerprint, theirs = result
                run.check_model(fingerprint)
                if different := [part for part, version in versions().items() if theirs.get(part) != version]:
                    raise ValueError(f"a worker has another installation (other {', '.join(different)})")
            now = time.perf_counter()
            waited, since[name] = now - since[name], now
            claim = claims[name]
            if claim is not None and result is not None and run.commit(claim, *result, waited=waited):
                continue
            claims[name] = claim = run.claim(name, setup.metrics, [*setup.entries], longest_first=True)
            if claim is None:
                del answers[name]
            else:
                answers[name] = actors[name].work.options(num_returns="streaming").remote(setup.task(claim))


def _start_ray(ray: Any, workers: Workers, count: int) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = workers.address or os.environ.get("RAY_ADDRESS")
    local = {"num_cpus": count * workers.threads_each, "include_dashboard": False}
    # Without an address, Ray would join the cluster that a killed command left running: "local" starts another.
    ray.init(address or "local", log_to_driver=False, logging_level="error", **({} if address else local))


def _check_room(ray: Any, workers: Workers, count: int) -> None:
    """Refuse more workers than the nodes have room for: Ray would wait forever."""
    needed = {kind: size for kind, size in {"CPU": workers.threads_each, "GPU": workers.gpus}.items() if size}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = sum(min(int(node.get(kind, 0) / size) for kind, size in needed.items()) for node in nodes)
    if room < count:
        each = " and ".join(f"{size:g} {kind}{'s' if size > 1 else ''}" for kind, size in needed.items())
        raise ValueError(
            f"the Ray cluster has room for {room} workers with {each} each, and {count} are asked for: ask for fewer "
            "workers, or for less per worker (--threads, --gpus)"
        )
