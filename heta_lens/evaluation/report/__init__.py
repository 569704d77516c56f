"""Reports: the records of an evaluation as tables, figures and a page, and leaderboards of several evaluations."""
