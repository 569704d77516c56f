"""Every row and column of the paper's tables can be made."""

from helpers.small_tables import SMALL
from heta_lens.evaluation.reproduce import TABLES
from heta_lens.evaluation.reproduce.cells import printed


def test_every_row_and_column_has_a_recipe() -> None:
    for name, recipe in TABLES.items():
        table = printed()[name]
        methods, measured = (table.columns, table.rows) if recipe.turned else (table.rows, table.columns)
        assert {*recipe.measures} == {*measured}, name
        assert len({SMALL.entry(method).label for method in methods}) == len(methods), name
