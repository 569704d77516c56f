"""The pictures of the pages: each is there for light and for dark pages, small, shown, and made by a script."""

import re
from pathlib import Path

import numpy as np
from PIL import Image

from docs import pictures
from helpers import ROOT

FOLDER = ROOT / "docs" / "gallery"
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
SCRIPT = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("gallery.py", "story.py"))
PICTURE = re.compile(
    r'^<picture><source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">'
    r'<img alt="([^"]{16,})" src="([^"]+)"></picture>$',
    re.MULTILINE,
)
LARGEST = 150_000  # bytes


def shown() -> set[Path]:
    """Return the pictures of the pages, after a check that each has its dark version beside it."""
    found = set[Path]()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<img|!\[", PICTURE.sub("", text)), f"{page.name} has a picture in one version"
        for dark, _, light in PICTURE.findall(text):
            assert page.parent / dark == pictures.dark(page.parent / light)
            found |= {page.parent / dark, page.parent / light}
    return found


def test_every_picture_is_shown_in_light_and_dark_and_is_small() -> None:
    folder = ROOT / "docs"
    there = {path for path in [*folder.iterdir(), *(folder / "gallery").iterdir()] if path.suffix in (".webp", ".svg")}
    assert shown() == there
    sizes = {path.name: path.stat().st_size for path in there}
    assert max(sizes.values()) < LARGEST, sizes


def test_the_script_makes_every_picture_of_the_gallery() -> None:
    made = {FOLDER / name for name in re.findall(r'"([\w]+\.(?:webp|svg))"', SCRIPT)}
    assert made | {*map(pictures.dark, made)} == {*FOLDER.iterdir()}


def test_a_dark_picture_has_light_and_dark_exchanged_and_the_same_hues(tmp_path: Path) -> None:
    light = np.array([[(255, 255, 255), (0, 0, 0), (33, 113, 217), (201, 84, 10)]], dtype="uint8")
    Image.fromarray(light).save(tmp_path / "picture.png")
    pictures.keep((tmp_path / "picture.png").read_bytes(), tmp_path / "made.webp")
    with Image.open(tmp_path / "made_dark.webp") as dark:
        paper, ink, blue, orange = np.asarray(dark.convert("RGB"), dtype=int)[0]
    assert max(paper) < 30 and min(ink) > 220
    assert blue[2] > 180 > blue[0] and orange[0] > 180 > orange[2]
