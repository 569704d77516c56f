"""Helpers without knowledge of models.

`options` checks options, `files` and `storage` read and write files, `text` handles
spans, tables and safe printing, `numerics` has tolerances, divergences and sample statistics, `work` counts work and
shows progress, `python` has versions, extras and warnings, and `providers` holds what lower floors call of upper ones.
"""
