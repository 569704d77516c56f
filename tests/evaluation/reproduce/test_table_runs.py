"""Runs of a table resume in their folder, and no other evaluation may write into it."""

from pathlib import Path

import pytest

from heta_lens.evaluation.reproduce import reproduce
from heta_lens.methods.heta.heta import Heta


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked", "small")
def test_a_second_time_nothing_is_asked_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {
        path: path.read_text(encoding="utf-8") for path in reproduce("dsa", quick=True, out=tmp_path, progress=False)
    }
    monkeypatch.setattr(Heta, "__call__", lambda *_: pytest.fail("asked again"))
    for path in reproduce("dsa", quick=True, out=tmp_path, progress=False):
        assert path.read_text(encoding="utf-8") == before[path]
    with pytest.raises(ValueError, match="give another folder"):
        reproduce("dsa", quick=True, out=tmp_path, seed=1, progress=False)
