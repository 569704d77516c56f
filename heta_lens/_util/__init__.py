"""Helpers that know no model.

`options` checks a method's options; `progress` counts and shows work; `divergence` compares distributions;
`sample_statistics` holds what was drawn at random for each token; `file_writing`, `file_reading`, `tensor_storage` and
`type_checks` write and read files strictly; `html_view` is a piece of HTML that notebooks show; `text_spans` locates
tokens in text, `printable_text` makes text safe to print, `short_repr` shortens a record's repr, `finite_values`
refuses NaNs, `versions` names the installed libraries, `lazy_sequence` computes
items when they are accessed.
"""
