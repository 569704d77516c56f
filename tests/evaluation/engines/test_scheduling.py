"""Prompts are handed out one at a time, the longest first; deaths cost one prompt's work, and are bounded."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from heta_lens._util.python import versions
from heta_lens.data.instance import Instance
from heta_lens.evaluation.prompt_evaluation import Identity, Outcome, Task
from heta_lens.evaluation.run_folder import Record
from heta_lens.evaluation.workers import Died, Finished, News, Pool

ME = Identity({"weights": "a", "config": "b", "tokenizer": "c"}, versions())


def tasks(*lengths: int) -> list[Task]:
    """Prompts of so many characters, named by them."""
    return [
        Task(number, Instance(str(length), "x" * length, " a"), {"m": ("f1",)}) for number, length in enumerate(lengths)
    ]


def done(task: Task) -> list[News]:
    return [*(Outcome(Record(task.instance.id, label)) for label in task.pending), Finished()]


@dataclass
class FakeCrew:
    """Workers are numbers. The one that is at work the longest answers first, and ``answer`` says what it does."""

    answer: Callable[[int, Task], list[News]] = lambda _, task: done(task)
    begin: Callable[[int], News] = lambda _: ME
    given: list[tuple[int, str]] = field(default_factory=list)
    at_work: dict[int, list[News]] = field(default_factory=dict)
    stopped: list[int] = field(default_factory=list)
    started: int = 0

    def start(self) -> int:
        self.started += 1
        self.at_work[self.started] = [self.begin(self.started)]
        return self.started

    def give(self, member: int, task: Task) -> None:
        assert not self.at_work.get(member), "it has one prompt already"
        self.given.append((member, task.instance.id))
        self.at_work[member] = self.answer(member, task)

    def news(self, members: Sequence[int]) -> list[tuple[int, News]]:
        first = next(iter(self.at_work))
        assert first in members
        news, *more = self.at_work.pop(first)
        if more:
            self.at_work[first] = more
        return [(first, news)]

    def stop(self, idle: Iterable[int], busy: Iterable[int]) -> None:
        self.stopped += [*idle, *busy]


def worked(crew: FakeCrew, todo: list[Task], count: int = 2, retries: int = 2) -> list[Record]:
    pool = Pool(crew, count, retries)
    pool.start()
    return [outcome.record for outcome in pool.outcomes(todo)]


def test_the_longest_prompts_come_first() -> None:
    crew = FakeCrew()
    records = worked(crew, tasks(3, 9, 1, 5))
    assert [name for _, name in crew.given] == ["9", "5", "3", "1"]
    assert sorted(record.instance for record in records) == ["1", "3", "5", "9"]


def test_no_more_prompts_are_given_than_there_are_workers_while_results_wait_to_be_written() -> None:
    crew = FakeCrew()
    pool = Pool(crew, 3, 2)
    pool.start()
    for written, _ in enumerate(pool.outcomes(tasks(*range(1, 40)))):
        assert len(crew.given) <= written + 1 + 3


def test_a_death_costs_one_method_of_a_prompt_which_another_worker_does() -> None:
    def answer(member: int, task: Task) -> list[News]:
        first, *_ = done(task)
        return [first, Died("it fell")] if member == 1 else done(task)

    crew = FakeCrew(answer)
    todo = [task._replace(pending={"m": (), "n": (), "o": ()}) for task in tasks(3, 9, 1)]
    records = worked(crew, todo)
    assert sorted(record.key for record in records) == sorted((name, label) for name in "139" for label in "mno")
    assert not any(record.failed for record in records)
    assert [name for _, name in crew.given].count("9") == 2
    assert crew.started == 3  # and one in its place


@pytest.mark.parametrize("retries", [0, 2])
def test_a_method_that_every_worker_dies_of_is_recorded_as_failed_and_no_other(retries: int) -> None:
    def answer(_: int, task: Task) -> list[News]:
        labels = [*task.pending]
        if task.instance.id == "9" and "n" in labels:
            return [*done(task)[: labels.index("n")], Died("it fell")]
        return done(task)

    crew = FakeCrew(answer)
    todo = [task._replace(pending={"m": (), "n": (), "o": ()}) for task in tasks(3, 9, 1)]
    records = worked(crew, todo, retries=retries)
    who = "3 workers, one after the other," if retries else "the worker"
    failed = {record.key: record.failed for record in records if record.failed}
    assert [*failed] == [("9", "n")] and failed["9", "n"] == f"{who} died of this method: it fell"
    assert len(records) == 9 == len({record.key for record in records})
    assert [name for _, name in crew.given].count("9") == retries + 2  # and once for what comes after


def test_workers_that_never_get_ready_end_the_run_and_those_beside_one_that_is_do_not() -> None:
    with pytest.raises(RuntimeError, match="workers die before they are ready, the last: no memory"):
        worked(FakeCrew(begin=lambda _: Died("no memory")), tasks(1))
    crew = FakeCrew(begin=lambda member: ME if member == 3 else Died("no memory"))
    assert len(worked(crew, tasks(1, 2, 3), retries=5)) == 3
    crew = FakeCrew(begin=lambda member: ValueError("no room on this card") if member > 1 else ME)
    assert len(worked(crew, tasks(*range(1, 9)))) == 8 and crew.started <= 2 + 2


def test_failed_starts_do_not_count_against_what_dies_later() -> None:
    bad_starts = {2, 3, 5, 6, 8, 9}
    crew = FakeCrew(
        lambda member, task: [Died("it fell")] if member in (1, 4, 7) else done(task),
        lambda member: Died("no memory") if member in bad_starts else ME,
    )
    records = worked(crew, tasks(*range(1, 9)), count=1, retries=3)
    assert len(records) == 8 and not any(record.failed for record in records)


def test_what_others_finished_is_not_lost_when_a_worker_raises() -> None:
    class AllAtOnce(FakeCrew):
        def news(self, members: Sequence[int]) -> list[tuple[int, News]]:
            return [heard for _ in [*self.at_work] for heard in FakeCrew.news(self, members)]

    crew = AllAtOnce(lambda member, task: [OSError("broken")] if member == 2 else done(task))
    pool = Pool(crew, 2, 2)
    pool.start()
    outcomes = pool.outcomes(tasks(5, 6))
    assert next(outcomes).record.instance in ("5", "6")
    with pytest.raises(OSError, match="broken"):
        next(outcomes)


def test_without_prompts_a_worker_still_says_which_model_it_has() -> None:
    assert worked(FakeCrew(), [], count=1) == []


def test_a_worker_that_cannot_do_its_work_raises_what_it_says() -> None:
    with pytest.raises(ValueError, match="no such model"):
        worked(FakeCrew(begin=lambda _: ValueError("no such model")), tasks(1))


def test_a_worker_with_another_model_or_other_versions_is_refused() -> None:
    other = ME._replace(fingerprint={**ME.fingerprint, "weights": "z"})
    crew = FakeCrew(begin=lambda member: ME if member == 1 else other)
    pool = Pool(crew, 2, 2)
    pool.start()
    with pytest.raises(ValueError, match=r"a worker has another model \(other weights\)"):
        [*pool.outcomes(tasks(1, 2))]
    old = ME._replace(versions={**ME.versions, "torch": "1.0"})
    with pytest.raises(ValueError, match=r"a worker has another installation \(other torch\)"):
        worked(FakeCrew(begin=lambda _: old), tasks(1))


def test_all_workers_are_stopped() -> None:
    crew = FakeCrew()
    pool = Pool(crew, 3, 2)
    pool.start()
    [*pool.outcomes(tasks(1))]
    pool.stop()
    assert sorted(crew.stopped) == [1, 2, 3]
