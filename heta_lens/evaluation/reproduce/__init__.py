"""The tables of the paper with the same rows and columns, and the printed figures beside ours.

`reproduce_table` runs a table; `rows` are the methods, `cells` the printed figures, the metrics and our figures, and
`pages` the written table.
"""

from heta_lens.evaluation.reproduce.cells import TABLES
from heta_lens.evaluation.reproduce.reproduce_table import reproduce

__all__ = ["TABLES", "reproduce"]
