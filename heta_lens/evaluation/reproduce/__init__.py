"""Reproducing the tables of the paper: the same rows and columns, the printed figures beside ours.

`reproduce_table` goes from a table's name to its page. `paper_values` is what the paper prints; `row_configurations`,
`table_columns` and `table_metrics` define rows and columns, `prompt_sets` the prompts; `table_runs` runs them and
measures `peak_memory`, `table_cells` aggregates, `table_pages` writes.
"""

from heta_lens.evaluation.reproduce.reproduce_table import TABLES, reproduce

__all__ = ["TABLES", "reproduce"]
