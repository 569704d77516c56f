"""How many workers an evaluation has, and where."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, get_args

import torch
from threadpoolctl import threadpool_limits

from heta_lens._util.options import check_at_least, check_choice
from heta_lens.evaluation.engines.ray_actors import RayActors
from heta_lens.evaluation.engines.scheduling import Pool
from heta_lens.evaluation.engines.this_process import ThisProcess
from heta_lens.evaluation.engines.worker_processes import WorkerProcesses
from heta_lens.evaluation.engines.worker_setup import WorkerSetup, loaded, loader
from heta_lens.evaluation.prompt_evaluation import Explainer, Identity, Outcome, PromptEvaluator, Task

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
