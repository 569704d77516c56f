"""An exception or Ctrl-C at any moment of a call leaves the model, its flags and all random states as they were."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.faults import Fault, Moments, broken_off, differences, moments, state
from heta_lens import attribute, causal

pytestmark = [pytest.mark.usefixtures("unchecked"), pytest.mark.filterwarnings("ignore::UserWarning")]

N, TARGET = 4, 7
KINDS = [kind for kind in ("gpt2", "hooked") if kind in zoo.NEW]
FAULTS = [Fault, KeyboardInterrupt, None]  # None: a real SIGINT
WITHIN_THE_CLEAN_UP = 40  # calls and returns of functions after the first fault


class Subject:
    """A model in use, its caches, and what can be asked of it."""

    def __init__(self, kind: str) -> None:
        self.model = zoo.NEW[kind]()
        for k, parameter in enumerate(self.model.parameters()):
            parameter.requires_grad_(k % 3 != 0)
        self.ids = zoo.prompt(self.model, N)
        self.other_ids = self.ids.roll(2, -1)
        self.both_ids = torch.cat([self.ids, self.other_ids])
        caches = [self.model.run_with_cache(ids)[1] for ids in (self.ids, self.other_ids, self.both_ids)]
        self.cache, self.other, self.both = caches
        self.given = attribute(self.cache, TARGET, tokens=self.ids, method="recency")
        self.said = self.model(self.ids).detach()
        self.before = self.state()

    def state(self) -> dict[str, Any]:
        return state(self.model, self.cache, self.ids)

    def changed(self) -> list[str]:
        left = differences(self.before, self.state())
        return left if left or torch.equal(self.model(self.ids), self.said) else ["outputs"]

    def attribute(self) -> Tensor:
        return attribute(self.cache, TARGET, tokens=self.ids, probes=1).scores

    def attribute_span(self) -> Tensor:
        return heta_lens.attribute_span(self.cache, N - 2, tokens=self.ids, method="input_x_gradient").total

    def attribute_batch(self) -> Tensor:
        found = heta_lens.attribute_batch(self.both, TARGET, tokens=self.both_ids, method="leave_one_out")
        return torch.stack([one.scores for one in found])

    def validate(self) -> Tensor:
        return causal.validate(self.cache, self.given, tokens=self.ids, how="input").effects

    def patch(self) -> Tensor:
        told: dict[str, Any] = {"tokens": self.ids, "corrupted_tokens": self.other_ids, "layers": [1]}
        return causal.patch(self.cache, self.other, TARGET, **told).values

    def trace(self) -> Tensor:
        return causal.trace(self.cache, TARGET, tokens=self.ids, samples=1).values

    def swap_values(self) -> Tensor:
        with causal.swap_values(self.other, self.cache, 0, [2], tokens=self.ids) as cache:
            return attribute(cache, TARGET, tokens=self.ids, method="input_x_gradient").scores


CALLS = ["attribute", "attribute_span", "attribute_batch", "validate", "patch", "trace", "swap_values"]
_subjects: dict[str, Subject] = {}
_moments: dict[tuple[str, str], Moments] = {}


def subject(kind: str) -> Subject:
    if kind not in _subjects:
        _subjects[kind] = Subject(kind)
    return _subjects[kind]


def drawn(kind: str, call: str, generator: random.Random) -> tuple[int, type[BaseException] | None]:
    if (kind, call) not in _moments:
        getattr(subject(kind), call)()  # what is imported or compiled once is done
        _moments[kind, call] = moments(getattr(subject(kind), call))
    return _moments[kind, call].draw(generator), generator.choice(FAULTS)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """A model that was left changed is not used again."""
    yield
    for kind in [kind for kind, one in _subjects.items() if one.changed()]:
        del _subjects[kind]


def check_untouched(kind: str, call: str, seed: int) -> None:
    generator = random.Random(seed)
    at, fault = drawn(kind, call, generator)
    one = subject(kind)
    came = broken_off(getattr(one, call), at, fault)
    assert one.changed() == [], f"after {fault} at moment {at} of {_moments[kind, call].total} ({came!r})"


def check_next_call_cleans_up(kind: str, call: str, seed: int) -> bool:
    """Whether a second fault, within the clean-up, left something for the next call to clean up."""
    generator = random.Random(seed)
    at, fault = drawn(kind, call, generator)
    one = subject(kind)
    expected = getattr(one, call)()
    broken_off(getattr(one, call), at, fault, generator.randrange(WITHIN_THE_CLEAN_UP))
    left = one.changed()
    assert torch.equal(getattr(one, call)(), expected), f"moment {at}, {fault}; left {left}"
    assert one.changed() == []
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
