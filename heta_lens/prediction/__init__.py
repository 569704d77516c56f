"""Checked predictions of a live model, and the runs behind explanations.

Read `prediction` first: a `Prediction` is made from a cache (`spans_and_batches` makes several), with the target of
`target`. A `prompt` is tokens that were checked against their `cache`, and `rerun` runs it with changed states.
`masking`, `coalitions` and `patching` change runs, `search` masks spans and divides those that matter, `gradients`
differentiates runs, `generation` continues texts, and `chat` writes messages as prompts.
"""
