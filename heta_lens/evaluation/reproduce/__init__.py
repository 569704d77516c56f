"""The tables of the paper made again: the same rows and columns, its figures beside ours."""

from heta_lens.evaluation.reproduce.tables import TABLES, reproduce

__all__ = ["TABLES", "reproduce"]
