"""Random probes: signs of their own seed and position."""

import torch

from heta_lens.methods.heta.probes import rademacher


def test_probes_are_signs_of_their_own_seed_and_position() -> None:
    assert set(rademacher(0, 0, 50, 8).unique().tolist()) == {-1.0, 1.0}
    streams = [rademacher(seed, position, 8, 16) for seed in range(3) for position in range(3)]
    assert len({tuple(stream.flatten().tolist()) for stream in streams}) == 9
    torch.testing.assert_close(rademacher(2**33, 7, 4, 4), rademacher(2**33, 7, 4, 4))
    assert not torch.equal(rademacher(2**33, 7, 4, 4), rademacher(0, 7, 4, 4))


def test_more_probes_begin_with_the_same_ones() -> None:
    torch.testing.assert_close(rademacher(0, 3, 20, 5)[:6], rademacher(0, 3, 6, 5))


def test_probes_are_unbiased_and_independent() -> None:
    probes = rademacher(0, 0, 20_000, 4)
    assert probes.mean(0).abs().max() < 0.03
    assert (probes.T @ probes / len(probes) - torch.eye(4)).abs().max() < 0.03
