"""The only code that knows TransformerLens: loading, running, hooking and reading a model.

Read `adapter` first: it runs models, with hooks from `hooks` and kept keys and values from `key_values`. `loading` and
`checkpoints` load models, `weights` reads weights, `norms_and_neurons` describes the parts of layers, `tokenizer`
relates tokens and text, `batching` chooses batch sizes, and `lock` gives a model to one call at a time.
"""
