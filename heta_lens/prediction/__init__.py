"""One checked question to a live model: which tokens of this prompt made the model predict this one?

`prediction` is the question (`span_and_batch` has several at once), `prompt` the tokens, `rerun_from_prefix` the ways
to run them again (if `prefix_reuse_check` and `block_alone_check` find that the model can), `live_activations` what the
cache left out, `make_attribution` the answer. `target`, `target_function`, `cached_activations`, `cached_tokens`,
`cache_check` and `padding_checks` read and check what was given, `gradient_check` quantised models; `target_reading`
says what g is. `masking`, `coalitions` (`drawn_coalitions`) and `token_patching` (`patching_checks`) change runs,
`readout` and `generation` read them. `context_text` relates tokens and text, `chat_prompt` tokens and the messages of a
chat, which `message_places` locates; `linear_fits` fits what removing tokens does.
"""
