"""Hands out prompts to workers: the longest first, one at a time to each; a worker that dies costs one prompt's work.

A prompt whose worker died is given to another, and after so many deaths recorded as failed. No worker has more than one
prompt, and no result waits for more than its own writing, so a long run takes no more memory than a short one.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from heta_lens._util.versions import versions
from heta_lens.evaluation.prompt_evaluation import Identity, Outcome, Task
from heta_lens.evaluation.run_records import Record

Member = TypeVar("Member")


class Died(NamedTuple):
    """A worker that will not answer any more, and why."""

    reason: str


News: TypeAlias = Identity | list[Outcome] | Died | Exception  # an exception: the worker cannot do its work at all


class Crew(Protocol[Member]):
    """How an engine starts workers, gives them prompts, and hears from them."""

    def start(self) -> Member:
        """A worker, whose first news is its `Identity`."""
        ...

    def give(self, member: Member, task: Task) -> None:
        """Its next news is a list of outcomes."""
        ...

    def news(self, members: Sequence[Member]) -> list[tuple[Member, News]]:
        """Waits until at least one of these has news."""
        ...

    def stop(self, members: Iterable[Member]) -> None: ...


@dataclass
class Attempt:
    """A prompt to be worked on, and how often a worker has died of it."""

    task: Task
    deaths: int = 0


@dataclass(eq=False)
class Pool(Generic[Member]):
    """Workers of one crew; at most ``retries`` replace one that dies of the same prompt, or before it is ready."""

    crew: Crew[Member]
    count: int
    retries: int
    busy: dict[Member, Attempt | None] = field(default_factory=dict)  # None: it is starting
    idle: list[Member] = field(default_factory=list)
    identity: Identity = field(init=False)
    failed_starts: int = 0

    def start(self) -> None:
        """Start all workers, and wait for the first."""
        for _ in range(self.count):
            self.busy[self.crew.start()] = None
        while not self.idle:
            for member, news in self.crew.news([*self.busy]):
                self._heard(member, news)

    def stop(self) -> None:
        self.crew.stop([*self.busy, *self.idle])

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """What every method gave on every prompt, in the order in which prompts are finished."""
        waiting = deque(map(Attempt, sorted(tasks, key=_size, reverse=True)))
        while waiting or any(self.busy.values()):
            self._hand_out(waiting)
            finished: list[Outcome] = []
            for member, news in self.crew.news([*self.busy]):
                attempt = self._heard(member, news)
                if attempt is not None and isinstance(news, Died):
                    attempt.deaths += 1
                    if attempt.deaths > self.retries:
                        finished += _failures(attempt, news)
                    else:
                        waiting.appendleft(attempt)
                elif isinstance(news, list):
                    finished += news
            self._hand_out(waiting)  # before anything is written, which takes a while
            yield from finished

    def _hand_out(self, waiting: deque[Attempt]) -> None:
        while waiting and self.idle:
            member, attempt = self.idle.pop(), waiting.popleft()
            self.busy[member] = attempt
            self.crew.give(member, attempt.task)

    def _heard(self, member: Member, news: News) -> Attempt | None:
        """What the worker was working on; it is idle now, or another has taken its place."""
        attempt = self.busy.pop(member)
        if isinstance(news, Exception):
            raise news
        if not isinstance(news, Died):
            if isinstance(news, Identity):
                self._check_identity(news)
            self.idle.append(member)
            return attempt
        if attempt is None:
            self.failed_starts += 1
        if self.failed_starts <= self.retries:
            self.busy[self.crew.start()] = None
        elif not (self.busy or self.idle):
            raise RuntimeError(f"workers die before they are ready, the last: {news.reason}")
        return attempt

    def _check_identity(self, identity: Identity) -> None:
        """Refuse a worker with another model than the first, or with other versions than are installed here."""
        if not hasattr(self, "identity"):
            self.identity = Identity(identity.fingerprint, versions())
        for what, mine, others in zip(("model", "installation"), self.identity, identity, strict=True):
            if different := sorted(name for name in {**mine, **others} if mine.get(name) != others.get(name)):
                raise ValueError(f"a worker has another {what} (other {', '.join(different)})")


def _size(task: Task) -> int:
    """About how long a prompt takes, compared with others."""
    instance = task.instance
    text = len(instance.text) or sum(len(str(message)) for message in instance.messages or ())
    return text * len(task.pending)


def _failures(attempt: Attempt, death: Died) -> Iterator[Outcome]:
    instance = attempt.task.instance
    why = f"{attempt.deaths} workers died of this prompt, the last: {death.reason}"
    for label in attempt.task.pending:
        yield Outcome(Record(instance.id, label, instance.template, failed=why))
