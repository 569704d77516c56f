"""Suites × methods × metrics: run, kept as they are finished, and reported with what may be chance in them."""

from heta_lens.evaluation.report import write_report
from heta_lens.evaluation.runner import Entry, ask, evaluate, figures

__all__ = ["Entry", "ask", "evaluate", "figures", "write_report"]
