"""Prompts are handed out one at a time, the longest first; deaths cost one prompt's work, and are bounded."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from heta_lens._util.versions import versions
from heta_lens.data.instance import Instance
from heta_lens.evaluation.engines.scheduling import Died, News, Pool
from heta_lens.evaluation.prompt_evaluation import Identity, Outcome, Task
from heta_lens.evaluation.run_records import Record

ME = Identity({"weights": "a", "config": "b", "tokenizer": "c"}, versions())


def tasks(*lengths: int) -> list[Task]:
    """Prompts of so many characters, named by them."""
    return [
        Task(number, Instance(str(length), "x" * length, " a"), {"m": ("f1",)}) for number, length in enumerate(lengths)
    ]


def done(task: Task) -> list[Outcome]:
    return [Outcome(Record(task.instance.id, label)) for label in task.pending]


@dataclass
class FakeCrew:
    """Workers are numbers. The one that is at work the longest answers first, and ``answer`` says what."""

    answer: Callable[[int, Task], News] = lambda _, task: done(task)
    begin: Callable[[int], News] = lambda _: ME
    given: list[tuple[int, str]] = field(default_factory=list)
    at_work: dict[int, Task | None] = field(default_factory=dict)
    stopped: list[int] = field(default_factory=list)
    started: int = 0

    def start(self) -> int:
        self.started += 1
        self.at_work[self.started] = None
        return self.started

    def give(self, member: int, task: Task) -> None:
        assert member not in self.at_work, "it has one prompt already"
        self.given.append((member, task.instance.id))
        self.at_work[member] = task

    def news(self, members: Sequence[int]) -> list[tuple[int, News]]:
        assert set(members) == set(self.at_work)
        first = next(iter(self.at_work))
        task = self.at_work.pop(first)
        return [(first, self.begin(first) if task is None else self.answer(first, task))]

    def stop(self, members: Iterable[int]) -> None:
        self.stopped += members


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


def test_a_death_costs_one_prompt_which_another_worker_does() -> None:
    crew = FakeCrew(lambda member, task: Died("it fell") if member == 1 else done(task))
    records = worked(crew, tasks(3, 9, 1))
    assert sorted(record.instance for record in records) == ["1", "3", "9"]
    assert not any(record.failed for record in records)
    assert [name for _, name in crew.given].count("9") == 2
    assert crew.started == 3  # and one in its place


@pytest.mark.parametrize("retries", [0, 2])
def test_a_prompt_that_every_worker_dies_of_is_recorded_as_failed(retries: int) -> None:
    crew = FakeCrew(lambda _, task: Died("it fell") if task.instance.id == "9" else done(task))
    todo = [task._replace(pending={"m": ("f1",), "n": ()}) for task in tasks(3, 9, 1)]
    by_name = {(record.instance, record.method): record.failed for record in worked(crew, todo, retries=retries)}
    why = f"{retries + 1} workers died of this prompt, the last: it fell"
    assert {key: failed for key, failed in by_name.items() if failed} == {("9", "m"): why, ("9", "n"): why}
    assert len(by_name) == 6
    assert [name for _, name in crew.given].count("9") == retries + 1


def test_workers_that_never_get_ready_end_the_run_and_those_beside_one_that_is_do_not() -> None:
    with pytest.raises(RuntimeError, match="workers die before they are ready, the last: no memory"):
        worked(FakeCrew(begin=lambda _: Died("no memory")), tasks(1))
    crew = FakeCrew(begin=lambda member: ME if member == 3 else Died("no memory"))
    assert len(worked(crew, tasks(1, 2, 3), retries=5)) == 3


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
