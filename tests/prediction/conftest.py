"""A prompt and its cache, for what is refused."""

from typing import Any

import pytest
from torch import Tensor

from helpers import zoo
from helpers.asking import N, cache_of


@pytest.fixture
def ids() -> Tensor:
    return zoo.prompt(zoo.bridge("gpt2"), N)


@pytest.fixture
def cache(ids: Tensor) -> Any:
    return cache_of(zoo.bridge("gpt2"), ids)
