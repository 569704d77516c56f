"""Shared by all tests: the tiers, and fixtures.

Which kinds of model a test meets is said by its parameter ``build`` or ``name``: `zoo.models(pattern)` and
`zoo.named(pattern)` give all kinds whose names match, such as ``bridge-llama`` or ``hooked-(gpt2|gptj)$``. One of them
is drawn here, always the same one; the others are marked ``every_model``. The markers, from the inner loop outward:

- ``slow``: not in `make quick`; ``sample(quick, test)``: how many of a test's cases are in `make quick` and `make test`
- ``both_lines``: in `make test` also on TransformerLens 4; set for whole folders by `BOTH_LINES`
- ``every_model`` and ``thorough`` (long): only in `make test-all`; ``nightly``: thousands of cases, in `make nightly`
"""

import functools
import os
import random
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import cache_of
from helpers.attributions import N

# Threads only slow models of this size down; where processes share the cores, several times. Notebooks and commands
# that tests start inherit this.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

# A job in a shell's background ignores Ctrl-C, and so would the commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

CANONICAL = {"bridge-gpt2", "bridge-llama", "bridge-native", "hooked-gpt2"}
"""The kinds of model that stand for all others but in `make test-all`: each test meets one of them."""
BOTH_LINES = ("model", "prediction", "causal", "real", "whole")
"""Folders whose tests meet what differs between the two lines of TransformerLens; other tests are marked one by one."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Let one more process than there are cores run tests: some of these wait for browsers and commands."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by tier: on both lines, and the cases of each test that are left to a later tier."""
    by_function: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.path.relative_to(Path(__file__).parent).parts[0] in BOTH_LINES:
            item.add_marker("both_lines")
        by_function[item.nodeid.partition("[")[0]].append(item)
    for name, cases in by_function.items():
        leave_other_kinds([item for item in cases if kinds_of(item)], random.Random(name))
        leave_other_cases([item for item in cases if not is_left(item)], random.Random(name))


def leave_other_kinds(cases: list[pytest.Item], generator: random.Random) -> None:
    """To `make test-all` all kinds but one of the canonical ones (or one case, where none is); always the same one."""
    canonical = sorted(sorted(kinds_of(item)) for item in cases if kinds_of(item) <= CANONICAL)
    drawn = {*generator.choice(canonical)} if canonical else None
    for place, item in enumerate(cases):
        if kinds_of(item) != drawn if drawn else place > 0:
            item.add_marker("every_model")


def leave_other_cases(cases: list[pytest.Item], generator: random.Random) -> None:
    """Of a test marked ``sample``, draw the cases of `make quick` and of `make test`; always the same ones."""
    marker = cases[0].get_closest_marker("sample") if cases else None
    if marker is None:
        return
    quick, test = marker.kwargs["quick"], marker.kwargs.get("test", len(cases))
    for rank, item in enumerate(sorted(generator.sample(cases, len(cases)), key=is_slow)):
        if rank >= test:
            item.add_marker("thorough")
        elif rank >= quick:
            item.add_marker("slow")


def is_left(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(tier) for tier in ("every_model", "thorough", "nightly"))


def is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def kinds_of(item: pytest.Item) -> set[str]:
    """The kinds of model that a test is parametrised by."""
    builders = {id(build): name for name, build in zoo.KINDS}
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    names = {value if isinstance(value, str) else builders.get(id(value), "") for value in parameters}
    return names & {*builders.values()}


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Types as users have them, checked by nobody: the tests' checker would speak before the library does.

    It also draws random numbers of its own.
    """
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[Any]]:
    """Lists the runs of a model from now on."""

    def watch(model: Any) -> list[Any]:
        runs, forward = [], type(model).forward

        @functools.wraps(forward)
        def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
            runs.append(args)
            return forward(self, *args, **kwargs)

        monkeypatch.setattr(type(model), "forward", counted)
        return runs

    return watch


# What `attribute` and `attribute_span` are asked about, unless a folder has its own.
@pytest.fixture
def few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let SEA-CoT add few tokens, to models of 64 positions."""
    for name, text in {"THINK": ".", "CONCLUDE": " is", "QUESTION": ("", " in ", "?")}.items():
        monkeypatch.setattr(f"heta_lens.methods.sea_cot.{name}", text)


@pytest.fixture
def model() -> Any:
    return zoo.bridge("gpt2")


@pytest.fixture
def ids(model: Any) -> Tensor:
    return zoo.prompt(model, N)


@pytest.fixture
def cache(model: Any, ids: Tensor) -> Any:
    return cache_of(model, ids)
