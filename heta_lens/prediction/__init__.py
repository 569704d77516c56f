"""One checked question to a live model: which tokens of this prompt made the model predict this one?

`prediction` is the question, `prompt` the tokens, `prompt_runner` the ways to run them again, `make_attribution` the
answer. `target`, `cached_activations`, `cached_tokens`, `cache_check` and `padding` read and check what was given.
`masking`, `coalitions` and `token_patching` (with `patching_checks`) change runs; `readout` and `generation` read them.
`context_text` and `sentence_spans` relate tokens and text; `linear_fits` fits what removing tokens does.
"""
