"""How deep a score is in a terminal."""

import pytest
from rich.color import ColorType
from rich.style import Style

from heta_lens.plots.scales import BLUE, ORANGE, Shade
from heta_lens.plots.terminal import BRACKETS, in_brackets, of_16, of_256, truecolour, unused

DEPTHS = [step / 100 for step in range(-100, 101)]
# Red, blue and bright white, as usual terminals show them.
PALETTES = {
    "VGA": ("aa0000", "0000aa", "ffffff"),
    "xterm": ("cd0000", "0000ee", "ffffff"),
    "Windows": ("c50f1f", "0037da", "f2f2f2"),
    "macOS": ("c23621", "492ee1", "e9ebeb"),
    "Tango": ("cc0000", "3465a4", "eeeeec"),
    "PuTTY": ("bb0000", "0000bb", "ffffff"),
}


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """The contrast ratio of WCAG 2."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: tuple[int, ...]) -> float:
    linear = [c / 255 / 12.92 if c / 255 <= 0.03928 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def pair(style: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ink and paper of a style that says both."""
    parsed = Style.parse(style)
    assert parsed.color is not None and parsed.bgcolor is not None
    return tuple(parsed.color.get_truecolor()), tuple(parsed.bgcolor.get_truecolor())


@pytest.mark.parametrize("look", [truecolour, of_256])
def test_ink_is_far_from_its_paper_at_every_depth(look) -> None:
    assert min(contrast(*pair(look(depth).style)) for depth in DEPTHS) >= 4.5


@pytest.mark.parametrize("look", [truecolour, of_256])
@pytest.mark.parametrize("sign", [1, -1])
def test_paper_is_white_at_0_and_ever_darker(look, sign: int) -> None:
    papers = [pair(look(sign * depth).style)[1] for depth in DEPTHS if depth >= 0]
    assert papers[0] == (255, 255, 255)
    shades = [luminance(paper) for paper in papers]
    assert shades == sorted(shades, reverse=True) and len(set(shades)) >= 6


def test_the_deepest_colours_are_those_of_all_views() -> None:
    assert [pair(truecolour(depth).style)[1] for depth in (1.0, -1.0)] == [BLUE, ORANGE]


def test_256_colours_are_not_those_that_a_terminal_chooses() -> None:
    for depth in DEPTHS:
        style = Style.parse(of_256(depth).style)
        assert style.color is not None and style.bgcolor is not None
        assert {colour.type for colour in (style.color, style.bgcolor)} == {ColorType.EIGHT_BIT}


def test_blue_is_above_0_and_orange_below() -> None:
    for look in (truecolour, of_256):
        above, below = (Shade(*pair(look(depth).style)[1]) for depth in (0.9, -0.9))
        assert above.blue > above.red and below.red > below.blue


@pytest.mark.parametrize("palette", PALETTES)
def test_16_colours_are_far_apart_in_usual_palettes_or_those_of_the_terminal(palette: str) -> None:
    names = ["red", "blue", "bright_white"]
    for style in {of_16(depth).style for depth in DEPTHS} - {""}:
        ink, paper = style.removeprefix("bold ").split(" on ")
        assert contrast(*(tuple(bytes.fromhex(PALETTES[palette][names.index(name)])) for name in (ink, paper))) >= 4.5


def test_16_colours_show_two_levels_of_each_sign() -> None:
    assert [of_16(depth).style for depth in (0.0, 0.24, 0.25, 0.5, 1.0)] == [
        "", "", "bright_white on blue", "bold bright_white on blue", "bold bright_white on blue",
    ]  # fmt: skip
    assert [of_16(depth).style for depth in (-0.3, -0.6)] == ["bright_white on red", "bold bright_white on red"]


def test_brackets_show_the_same_levels() -> None:
    look = in_brackets("[]")
    written = [f"{look(depth).opening}word{look(depth).closing}" for depth in (0.0, -0.2, 0.3, -0.3, 0.5, -1.0)]
    assert written == ["word", "word", "[word]", "[-word]", "[[word]]", "[[-word]]"]
    assert not any(look(depth).style for depth in DEPTHS)


def test_marks_are_not_those_of_the_text() -> None:
    assert [unused(BRACKETS, text) for text in ("a", "a[0]", "a[0] = {}", "<[{")] == ["[]", "{}", "<>", "⟦⟧"]
    assert unused(BRACKETS, "[]{}<>⟦⟧") == "⟦⟧"
