"""Suites × methods × metrics: run, kept as they are finished, and reported with what may be chance in them."""

from heta_lens.evaluation.report import write_report
from heta_lens.evaluation.runner import Entry, evaluate

__all__ = ["Entry", "evaluate", "write_report"]
