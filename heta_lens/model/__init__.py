"""The only code that knows TransformerLens: how a model is loaded, run, hooked and read.

`adapter` runs any model, and `hooked_transformer` and `bridge` hold what differs between the kinds (how a run
continues from kept `key_values`). `hook_sites` names hook points, `hooking` adds hooks, `architecture` lists a
model's parts, `model_checks` refuses models that cannot be explained, and `model_protocol` says what is needed of
one. `tokenizer` relates tokens and text; `loading` and `checkpoints` load models, `prompt_encoding` encodes text for
them; `fingerprint` identifies a model; `batching` decides how much runs at once, by the `memory_estimates`; `locking`
runs one call at a time per model.
"""
