"""One checked question to a live model: which tokens of this prompt made the model predict this one?

`prediction` is the question, `prompt` the tokens, `rerun_from_prefix` the ways to run them again (if
`prefix_reuse_check` finds that the model can), `make_attribution` the answer. `target`, `cached_activations`,
`cached_tokens`, `cache_check` and `padding_checks` read and check what was given.
`masking`, `coalitions` (`drawn_coalitions`) and `token_patching` (`patching_checks`) change runs, `readout` and
`generation` read them.
`context_text` relates tokens and text, `chat_prompt` tokens and the messages of a chat, which `message_places` locates;
`linear_fits` fits what removing tokens does.
"""
