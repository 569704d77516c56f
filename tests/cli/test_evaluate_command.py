"""``heta-lens evaluate``: what its help names."""

from heta_lens.cli.evaluate_command import SUITES
from heta_lens.data import suites


def test_the_help_names_every_suite() -> None:
    assert {*SUITES} == {*suites.SUITES}
