"""Pictures of the pages: a WebP file for light pages, and one with ``_dark`` in its name for dark pages."""

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

DARK_PAPER, DARK_INK = 20, 235  # the greys that stand for white and black on a dark page


def keep(png: bytes, path: Path, colours: int = 64) -> None:
    """Write a picture for light pages, and the same picture with light and dark exchanged."""
    with Image.open(BytesIO(png)) as picture:
        light = picture.convert("RGB")
    write(light, path, colours)
    write(darkened(light), dark(path), colours)


def dark(path: Path) -> Path:
    return path.with_stem(f"{path.stem}_dark")


def write(picture: Image.Image, path: Path, colours: int) -> None:
    """Write a lossless WebP file of few colours, which is small."""
    picture.convert("RGB").quantize(colours, Image.Quantize.MAXCOVERAGE).convert("RGB").save(path, lossless=True)


def darkened(picture: Image.Image) -> Image.Image:
    """Return a picture with white on black for black on white; hues stay, so blue is still above 0."""
    pixels = np.asarray(picture, dtype=float)
    turned = pixels + 255 - pixels.max(2, keepdims=True) - pixels.min(2, keepdims=True)  # HSL's lightness L is 1 − L
    return Image.fromarray((DARK_PAPER + turned * (DARK_INK - DARK_PAPER) / 255).round().astype("uint8"))
