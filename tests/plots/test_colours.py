"""Scores as colours."""

import torch

from heta_lens.plots.scales import BLUE, ORANGE, WHITE, shades


def test_colours_go_from_white_to_blue_and_orange() -> None:
    found = shades(torch.tensor([0.0, 1.0, 0.8, -1.0]), 1.0)
    assert found[0] == WHITE
    assert found[1] == BLUE
    assert found[3] == ORANGE
    assert WHITE.red > found[2].red > BLUE.red
    assert set(shades(torch.zeros(3), 1.0)) == {WHITE}
