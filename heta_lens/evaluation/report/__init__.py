"""A folder of records as tables, figures and a page.

`folder_report` writes them all. `summary_tables` computes their content: `metric_results` for each `run_metric`, a
metric as ``run.json`` describes it. `missing_values` and `cost_section` are two of its parts, `figures` draws,
`document` is a text with tables and figures, `phrases` words numbers and reasons.
"""
