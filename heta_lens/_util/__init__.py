"""Helpers that know no model.

`options` checks a method's options, `option_text` reads and writes them as text. `work_counting` counts forwards,
backwards and products, `progress` shows them with a `progress_bar`, `progress_lines` say it in a log.
`allocation_counting` counts bytes, in a `dry_run` of tensors without data. `divergence` compares distributions,
`tolerance` says how far rounding goes, `finite_values` refuses NaNs, `sample_statistics` is for what was drawn at
random. `file_writing`, `file_reading`, `json_lines_file`, `tensor_storage` and `type_checks` write and read files
strictly, `plain_json` and `nested_tensors` make JSON of values, the latter with tensors in them,
`saved_attribution_checks` says whether what was read is an attribution. `chat_messages` says which message of a chat
wrote each token. `text_spans` and `sentence_spans` find tokens in text, `span_alignment` moves scores to other tokens,
`stand_ins` finds where a template put a value, `printable_text` makes text safe to print, `probability_text` writes
probabilities. `short_repr` shortens a repr, `html_view` is HTML that notebooks show. `token_share` is a share of the
tokens, `lazy_sequence` computes items when they are accessed, `caller_warnings` point at the user's line,
`named_objects` are somebody's own code, `extras` names what to install, `versions` what is installed. `target_kinds`
tells whether a target is a token, a set of tokens, a contrast or a function. `score_hops` passes scores on from tokens
to tokens before them.
"""
