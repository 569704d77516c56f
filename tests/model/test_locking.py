"""Several threads: calls on one model take turns, and those on two models run side by side."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.entry_points import Subject
from helpers.faults import differences
from heta_lens.model.lock import holding, one_at_a_time, undo_at_end

pytestmark = [pytest.mark.usefixtures("unchecked"), pytest.mark.filterwarnings("ignore::UserWarning")]
PATIENCE = 60  # seconds after which threads are taken to wait for each other
KINDS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: zoo.bridge.__wrapped__("gpt2"),
    **({"hooked": lambda: zoo.hooked.__wrapped__("llama")} if zoo.HAS_HOOKED else {}),
}


@pytest.fixture
def subjects() -> dict[str, Subject]:
    return {kind: Subject(build()) for kind, build in KINDS.items()}


def in_threads(jobs: list[Callable[[], Any]], threads: int) -> list[Any]:
    with ThreadPoolExecutor(threads) as pool:
        return [future.result(PATIENCE) for future in [pool.submit(job) for job in jobs]]


def check_side_by_side(subjects: list[Subject], threads: int, rounds: int) -> None:
    """Every entry point of every model at the same time as all others, with the results each has alone."""
    alone = [(job, job()) for one in subjects for job in one.calls().values()]
    mixed = [alone[k * 7 % len(alone)] for k in range(len(alone) * rounds)]
    for (_, expected), found in zip(mixed, in_threads([job for job, _ in mixed], threads), strict=True):
        assert torch.equal(found, expected)
    assert [differences(one.before, one.state()) for one in subjects] == [[]] * len(subjects)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_threads_on_one_model_have_the_results_of_one(subjects: dict[str, Subject], kind: str) -> None:
    check_side_by_side([subjects[kind]], threads=4, rounds=1)


@pytest.mark.thorough
def test_threads_on_two_models_have_the_results_of_one() -> None:
    check_side_by_side([Subject(KINDS["gpt2"]()), Subject(zoo.native_bridge.__wrapped__())], threads=4, rounds=1)


def model() -> torch.nn.Module:
    return torch.nn.Linear(2, 2)


@one_at_a_time("model")
def alone_with(model: Any, act: Callable[[], Any]) -> Any:  # noqa: ARG001
    return act()


def test_two_models_are_not_waited_for_by_each_other() -> None:
    """There is no lock for all models."""
    meet = threading.Barrier(2, timeout=PATIENCE)
    in_threads([partial(alone_with, model(), meet.wait) for _ in range(2)], 2)


def test_calls_on_one_model_never_overlap() -> None:
    one, inside, most = model(), [], []

    def act() -> None:
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.002)
        inside.pop()

    in_threads([partial(alone_with, one, partial(alone_with, one, act)) for _ in range(40)], 8)
    assert max(most) == 1 and len(most) == 40


def test_the_next_call_undoes_what_two_interrupts_have_left() -> None:
    model, failures, undone = KINDS["gpt2"](), [KeyboardInterrupt(), KeyboardInterrupt()], list[str]()

    def back() -> None:
        if failures:
            raise failures.pop()
        undone.append("the change")

    with pytest.raises(KeyboardInterrupt), holding(model):
        undo_at_end(model, back)
    assert not undone
    with holding(model):
        assert undone == ["the change"]


def test_gradients_return_after_a_call_in_a_users_block_and_after_two_interrupts() -> None:
    model, failures = KINDS["gpt2"](), [KeyboardInterrupt(), KeyboardInterrupt()]

    def back() -> None:
        if failures:
            raise failures.pop()

    def stop_without_gradients(*, twice: bool) -> None:
        with suppress(KeyboardInterrupt), holding(model):
            if twice:
                undo_at_end(model, back)
            torch.set_grad_enabled(False)
            raise KeyboardInterrupt

    with holding(model, users_code=True):
        stop_without_gradients(twice=False)
        assert torch.is_grad_enabled()
    stop_without_gradients(twice=True)
    assert not torch.is_grad_enabled()
    with holding(model):
        pass
    assert torch.is_grad_enabled()
