"""The tables of the paper with the same rows and columns, and the printed figures beside ours.

`reproduce_table` runs a table and writes it; `cells` are the printed figures, the metrics and our figures.
"""

from heta_lens.evaluation.reproduce.cells import TABLES
from heta_lens.evaluation.reproduce.reproduce_table import reproduce

__all__ = ["TABLES", "reproduce"]
