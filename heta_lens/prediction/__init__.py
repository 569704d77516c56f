"""Checked predictions of a live model, and the runs behind explanations.

Read `prediction` first: a `Prediction` is made from a cache (`spans_and_batches` makes several), with the target of
`target` and the checks of `checks`. `rerun` runs a prompt with changed states; `activations` holds cached or recomputed
activations. `masking`, `coalitions` and `patching` change runs, `gradients` differentiates runs, `generation` continues
texts, and `chat` writes messages as prompts.
"""
