"""Suites × methods × metrics: evaluations that resume, reports with confidence intervals, and the paper's tables.

`evaluate` (`runner`) explains every prompt by every method and evaluates the explanations (`prompt_evaluation`), in
this process or by `workers`. Results are `records` in a `run_database`, from which interrupted runs resume; `shards`
are merged. `saved_scores` loads the scores, and `external_scores` are scores of other tools. `report` writes tables,
figures and a page, with intervals of `statistics`; `reproduce` makes the paper's tables.
"""

from heta_lens.evaluation.prompt_evaluation import Entry, ask, figures
from heta_lens.evaluation.report.folder_report import write_report
from heta_lens.evaluation.runner import evaluate
from heta_lens.evaluation.shards import Shard, merge
from heta_lens.evaluation.workers import Workers

__all__ = ["Entry", "Shard", "Workers", "ask", "evaluate", "figures", "merge", "write_report"]
