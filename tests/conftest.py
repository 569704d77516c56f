"""Shared by all tests."""

import functools
import os
from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest
import torch

# Threads only slow models of this size down; where processes share the cores, several times. Notebooks and commands
# that tests start inherit this.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)


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
