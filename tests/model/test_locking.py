"""Several threads: calls on one model take turns, and those on two models run side by side."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.faults import differences, state
from heta_lens import Prediction, attribute, causal
from heta_lens.metrics.robustness import with_shuffled_weights
from heta_lens.model.lock import changing, holding, one_at_a_time, undo_at_end

pytestmark = [pytest.mark.usefixtures("unchecked"), pytest.mark.filterwarnings("ignore::UserWarning")]

N, TARGET = 6, 7
PATIENCE = 60  # seconds after which threads are taken to wait for each other
KINDS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: zoo.bridge.__wrapped__("gpt2"),
    **({"hooked": lambda: zoo.hooked.__wrapped__("llama")} if zoo.HAS_HOOKED else {}),
}


class Subject:
    """A model, two of its prompts, and every entry point that runs it."""

    def __init__(self, model: Any) -> None:
        self.model, self.ids = model, zoo.prompt(model, N)
        self.other_ids = self.ids.roll(2, -1)
        self.both_ids = torch.cat([self.ids, self.other_ids])
        caches = [model.run_with_cache(ids)[1] for ids in (self.ids, self.other_ids, self.both_ids)]
        self.cache, self.other, self.both = caches
        self.asked = Prediction.from_cache(self.cache, TARGET, tokens=self.ids)
        self.given = attribute(self.cache, TARGET, tokens=self.ids, method="recency")

    def calls(self) -> dict[str, Callable[[], Any]]:
        one: dict[str, Any] = {"target": TARGET, "tokens": self.ids}
        two: dict[str, Any] = {**one, "corrupted_tokens": self.other_ids}
        method = partial(attribute, self.cache, **one)
        return {
            "heta": lambda: method(probes=2).scores,
            "low rank": lambda: method(variant="lr", rank=2, probes=2).scores,
            **{name: partial(self._scores, method, name) for name in METHODS},
            "span": lambda: heta_lens.attribute_span(self.cache, N - 2, tokens=self.ids, probes=1).total,
            "batch": self._batch,
            "estimate": lambda: self._estimated(heta_lens.estimate(self.cache, TARGET, tokens=self.ids)),
            "estimate batch": lambda: self._estimated(heta_lens.estimate(self.both, tokens=self.both_ids)),
            "with a prediction": lambda: heta_lens.METHODS["leave_one_out"]()(self.asked).scores,
            "lazy": self._lazy,
            "effects": lambda: causal.effects(self.asked, how="input"),
            "validate": lambda: causal.validate(self.cache, self.given, tokens=self.ids).effects,
            "patch": lambda: causal.patch(self.cache, self.other, **two, what="head_out").values,
            "patch in order": lambda: torch.tensor(
                causal.patch_in_order(self.cache, self.other, self.given, **two, restore=1).restored
            ),
            "trace": lambda: causal.trace(self.cache, **one, samples=1).values,
            "ablate": lambda: causal.ablate_heads(self.cache, **one).values,
            "gate": lambda: causal.gate_heads(self.cache, tokens=self.ids).shares,
            "swap": self._swapped,
            "sanity": self._sanity,
        }

    def _scores(self, method: Callable[..., Any], name: str) -> Tensor:
        return method(method=name).scores

    def _estimated(self, cost: Any) -> Tensor:
        return torch.tensor(cost.forwards)

    def _batch(self) -> Tensor:
        found = heta_lens.attribute_batch(self.both, TARGET, tokens=self.both_ids, method="input_x_gradient")
        return torch.stack([one.scores for one in found])

    def _sanity(self) -> Tensor:
        """With weights that are shuffled for a while."""
        return with_shuffled_weights(self.asked, heta_lens.METHODS["gradient_norm"]()).scores

    def _lazy(self) -> Tensor:
        """What a prediction computes when it is asked for."""
        fresh = Prediction.from_cache(self.cache, TARGET, tokens=self.ids)
        return torch.cat([fresh.states(1).flatten(), fresh.rerun(2).log_probs(fresh.embeddings[None, 2:]).flatten()])

    def _swapped(self) -> Tensor:
        with causal.swap_values(self.other, self.cache, 0, [2], tokens=self.ids) as cache:
            return attribute(cache, TARGET, tokens=self.ids, method="leave_one_out").scores


METHODS = ["leave_one_out", "integrated_gradients", "attn_lrp", "value_zeroing", "attention_rollout", "lime"]


@pytest.fixture(scope="module")
def subjects() -> dict[str, Subject]:
    return {kind: Subject(build()) for kind, build in KINDS.items()}


def in_threads(jobs: list[Callable[[], Any]], threads: int) -> list[Any]:
    with ThreadPoolExecutor(threads) as pool:
        return [future.result(PATIENCE) for future in [pool.submit(job) for job in jobs]]


def check_side_by_side(subjects: list[Subject], threads: int, rounds: int) -> None:
    """Every entry point of every model at the same time as all others, with the results each has alone."""
    alone = [(job, job()) for one in subjects for job in one.calls().values()]
    before = [state(one.model, one.cache, one.ids) for one in subjects]
    mixed = [alone[k * 7 % len(alone)] for k in range(len(alone) * rounds)]
    for (_, expected), found in zip(mixed, in_threads([job for job, _ in mixed], threads), strict=True):
        assert torch.equal(found, expected)
    for one, was in zip(subjects, before, strict=True):
        assert differences(was, state(one.model, one.cache, one.ids)) == []


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

    with changing(model):
        stop_without_gradients(twice=False)
        assert torch.is_grad_enabled()
    stop_without_gradients(twice=True)
    assert not torch.is_grad_enabled()
    with holding(model):
        pass
    assert torch.is_grad_enabled()
