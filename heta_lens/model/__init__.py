"""The only code that knows TransformerLens: how a model is loaded, run, hooked and read.

`adapter` runs any model, or with `block_skipping` some of its blocks; `key_value_reuse` is how each kind continues from
kept keys and values. `hook_sites` names hook points, `hooking` adds hooks, `norms_and_neurons` lists those that change
how gradients flow, `head_outputs` is what heads write, `pattern_dropping` drops patterns nobody reads. `weight_reading`
reads weights, or obtains them by running modules that are quantised or offloaded. `closed_forms` has derivatives that
take fewer operations than autograd's, and `closed_form_hooks` the hooks that put them into a model. `model_protocol`
says what is needed of a model, `model_checks` refuses others, `fingerprint` tells models apart. `tokenizer` and
`token_matching` relate tokens and text, `prompt_encoding` encodes it, `chat_template` writes messages as text.
`loading`, `loading_options`, `hub`, `checkpoints` and `gguf_files` load models, `absent_model` builds one without
weights, `memory_estimates` and `batching` decide how much runs at once, `locking` lets one call at a time have a model.
"""
