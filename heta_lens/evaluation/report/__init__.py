"""A folder of records as tables, figures and a page.

`folder_report` writes them all; a `leaderboard`, with a `leaderboard_figure`, is of several folders. `summary_tables`
computes their content: `metric_results` for each metric, of which `metric_description` reads from ``run.json`` how it
is aggregated. `missing_values` and `cost_section` are two of its parts, `figures` draws, `document` is a text with
tables and figures, `phrases` and `footnotes` word what is said.
"""
