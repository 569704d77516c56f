"""The gallery's pictures: those that are there are shown, small, and made by its script."""

import re

from helpers import ROOT

DOCS = ROOT / "docs"
PAGE, APP, FIRST, SCRIPT = (
    (DOCS / name).read_text(encoding="utf-8") for name in ("gallery.md", "app.md", "five_minutes.md", "gallery.py")
)
LARGEST = 150_000  # bytes


def test_every_picture_is_shown_and_made() -> None:
    there = {path.name for path in (DOCS / "gallery").iterdir()}
    assert set(re.findall(r"\]\(gallery/([^)]+)\)", PAGE + APP + FIRST)) == there
    assert set(re.findall(r'"([\w]+\.(?:webp|svg))"', SCRIPT)) == there


def test_every_picture_is_described_and_small() -> None:
    assert all(len(words) > 15 for words in re.findall(r"!\[([^]]*)\]", PAGE + APP))
    sizes = {path.name: path.stat().st_size for path in (DOCS / "gallery").iterdir()}
    assert max(sizes.values()) < LARGEST, sizes
