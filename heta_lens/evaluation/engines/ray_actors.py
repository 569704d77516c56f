"""The engine of a Ray cluster, or of Ray on this machine: workers are actors, each with a model of its own."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from heta_lens._util.extras import extra
from heta_lens.evaluation.engines.scheduling import Died, Finished, News
from heta_lens.evaluation.engines.worker_setup import WorkerSetup
from heta_lens.evaluation.prompt_evaluation import Identity, Outcome, PromptEvaluator, Task


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
