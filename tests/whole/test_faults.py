"""An exception or Ctrl-C at any moment of a call leaves the model, its flags and all random states as they were."""

import random
from collections.abc import Iterator
from functools import cache

import pytest
import torch

from helpers import zoo
from helpers.entry_points import Subject
from helpers.faults import Fault, broken_off, differences, moments

pytestmark = [pytest.mark.usefixtures("unchecked"), pytest.mark.filterwarnings("ignore::UserWarning")]
N = 4
KINDS = [kind for kind in ("gpt2", "hooked") if kind in zoo.NEW]
FAULTS = [Fault, KeyboardInterrupt, None]  # None: a real SIGINT
WITHIN_THE_CLEAN_UP = 40  # calls and returns of functions after the first fault
CALLS = ["heta", "span of gradients", "batch", "validate", "patch", "trace", "swap values"]


@cache
def subject(kind: str) -> Subject:
    model = zoo.NEW[kind]()
    for k, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(k % 3 != 0)
    return Subject(model, N)


def changed(one: Subject) -> list[str]:
    left = differences(one.before, one.state())
    return left if left or torch.equal(one.model(one.ids), one.said) else ["outputs"]


@cache
def moments_of(kind: str, call: str) -> tuple[int, list[int]]:
    subject(kind).calls()[call]()  # what is imported or compiled once is done
    return moments(subject(kind).calls()[call])


def drawn(kind: str, call: str, generator: random.Random) -> tuple[int, type[BaseException] | None]:
    """Any moment, or as often one where something is changed, since those are few; and a fault."""
    total, critical = moments_of(kind, call)
    at = generator.choice(critical) if critical and generator.random() < 0.5 else generator.randrange(total)
    return at, generator.choice(FAULTS)


@pytest.fixture(autouse=True)
def fresh(unchecked: None) -> Iterator[None]:  # noqa: ARG001
    """A model that was left changed is not used again."""
    yield
    if any(changed(subject(kind)) for kind in KINDS):
        subject.cache_clear()


def check_untouched(kind: str, call: str, seed: int) -> None:
    generator = random.Random(seed)
    at, fault = drawn(kind, call, generator)
    one = subject(kind)
    came = broken_off(one.calls()[call], at, fault)
    assert changed(one) == [], f"after {fault} at moment {at} of {moments_of(kind, call)[0]} ({came!r})"


def check_next_call_cleans_up(kind: str, call: str, seed: int) -> bool:
    """Whether a second fault, within the clean-up, left something for the next call to clean up."""
    generator = random.Random(seed)
    at, fault = drawn(kind, call, generator)
    one = subject(kind)
    act = one.calls()[call]
    expected = act()
    broken_off(act, at, fault, generator.randrange(WITHIN_THE_CLEAN_UP))
    left = changed(one)
    assert torch.equal(act(), expected), f"moment {at}, {fault}; left {left}"
    assert changed(one) == []
    return bool(left)


SAMPLE = [
    (KIND, call, seed) for k, KIND in enumerate(KINDS) for call in CALLS for seed in range(100 * k, 100 * k + 5 - k)
]


@pytest.mark.sample(quick=4, test=12)
@pytest.mark.parametrize(("kind", "call", "seed"), SAMPLE)
def test_one_fault_anywhere_leaves_everything_as_it_was(kind: str, call: str, seed: int) -> None:
    check_untouched(kind, call, seed)


@pytest.mark.sample(quick=2, test=5)
@pytest.mark.parametrize(("kind", "call", "seed"), [(kind, call, seed + 1000) for kind, call, seed in SAMPLE][::2])
def test_after_a_second_fault_the_next_call_cleans_up(kind: str, call: str, seed: int) -> None:
    check_next_call_cleans_up(kind, call, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", KINDS)
def test_faults_at_thousands_of_moments(kind: str, call: str) -> None:
    """3,000 in all, 4 of 5 of them alone and the others followed by a second."""
    each = 3000 // (len(CALLS) * len(KINDS))
    for seed in range(each - each // 5):
        check_untouched(kind, call, 10_000 + seed)
    left = sum(check_next_call_cleans_up(kind, call, 20_000 + seed) for seed in range(each // 5))
    print(f"{kind} {call}: {each} faults; {left} of {each // 5} second ones left something for the next call")  # noqa: T201
