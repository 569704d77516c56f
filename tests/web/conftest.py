"""The app of the demo model, which answers questions about a story."""

from collections.abc import Iterator
from typing import Any

import pytest

import heta_lens
from heta_lens.data import recall
from heta_lens.web import app
from heta_lens.web.answers import Answers
from heta_lens.web.server import App


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Announce no wait, however busy the machine is."""
    monkeypatch.setattr("heta_lens.web.answers.PATIENT", float("inf"))


@pytest.fixture(scope="module")
def demo() -> Any:
    return heta_lens.load_demo_model()


@pytest.fixture
def answers(demo: Any) -> Answers:
    return Answers(demo)


@pytest.fixture(scope="module")
def story() -> str:
    return next(recall.stories("test", seed=0, hops=1, facts=4)).text


@pytest.fixture
def running(demo: Any) -> Iterator[App]:
    started = app(demo, browser=False)
    yield started
    started.stop()
