"""Shared by all tests."""

import jaxtyping
import pytest
import torch

torch.set_num_threads(1)  # threads only slow models of this size down


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Types as users have them, checked by nobody: the tests' checker would speak before the library does.

    It also draws random numbers of its own.
    """
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
