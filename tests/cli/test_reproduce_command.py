"""``heta-lens reproduce``: which tables there are."""

from heta_lens.cli.reproduce_command import TABLES
from heta_lens.evaluation import reproduce


def test_the_help_names_every_table() -> None:
    assert {*TABLES} == {*reproduce.TABLES}
