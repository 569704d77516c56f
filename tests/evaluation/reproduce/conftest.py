"""Small tables on the demo model."""

import pytest

from helpers.evaluating import demo
from helpers.small_tables import SMALL
from heta_lens.evaluation.reproduce import reproduce_table
from heta_lens.model import loading


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce_table, "QUICK", SMALL)
    monkeypatch.setattr("heta_lens.metrics.evaluators.RUNS", 2)
    monkeypatch.setattr(loading, "load_model", lambda _, **__: demo())
