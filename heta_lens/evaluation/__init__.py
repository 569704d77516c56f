"""Suites × methods × metrics: run, resumed, and reported with confidence intervals.

`runner` evaluates every method on every prompt (`prompt_drawing` draws them, `prompt_evaluation` is one of them): each
a `method_with_options`, by the `metric_values` of its explanation, or `given_scores` of others (`score_converters` read
inseq's and captum's); `dataset_attribution` only explains them. `engines/` are where that is done: here, in worker
processes, or on a Ray cluster; `shards` are parts that are done apart, and `shard_merging` makes one evaluation of
them. `resumable_run_folder` (under a `folder_lock`) and `run_records` are the results on disk, `kept_scores` the scores
of every token, by `score_rows`; `failure_descriptions` is how an error is recorded. The statistics: `aggregates`,
`intervals` (`cluster_bootstrap`, `gaffke_bound`), `difference_tests`, with `random_draws` that can be repeated.
`report/` writes tables, figures and a page; `reproduce/` the paper's tables.
"""

from heta_lens.evaluation.external_scores import from_captum, write_scores
from heta_lens.evaluation.prompt_evaluation import Entry, ask, figures
from heta_lens.evaluation.report.folder_report import write_report
from heta_lens.evaluation.run_folder import Shard, merge
from heta_lens.evaluation.runner import evaluate
from heta_lens.evaluation.workers import Workers

__all__ = [
    "Entry",
    "Shard",
    "Workers",
    "ask",
    "evaluate",
    "figures",
    "from_captum",
    "merge",
    "write_report",
    "write_scores",
]
