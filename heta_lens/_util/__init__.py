"""Helpers without knowledge of models.

`options` checks options, `presets` names settings, `files` and `storage` read and write files, `text` handles
spans, tables and safe printing, `numerics` has tolerances, divergences and sample statistics, `work` counts work and
shows progress, `target_kinds` describes targets, `python` has versions, extras, warnings and modules of upper floors,
and `html_view` shows HTML.
"""
