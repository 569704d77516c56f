"""What tests of HETA share."""

import pytest

import heta_lens.prediction.rerun


@pytest.fixture
def short_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short prompts have something between a window and the tail."""
    monkeypatch.setattr(heta_lens.prediction.rerun, "TAIL", 2)
