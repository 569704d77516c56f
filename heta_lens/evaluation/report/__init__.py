"""Reports: the records of an evaluation as tables, figures and a page.

`folder_report` writes the report of a folder from its `results`, with `figures`; `document` writes tables and
paragraphs as Markdown and HTML.
"""
