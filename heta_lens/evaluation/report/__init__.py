"""Reports: the records of an evaluation as tables, figures and a page, and leaderboards of several evaluations.

`folder_report` writes the report of a folder from its `results`, with `figures`; `leaderboard` ranks methods over
several folders. `document` writes tables and paragraphs as Markdown and HTML.
"""
