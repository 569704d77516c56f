"""Hands out prompts to workers: the longest first, one at a time to each; a worker's death costs one method's work.

Outcomes come one by one. What a worker that died had not finished is given to another. The method that it was running
is recorded as failed on this prompt after so many deaths; the others go on. No worker has more than one prompt, and no
result waits for more than its own writing, so a long run takes no more memory than a short one.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from heta_lens._util.versions import versions
from heta_lens.evaluation.prompt_evaluation import Identity, Outcome, Task
from heta_lens.evaluation.run_records import Record

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
