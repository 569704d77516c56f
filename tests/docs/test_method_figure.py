"""The figure of docs/method.md is on its page, and drawn by its script."""

import runpy

import pytest

from helpers import ROOT

PAGE = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_every_row_has_all_tokens_and_the_evidence_stands_out() -> None:
    figure = runpy.run_path(str(ROOT / "docs" / "method_figure.py"))["figure"]()
    flow, *rows = figure.axes
    count = len(rows[-1].get_xticklabels())
    assert flow.images[0].get_array().shape[1] == count and len(rows) == 4
    for axes in rows:
        bars = axes.patches
        assert len(bars) == count and max(bar.get_height() for bar in bars) == pytest.approx(1)
        assert len({bar.get_facecolor() for bar in bars}) == 2


def test_it_is_on_the_page() -> None:
    assert "](method.webp)" in PAGE and (ROOT / "docs" / "method.webp").stat().st_size < 150_000
